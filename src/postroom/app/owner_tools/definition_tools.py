"""Tools for what the owner defines as a whole: the tier policy, a list of rules in the database, and the categories,
`categories.toml` in the home folder. A form made from an older state changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from postroom import audit
from postroom.audit import Actor
from postroom.contract import settings as contract
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role
from postroom.mail.tier_policy import TierPolicy
from postroom.queue import JobQueue
from postroom.settings.files import FORM_IS_OLD, locked, read_bytes, replace_file, version_of
from postroom.switchboard.category_book import OWN_FILE, CategoryBook
from postroom.switchboard.tier_policy import all_rules_version, replace_policy
from postroom.switchboard.toolbox import Tool


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
