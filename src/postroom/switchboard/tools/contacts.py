"""The owner's tools for contacts. Connectors get a change with their next heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from postroom.audit import Actor
from postroom.contract import contacts as contract
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard import contacts
from postroom.switchboard.contacts import Contact
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
