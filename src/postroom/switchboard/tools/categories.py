"""The owner's tools for categories. Connectors get a change with their next heartbeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroom.audit import Actor
from postroom.contract import categories as contract
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.category_book import CategoryBook, correct_sender, forget_correction
from postroom.switchboard.toolbox import Tool


class CategoryTools:
    def __init__(self, database: Database, clock: Clock, book: CategoryBook) -> None:
        self._database = database
        self._clock = clock
        self._book = book

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.CORRECT_CATEGORY,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Put mail from an address or a domain into a category, or with `none` into no category. This wins over "
            "what the headers look like.",
            self.correct,
        )
        yield Tool(
            contract.FORGET_CORRECTION,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Take back where mail from a sender was put.",
            self.forget,
        )

    async def correct(
        self, caller: Caller, given: contract.CategoryCorrectionArguments
    ) -> contract.CategoryCorrectionReply:
        who, now, known = Actor.of(caller), self._clock.now(), self._book.defined
        made = await self._database.write(lambda tx: correct_sender(tx, known, given.sender, given.category, who, now))
        return contract.CategoryCorrectionReply.model_validate(made)

    async def forget(
        self, caller: Caller, given: contract.CorrectedSenderArguments
    ) -> contract.CategoryCorrectionReply:
        who, now = Actor.of(caller), self._clock.now()
        gone = await self._database.write(lambda tx: forget_correction(tx, given.sender, who, now))
        return contract.CategoryCorrectionReply.model_validate(gone)
