"""The settings of a running process. Those of `LIVE` are taken from the files again while it runs; all others, and
all variables of its environment, stay as they were when it started.

A file that cannot be read, or whose settings do not fit together, changes nothing: what held goes on, and `problem`
says why. Work under way keeps the settings that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import ValidationError

from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.validation import problem_text
from postroom.settings.dashboard_file import EDITABLE
from postroom.settings.files import file_stamp
from postroom.settings.layers import read_layers
from postroom.settings.tree import DASHBOARD_FILE, FILE_NAME, Settings

NEED_RESTART = ("backfill.day_zone",)
"""Of the editable settings: a day that changes its length while it is being counted would be counted twice."""
LIVE = tuple(key for key in EDITABLE if key not in NEED_RESTART)
NOTICED_WITHIN_S = 5
"""Every process has noticed a change after this many seconds."""

K = TypeVar("K")
T = TypeVar("T")


class SettingsSource(Protocol):
    """Settings that never change, or those of a running process."""

    @property
    def now(self) -> Settings: ...


class CurrentSettings:
    """`started` may differ from the files, as where a command's options set something: only a setting that has changed
    in the files since the start is taken from them."""

    def __init__(self, started: Settings) -> None:
        self._started = started
        self._now = started
        self._seen: object = None
        self.problem: str | None = None
        """Why the files cannot be used as they are now."""

    @property
    def now(self) -> Settings:
        return self._now

    @cached_property
    def at_start(self) -> Mapping[str, Any]:
        """What the files said when this was first asked for, which a process does as it starts; nothing where they
        could not be read."""
        self._seen = _stamps(self._started.home)
        try:
            return _values(read_layers(self._started.home).settings())
        except PostroomError:
            return {}

    def refresh(self) -> list[str]:
        """Take over what has changed in the files; the keys of what holds from now on."""
        before, stamps = self.at_start, _stamps(self._started.home)
        if stamps == self._seen:
            return []
        try:
            found = read_layers(self._started.home).settings()
            fresh = _changed(self._started, before, _values(found))
        except PostroomError as error:
            self.problem, self._seen = error.message, stamps
            return []
        old, self._now, self.problem, self._seen = self._now, fresh, None, stamps
        return [key for key in LIVE if _value(old, key) != _value(fresh, key)]

    def waiting(self, found: Settings) -> list[str]:
        """Of these settings, as the files have them, the keys that this process does not work with yet."""
        return [
            key
            for key in EDITABLE
            if key in self.at_start
            and _value(found, key) != self.at_start[key]
            and _value(found, key) != _value(self._now, key)
        ]


class Derived(Generic[K, T]):
    """A value that is made from settings, and made again when they have changed."""

    def __init__(self, made_of: Callable[[], K], make: Callable[[K], T]) -> None:
        self._made_of = made_of
        self._make = make
        self._made: tuple[K, T] | None = None

    def __call__(self) -> T:
        made_of = self._made_of()
        if (made := self._made) is None or made[0] != made_of:
            self._made = made = made_of, self._make(made_of)
        return made[1]


def _changed(started: Settings, before: Mapping[str, Any], found: Mapping[str, Any]) -> Settings:
    """What the process started with, but for live settings that have changed in the files since then."""
    groups: dict[str, dict[str, Any]] = {}
    for key in LIVE:
        if key in before and found[key] != before[key]:
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = found[key]
    fresh = {}
    for name, changes in groups.items():
        own = getattr(started, name)
        try:
            fresh[name] = type(own)(**{**dict(own), **changes})
        except ValidationError as error:
            raise BadInput(name, problem_text(error.errors(include_input=False)[0])) from None
    return started.model_copy(update=fresh)


def _values(settings: Settings) -> dict[str, Any]:
    return {key: _value(settings, key) for key in EDITABLE}


def _value(settings: Settings, key: str) -> Any:
    group, _, name = key.partition(".")
    return getattr(getattr(settings, group), name)


def _stamps(home: Path) -> list[object]:
    return [file_stamp(home / name) for name in (DASHBOARD_FILE, FILE_NAME)]
