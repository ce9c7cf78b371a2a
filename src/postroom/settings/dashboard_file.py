"""`dashboard.toml` in the home folder: what was set in the dashboard. Only Postroom writes it, as a whole.

What the environment sets is never overridden, and no secret is in it: keys are in the vault. A change is checked
together with everything else that is set, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from postroom.domain.errors import BadInput
from postroom.settings.files import FORM_IS_OLD, locked, replace_file
from postroom.settings.layers import SettingLayers, SettingSource, read_layers, shown_value, value_at
from postroom.settings.tree import DASHBOARD_FILE, Setting, SettingPath, Settings, reference

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
        path = self.before.home / DASHBOARD_FILE
        with locked(path):
            now = read_layers(self.before.home)
            if now.dashboard == self.after.dashboard and now.file == self.after.file:
                return
            require_version(now, self.before.version)
            replace_file(path, _text_of(self.after.dashboard))


def editable(key: str) -> Setting:
    if key not in EDITABLE:
        raise BadInput(key, "cannot be set in the dashboard; docs/settings.md says where it can")
    return _by_key()[key]


@cache
def _by_key() -> dict[str, Setting]:
    return {setting.key: setting for _, group in reference() for setting in group if setting.key}


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


def _refuse_fixed(layers: SettingLayers, path: SettingPath) -> None:
    if (given := layers.environment.get(path)) is not None:
        key = ".".join(path)
        raise BadInput(key, f"is set by {given.name} in the environment, which always wins; change it there")


def _with(layers: SettingLayers, wanted: Mapping[SettingPath, str]) -> dict[str, Any]:
    content = {name: dict(group) for name, group in layers.dashboard.items()}
    for path, text in wanted.items():
        group, name = path
        if text or (editable(".".join(path)).is_optional and value_at(layers.file, path) is not None):
            content.setdefault(group, {})[name] = text
        else:
            content.get(group, {}).pop(name, None)
    return content


def _tidied(layers: SettingLayers, wanted: Mapping[SettingPath, str]) -> SettingLayers:
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


def _settings_without(layers: SettingLayers) -> Settings | None:
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
