"""How settings are read: the environment first, then `dashboard.toml` and `postroom.toml` in the home folder, then
defaults; and where each value comes from.

A key that does not exist is an error that names it; a value that does not fit says which key and why.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from postroom.domain.errors import BadInput
from postroom.domain.validation import problem_text
from postroom.settings import tree
from postroom.settings.files import read_bytes, version_of

_NOT_IN_THE_FILE = {
    "home": "the file is found through the home folder",
    "vault_key": "a key does not lie beside what it locks",
    "access_token": "it is for one command",
}
_IS_SET = "(set)"


class SettingSource(StrEnum):
    """Where a value comes from; of these, the first that has one decides."""

    ENVIRONMENT = "environment"
    DASHBOARD = "dashboard"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class GivenVariable:
    name: str
    text: str


@dataclass(frozen=True)
class SettingLayers:
    """What each source says, as it was read at one moment."""

    home: Path
    environment: Mapping[tree.SettingPath, GivenVariable]
    dashboard: Mapping[str, Any]
    file: Mapping[str, Any]
    version: str = ""
    """Changes when one of the two files does."""

    def settings(self) -> tree.Settings:
        """All of it together, checked."""
        try:
            return tree.Settings(**(_merged(self) | {"home": self.home}))
        except ValidationError as error:
            raise _first_problem(error, self) from None

    def source(self, path: tree.SettingPath) -> SettingSource:
        if path in self.environment:
            return SettingSource.ENVIRONMENT
        if value_at(self.dashboard, path) is not None:
            return SettingSource.DASHBOARD
        return SettingSource.DEFAULT if value_at(self.file, path) is None else SettingSource.FILE


def load(*, is_connector: bool = False) -> tree.Settings:
    """The settings of this process; makes the home folder (readable by its owner only) if it is missing.

    A variable `POSTROOM_...` that is no setting is refused; for a connector, `CONNECTOR_...` too. Elsewhere such a
    variable may belong to another program.
    """
    home = (
        Path(os.environ.get(tree.HOME_VARIABLE) or tree.Settings.model_fields["home"].default).expanduser().absolute()
    )
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(tree.HOME_VARIABLE, f"{home} cannot be created: {error.strerror}") from error
    layers = read_layers(home, is_connector=is_connector)
    try:
        return layers.settings()
    except BadInput as error:
        if value_at(layers.dashboard, tuple(error.field.split("."))) is None:
            raise
        raise BadInput(error.field, f"{error.problem} (set in the dashboard: {home / tree.DASHBOARD_FILE})") from None


def read_layers(home: Path, *, is_connector: bool = False) -> SettingLayers:
    given = _from_environment(
        os.environ, (tree.ENV_PREFIX, tree.CONNECTOR_PREFIX) if is_connector else (tree.ENV_PREFIX,)
    )
    ours, file = (read_bytes(home / name) for name in (tree.DASHBOARD_FILE, tree.FILE_NAME))
    contents = _parsed(ours, home / tree.DASHBOARD_FILE), _parsed(file, home / tree.FILE_NAME)
    return SettingLayers(home, given, *contents, version_of(ours, file))


def value_at(content: Mapping[str, Any], path: tree.SettingPath) -> Any:
    """What a file says about a setting; None if nothing."""
    found: Any = content
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def shown_value(settings: tree.Settings, path: tree.SettingPath) -> str:
    """For people. A secret is shown only as set."""
    value: Any = settings
    for name in path:
        value = getattr(value, name)
    if isinstance(value, SecretStr):
        return _IS_SET
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _from_environment(
    environment: Mapping[str, str], our_prefixes: tuple[str, ...]
) -> dict[tree.SettingPath, GivenVariable]:
    """What variables set. One with a prefix of ours that sets nothing is an error. A variable whose name does not
    follow our own rule, because a specification fixes it, sets nothing while it is empty.
    """
    known = {setting.variable: setting for _, group in tree.reference() for setting in group}
    given = {}
    for name in sorted(environment):
        text, setting = environment[name], known.get(name.upper())
        if setting is not None and (text or setting.variable.startswith(tree.ENV_PREFIX)):
            given[setting.path] = GivenVariable(name, text)
        elif setting is None and name.upper().startswith(our_prefixes):
            raise BadInput(name, "no such setting; docs/settings.md lists them all")
    return given


def _parsed(content: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"is not valid TOML: {error}") from None
    for name, reason in _NOT_IN_THE_FILE.items():
        if name in parsed:
            raise BadInput(name, f"set {tree.ENV_PREFIX}{name.upper()} instead: {reason}")
    return parsed


def _merged(layers: SettingLayers) -> dict[str, Any]:
    """Every group is there, so that one validator reads them all."""
    merged: dict[str, Any] = {name: {} for name, _ in tree.setting_groups()}
    for content in (layers.file, layers.dashboard):
        for name, value in content.items():
            both = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = {**merged[name], **value} if both else value
    for (*group, name), given in layers.environment.items():
        place = merged[group[0]] if group else merged
        if isinstance(place, dict):  # else the file is wrong, and validation says so
            place[name] = given.text
    for path in _emptied(layers):
        del merged[path[0]][path[1]]
    return merged


def _emptied(layers: SettingLayers) -> list[tree.SettingPath]:
    """An empty text in the dashboard's file unsets a setting that `postroom.toml` sets."""
    if not layers.dashboard:
        return []
    optional = [each.path for _, group in tree.reference() for each in group if each.is_optional]
    return [path for path in optional if value_at(layers.dashboard, path) == "" and path not in layers.environment]


def _first_problem(error: ValidationError, layers: SettingLayers) -> BadInput:
    problem = error.errors(include_input=False, include_url=False)[0]
    parts = tuple(str(part) for part in problem["loc"])
    key = ".".join(parts)
    if problem["type"] == "extra_forbidden":
        return BadInput(key, "no such setting; docs/settings.md lists them all")
    text, given = problem_text(problem), layers.environment.get(parts[:2])
    if given is not None:
        return BadInput(given.name, f"{text} ({key})")
    return BadInput(key, text)
