"""Settings that the dashboard sets, and the settings of a running process, which takes most of these over while it
runs.

`dashboard.toml` in the home folder has what was set in the dashboard. Only Postroom writes it, as a whole. What the
environment sets is never overridden, and no secret is in it: keys are in the vault. A change is checked together with
everything else that is set, before anything is written.

A running process takes those of `LIVE` from the files again; all others, and all variables of its environment, stay as
they were when it started. A file that cannot be read, or whose settings do not fit together, changes nothing: what held
goes on, and `problem` says why. Work under way keeps the settings that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.validation import problem_text
from postroom.settings import tree
from postroom.settings.files import FORM_IS_OLD, file_stamp, locked, replace_file
from postroom.settings.layers import SettingLayers, SettingSource, read_layers, shown_value, value_at

K = TypeVar("K")
T = TypeVar("T")

EDITABLE = (
    "model.provider",
    "model.name",
    "model.base_url",
    "model.input_price",
    "model.output_price",
    "model.max_output_tokens",
    "model.timeout_s",
    "backfill.enabled",
    "backfill.daily_cost_cap_cents",
    "backfill.rate_limit_per_hour",
    "backfill.background_daily_cost_cap_cents",
    "backfill.background_rate_limit_per_hour",
    "backfill.share_of_ceiling_percent",
    "backfill.day_zone",
    "backfill.auto_resume",
    "discord.channel_id",
    "discord.public_key",
    "discord.allowed_users",
    "sync.self_email",
    "digest.every",
    "digest.at",
    "digest.zone",
)
"""The settings that can be set in the dashboard; its forms are in `dashboard/settings/configuration.py`."""
NEED_RESTART = ("backfill.day_zone",)
"""Of the editable settings: a day that changes its length while it is being counted would be counted twice."""
LIVE = tuple(key for key in EDITABLE if key not in NEED_RESTART)
NOTICED_WITHIN_S = 5
"""Every process has noticed a change after this many seconds."""
_HEAD = (
    "# Written by the dashboard, which replaces it as a whole: change these on its page Settings.\n"
    "# They win over postroom.toml; the environment wins over both.\n"
)


@dataclass(frozen=True)
class SettingsChange:
    """Before and after; nothing is written yet."""

    before: SettingLayers
    after: SettingLayers
    keys: tuple[str, ...]
    """The settings whose value, or where it comes from, changes."""

    def values(self, layers: SettingLayers) -> dict[str, str]:
        """Of the changed settings, for the audit log."""
        settings = layers.settings()
        return {key: shown_value(settings, editable(key).path) for key in self.keys}

    def write(self) -> None:
        """Writing it twice is writing it once; a file that was changed meanwhile is left as it is."""
        path = self.before.home / tree.DASHBOARD_FILE
        with locked(path):
            now = read_layers(self.before.home)
            if now.dashboard == self.after.dashboard and now.file == self.after.file:
                return
            require_version(now, self.before.version)
            replace_file(path, _text_of(self.after.dashboard))


def editable(key: str) -> tree.Setting:
    if key not in EDITABLE:
        raise BadInput(key, "cannot be set in the dashboard; docs/settings.md says where it can")
    return _by_key()[key]


@cache
def _by_key() -> dict[str, tree.Setting]:
    return {setting.key: setting for _, group in tree.reference() for setting in group if setting.key}


def require_version(layers: SettingLayers, version: str) -> None:
    if layers.version != version:
        raise BadInput("version", FORM_IS_OLD)


def planned(home: Path, version: str, values: Mapping[str, str]) -> SettingsChange:
    """The change to these texts; an empty one goes back to what holds without the dashboard, or to unset where a
    setting may be unset. A mistake is refused by its key."""
    before = read_layers(home)
    require_version(before, version)
    wanted = {editable(key).path: _checked(key, text) for key, text in values.items()}
    now = before.settings()
    wanted = {path: text for path, text in wanted.items() if text != shown_value(now, path)}
    for path in wanted:
        _refuse_fixed(before, path)
    after = _tidied(replace(before, dashboard=_with(before, wanted)), wanted)
    return SettingsChange(before, after, _changed(before, after))


def _checked(key: str, text: str) -> str:
    text = text.strip()
    if not text.isprintable():
        raise BadInput(key, "is not one line of plain text")
    if key == "model.base_url" and "@" in (urlsplit(text).netloc if "://" in text else ""):
        raise BadInput(key, "has a name or password in it; store the key below instead")
    return text


def _refuse_fixed(layers: SettingLayers, path: tree.SettingPath) -> None:
    if (given := layers.environment.get(path)) is not None:
        key = ".".join(path)
        raise BadInput(key, f"is set by {given.name} in the environment, which always wins; change it there")


def _with(layers: SettingLayers, wanted: Mapping[tree.SettingPath, str]) -> dict[str, Any]:
    content = {name: dict(group) for name, group in layers.dashboard.items()}
    for path, text in wanted.items():
        group, name = path
        if text or (editable(".".join(path)).is_optional and value_at(layers.file, path) is not None):
            content.setdefault(group, {})[name] = text
        else:
            content.get(group, {}).pop(name, None)
    return content


def _tidied(layers: SettingLayers, wanted: Mapping[tree.SettingPath, str]) -> SettingLayers:
    """With values of their own types, and without those that hold anyway."""
    settings, without = layers.settings(), _settings_without(layers)
    content = {name: dict(group) for name, group in layers.dashboard.items()}
    for group, name in wanted:
        if name not in content.get(group, {}):
            continue
        value = _typed(getattr(getattr(settings, group), name))
        if without is not None and value == _typed(getattr(getattr(without, group), name)):
            del content[group][name]
        else:
            content[group][name] = value
    return replace(layers, dashboard={name: group for name, group in content.items() if group})


def _settings_without(layers: SettingLayers) -> tree.Settings | None:
    """What holds without the dashboard; None where that alone is incomplete."""
    try:
        return replace(layers, dashboard={}).settings()
    except BadInput:
        return None


def _typed(value: Any) -> Any:
    """As TOML has it; a price keeps its digits as text, and unset is an empty text."""
    if value is None:
        return ""
    return str(value) if isinstance(value, Decimal) else value


def _changed(before: SettingLayers, after: SettingLayers) -> tuple[str, ...]:
    old, new = before.settings(), after.settings()
    paths = [editable(key).path for key in EDITABLE]
    return tuple(
        ".".join(path)
        for path in paths
        if shown_value(old, path) != shown_value(new, path) or before.source(path) is not after.source(path)
    )


def _text_of(content: Mapping[str, Any]) -> bytes:
    import tomli_w  # few commands write settings

    return (_HEAD + "\n" + tomli_w.dumps(content)).encode()


def origin_of(layers: SettingLayers, key: str) -> tuple[SettingSource, str]:
    """Where an editable setting comes from, and the variable that fixes it; empty where none does."""
    path = editable(key).path
    given = layers.environment.get(path)
    return layers.source(path), "" if given is None else given.name


class SettingsSource(Protocol):
    """Settings that never change, or those of a running process."""

    @property
    def now(self) -> tree.Settings: ...


class CurrentSettings:
    """`started` may differ from the files, as where a command's options set something: only a setting that has changed
    in the files since the start is taken from them."""

    def __init__(self, started: tree.Settings) -> None:
        self._started = started
        self._now = started
        self._seen: object = None
        self.problem: str | None = None
        """Why the files cannot be used as they are now."""

    @property
    def now(self) -> tree.Settings:
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
            fresh = _with_changes(self._started, before, _values(found))
        except PostroomError as error:
            self.problem, self._seen = error.message, stamps
            return []
        old, self._now, self.problem, self._seen = self._now, fresh, None, stamps
        return [key for key in LIVE if _value(old, key) != _value(fresh, key)]

    def waiting(self, found: tree.Settings) -> list[str]:
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


def _with_changes(started: tree.Settings, before: Mapping[str, Any], found: Mapping[str, Any]) -> tree.Settings:
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


def _values(settings: tree.Settings) -> dict[str, Any]:
    return {key: _value(settings, key) for key in EDITABLE}


def _value(settings: tree.Settings, key: str) -> Any:
    group, _, name = key.partition(".")
    return getattr(getattr(settings, group), name)


def _stamps(home: Path) -> list[object]:
    return [file_stamp(home / name) for name in (tree.DASHBOARD_FILE, tree.FILE_NAME)]
