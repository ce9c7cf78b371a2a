"""Tools that reach outside for a message: remote pictures, of a message or always of a sender; and lists that the
owner left by mail or on a web page. Leaving by one click is an action (`actions.do` with the type `unsubscribe`), which
keeps track by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroom import audit
from postroom.actions.lifecycle import get_action
from postroom.actions.unsubscribing import Unsubscription, forget_unsubscription, record_unsubscription, sender_of
from postroom.app.remote_pictures import PictureLoader, forget_sender
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.service import read_apart
from postroom.audit import Actor
from postroom.contract import actions as contract
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
from postroom.mail.unsubscribing import UNSUBSCRIBE, UnsubscribeWay
from postroom.switchboard.toolbox import Tool


class PictureTools:
    def __init__(self, database: Database, clock: Clock, loader: PictureLoader) -> None:
        self._database = database
        self._clock = clock
        self._loader = loader

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.LOAD_PICTURES,
            Role.DASHBOARD,
            Permission.ACT,
            "Load the remote pictures of a message through Postroom. Its sender may learn that it was opened.",
            self.load,
        )
        yield Tool(
            contract.ALLOW_PICTURES,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Load remote pictures whenever mail from the sender of this message is opened, if it is authenticated.",
            self.allow,
        )
        yield Tool(
            contract.FORGET_PICTURES,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Stop loading the remote pictures of a sender automatically.",
            self.forget,
        )

    async def load(self, caller: Caller, given: contract.ArchivedMailArguments) -> contract.PicturesReply:
        mailbox = normal_email(given.endpoint_identity, "endpoint_identity")
        found = await self._loader.load(mailbox, given.key, Actor.of(caller))
        return contract.PicturesReply(loaded=len(found.contents), failed=found.failed, left_out=found.left_out)

    async def allow(self, caller: Caller, given: contract.ArchivedMailArguments) -> contract.PictureSenderReply:
        mailbox = normal_email(given.endpoint_identity, "endpoint_identity")
        made = await self._loader.allow(mailbox, given.key, Actor.of(caller))
        return contract.PictureSenderReply.model_validate(made)

    async def forget(self, caller: Caller, given: contract.PictureSenderArguments) -> contract.PictureSenderReply:
        who, now = Actor.of(caller), self._clock.now()
        gone = await self._database.write(lambda tx: forget_sender(tx, given.sender, who, now))
        return contract.PictureSenderReply.model_validate(gone)


class UnsubscribeTools:
    def __init__(self, database: Database, clock: Clock, archive: ArchiveBackend) -> None:
        self._database = database
        self._clock = clock
        self._archive = archive

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.NOTE_UNSUBSCRIBED,
            Role.DASHBOARD,
            Permission.ACT,
            "Record that the owner left the list of a message by mail or on its web page, to see whether mail still "
            "comes.",
            self.note,
        )
        yield Tool(
            contract.FORGET_UNSUBSCRIBED,
            Role.DASHBOARD,
            Permission.ACT,
            "Forget that the owner left a list. Nothing is sent.",
            self.forget,
        )

    async def note(self, caller: Caller, given: contract.NoteUnsubscribedArguments) -> contract.UnsubscribedReply:
        who, now = Actor.of(caller), self._clock.now()
        mailbox = normal_email(given.endpoint_identity, "endpoint_identity")
        sender = await read_apart(self._archive, lambda archive: _sender(archive, mailbox, given.key))
        left = Unsubscription(mailbox, sender, UnsubscribeWay(given.way), now, f"{who.role} {who.name}", given.action)

        def change(tx: Tx) -> None:
            if given.action is not None:
                get_action(tx, given.action)
            record_unsubscription(tx, left)
            audit.record(tx, who, "unsubscribe.note", ("sender", sender), now, after={"way": given.way})

        await self._database.write(change)
        return contract.UnsubscribedReply.model_validate(left)

    async def forget(self, caller: Caller, given: contract.UnsubscribedArguments) -> contract.UnsubscribedReply:
        who, now = Actor.of(caller), self._clock.now()
        mailbox = normal_email(given.endpoint_identity, "endpoint_identity")
        gone = await self._database.write(lambda tx: forget_unsubscription(tx, mailbox, given.sender, who, now))
        return contract.UnsubscribedReply.model_validate(gone)


def _sender(archive: MailReader, mailbox: str, key: str) -> str:
    message = archive.message(mailbox, key)
    if message is None:
        raise NotFound("key", f"the archive has no message {key} of {mailbox}")
    headers = archive.headers_of(message)
    sender = sender_of(headers)
    if UNSUBSCRIBE not in headers or not sender:
        raise BadInput("key", "this message does not say how to unsubscribe")
    return sender
