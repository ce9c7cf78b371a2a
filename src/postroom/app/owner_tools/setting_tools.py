"""Tools for settings that the dashboard may change (`dashboard.toml`), for keys in the vault, for a test call of the
model as it is set, and for what the owner defines as a whole: the tier policy, a list of rules in the database, and the
categories, `categories.toml` in the home folder.

What a running process reads only at its start says so. A form made from an older state changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from postroom import audit
from postroom.audit import Actor
from postroom.contract import settings as contract
from postroom.db import Tx
from postroom.domain.checkups import first_failure
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.mail.tier_policy import TierPolicy
from postroom.queue import JobQueue
from postroom.settings import (
    DISCORD_TOKEN_ENTRY,
    MODEL_KEY_ENTRY,
    CurrentSettings,
    SettingLayers,
    Settings,
    SettingSource,
    read_layers,
    shown_value,
)
from postroom.settings.files import FORM_IS_OLD, locked, read_bytes, replace_file, version_of
from postroom.settings.live import EDITABLE, SettingsChange, editable, origin_of, planned
from postroom.switchboard.definitions import OWN_FILE, CategoryBook, all_rules_version, replace_policy
from postroom.switchboard.spending import ModelBudget
from postroom.switchboard.toolbox import Tool
from postroom.telemetry import logs
from postroom.triage.model import meter_for, try_model
from postroom.vault import Vault

_SENSITIVE = {
    "model": SensitiveChange.MODEL,
    "backfill": SensitiveChange.CEILINGS,
    "discord": SensitiveChange.NOTIFICATIONS,
    "sync": SensitiveChange.NOTIFICATIONS,
    "digest": SensitiveChange.NOTIFICATIONS,
}
"""By the group of a setting."""
_SUBJECT = ("settings", "dashboard.toml")


class SettingTools:
    def __init__(self, queue: JobQueue, current: CurrentSettings, vault: Vault, budget: ModelBudget) -> None:
        self._queue = queue
        self._current = current
        self._home = current.now.home
        _ = current.at_start  # what differs from it later was changed
        self._vault = vault
        self._budget = budget

    def tools(self) -> Iterator[Tool[Any, Any]]:
        dashboard = Role.DASHBOARD
        yield Tool(
            contract.LIST_SETTINGS,
            dashboard,
            Permission.READ,
            "List the settings that the dashboard may change, with where each value comes from. Secrets are not shown.",
            self.list_settings,
            reads_only=True,
        )
        yield Tool(
            contract.CHANGE_SETTINGS,
            dashboard,
            Permission.SETTINGS,
            "Change settings of the model, backfill and notifications. Refused for tokens.",
            self.change,
        )
        yield Tool(
            contract.STORE_SECRET,
            dashboard,
            Permission.SETTINGS,
            "Store the model's key or the Discord bot's token in the vault, or remove it. Refused for tokens.",
            self.store_secret,
        )
        yield Tool(
            contract.CHECK_MODEL,
            dashboard,
            Permission.SETTINGS,
            "Try the model as it is set: key, price, then one tiny call, which costs money.",
            self.check_model,
        )

    async def list_settings(self, caller: Caller, given: contract.ListSettingsArguments) -> contract.SettingsReply:
        layers = read_layers(self._home)
        settings = layers.settings()
        self._current.refresh()
        waiting = self._current.waiting(settings)
        return contract.SettingsReply(
            version=layers.version,
            settings=[_shown(layers, settings, key, needs_restart=key in waiting) for key in EDITABLE],
            secrets=[self._secret(layers, name) for name in (MODEL_KEY_ENTRY, DISCORD_TOKEN_ENTRY)],
        )

    async def change(self, caller: Caller, given: contract.ChangeSettingsArguments) -> contract.ChangedSettingsReply:
        change = planned(self._home, given.version, given.values)
        for kind in sorted({_SENSITIVE[key.partition(".")[0]] for key in change.keys}, key=lambda each: each.name):
            require_proof(caller, kind)
        if change.keys:
            await self._write(caller, change)
        self._current.refresh()
        layers = read_layers(self._home)
        waiting = self._current.waiting(layers.settings())
        return contract.ChangedSettingsReply(version=layers.version, changed=list(change.keys), need_restart=waiting)

    async def _write(self, caller: Caller, change: SettingsChange) -> None:
        who, now = Actor.of(caller), self._queue.clock.now()
        before, after = change.values(change.before), change.values(change.after)

        def write(tx: Tx) -> None:
            """The file is written last, so that a file that cannot be written leaves no entry."""
            audit.record(tx, who, "settings.change", _SUBJECT, now, before=before, after=after)
            change.write()

        await self._queue.database.write(write)

    async def store_secret(self, caller: Caller, given: contract.StoreSecretArguments) -> contract.SecretReply:
        name, secret = given.name, None if given.secret is None else given.secret.get_secret_value()
        logs.learn_secrets([secret] if secret else [])
        place = self._secret(read_layers(self._home), name)
        if place.place in ("environment", "file"):
            where = place.variable or "postroom.toml"
            raise BadInput(name, f"is set in {where}, which wins over the vault; change or remove it there")
        require_proof(caller, _SENSITIVE[name.partition(".")[0]])
        who, now = Actor.of(caller), self._queue.clock.now()

        def write(tx: Tx) -> None:
            after = {"stored": secret is not None}
            audit.record(tx, who, "settings.secret", ("secret", name), now, after=after)
            if secret is None:
                self._vault.remove(name)
            else:
                self._vault.put(name, secret.encode())

        await self._queue.database.write(write)
        return self._secret(read_layers(self._home), name)

    async def check_model(self, caller: Caller, given: contract.CheckModelArguments) -> contract.ModelCheckReply:
        model = read_layers(self._home).settings().model
        database, clock = self._queue.database, self._queue.clock
        tries = try_model(model, self._vault, database, clock, self._budget)
        findings = [finding async for finding in tries]
        tariff = await asyncio.to_thread(lambda: meter_for(model).tariff)
        return contract.ModelCheckReply(
            works=model.provider is not None and first_failure(findings) is None,
            price=None if tariff is None else tariff.describe(),
            findings=[
                contract.CheckFinding(verdict=each.verdict.value, message=each.message, remedy=each.remedy)
                for each in findings
            ],
        )

    def _secret(self, layers: SettingLayers, name: str) -> contract.SecretReply:
        group, field = name.split(".")
        source, given = layers.source((group, field)), layers.environment.get((group, field))
        if source in (SettingSource.ENVIRONMENT, SettingSource.FILE):
            variable = None if given is None else given.name
            return contract.SecretReply(name=name, place=source.value, variable=variable)
        place = "vault" if self._is_kept(name) else "none"
        return contract.SecretReply(name=name, place=place, variable=None)

    def _is_kept(self, name: str) -> bool:
        try:
            return self._vault.get(name) is not None
        except Fatal:  # it is there, but the vault's key is not, as in a restored home
            return True


def _shown(layers: SettingLayers, settings: Settings, key: str, *, needs_restart: bool) -> contract.SettingReply:
    source, variable = origin_of(layers, key)
    known, value = editable(key), shown_value(settings, editable(key).path)
    return contract.SettingReply(
        key=key,
        value=value,
        source=source.value,
        variable=variable or None,
        default=known.default.lower() if known.default in ("True", "False") else known.default,
        help=known.help,
        needs_restart=needs_restart,
    )


class DefinitionTools:
    def __init__(self, queue: JobQueue, home: Path) -> None:
        self._queue = queue
        self._path = home / OWN_FILE

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.REPLACE_POLICY,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Replace the tier policy: which mail is taken in whole, by its headers only, or not at all.",
            self.replace_policy,
        )
        yield Tool(
            contract.DEFINE_CATEGORIES,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Replace your own definitions of categories. They hold from the next start of Postroom.",
            self.define_categories,
        )

    async def replace_policy(self, caller: Caller, given: contract.ReplacePolicyArguments) -> contract.PolicyReply:
        who, now = Actor.of(caller), self._queue.clock.now()

        def replace(tx: Tx) -> tuple[TierPolicy, str]:
            if all_rules_version(tx, lock=True) != given.version:
                raise BadInput("version", FORM_IS_OLD)
            return replace_policy(tx, given.rules, who, now), all_rules_version(tx)

        policy, version = await self._queue.database.write(replace)
        return contract.PolicyReply(version=version, rules=len(policy.rules))

    async def define_categories(
        self, caller: Caller, given: contract.DefineCategoriesArguments
    ) -> contract.DefinedCategoriesReply:
        content = given.definitions.encode() if given.definitions.strip() else b""
        names, who, now = _names_in(content.decode()), Actor.of(caller), self._queue.clock.now()

        def define(tx: Tx) -> None:
            """The file is written last, so that a file that cannot be written leaves no entry."""
            audit.record(tx, who, "categories.define", ("file", OWN_FILE), now, after={"categories": names})
            self._write(content, given.version)

        if read_bytes(self._path) != content:
            await self._queue.database.write(define)
        return contract.DefinedCategoriesReply(version=version_of(content), categories=names)

    def _write(self, content: bytes, version: str) -> None:
        with locked(self._path):
            now = read_bytes(self._path)
            if now == content:
                return
            if version_of(now) != version:
                raise BadInput("version", FORM_IS_OLD)
            replace_file(self._path, content)


def _names_in(definitions: str) -> list[str]:
    try:
        return list(CategoryBook(definitions).defined.names)
    except BadInput as error:
        raise BadInput(f"definitions.{error.field}", error.problem) from None
