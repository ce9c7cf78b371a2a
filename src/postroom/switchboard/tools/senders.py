"""The owner's tools about senders: contacts and categories. Connectors get a change with their next heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from postroom.audit import Actor
from postroom.contract import senders as contract
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard import contacts
from postroom.switchboard.contacts import Contact
from postroom.switchboard.definitions import CategoryBook, correct_sender, forget_correction
from postroom.switchboard.toolbox import Tool


class ContactTools:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.ADD_CONTACT,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Add a contact, or change the name and priority of a known one.",
            self.add,
        )
        yield Tool(
            contract.REMOVE_CONTACT,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Remove a contact. Neither sent mail nor an imported address book brings it back.",
            self.remove,
        )
        yield Tool(
            contract.SET_CONTACT_PRIORITY,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Say whether a contact's mail is served first.",
            self.set_priority,
        )

    async def add(self, caller: Caller, given: contract.NewContactArguments) -> contract.ContactReply:
        def add(tx: Tx, who: Actor, now: datetime) -> Contact:
            mailbox, has_priority = given.endpoint_identity, given.has_priority
            return contacts.add_contact(
                tx, given.address, given.name, who, now, mailbox=mailbox, has_priority=has_priority
            )

        return await self._change(caller, add)

    async def remove(self, caller: Caller, given: contract.ContactArguments) -> contract.ContactReply:
        return await self._change(caller, lambda tx, who, now: contacts.remove_contact(tx, given.address, who, now))

    async def set_priority(self, caller: Caller, given: contract.ContactPriorityArguments) -> contract.ContactReply:
        def change(tx: Tx, who: Actor, now: datetime) -> Contact:
            return contacts.set_contact_priority(tx, given.address, given.has_priority, who, now)

        return await self._change(caller, change)

    async def _change(self, caller: Caller, change: Callable[[Tx, Actor, datetime], Contact]) -> contract.ContactReply:
        who, now = Actor.of(caller), self._clock.now()
        return contract.ContactReply.model_validate(await self._database.write(lambda tx: change(tx, who, now)))


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
