"""Tools for remote pictures: load those of a message, or always those of a sender."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroom.app.remote_pictures import PictureLoader, forget_sender
from postroom.audit import Actor
from postroom.contract import outside as contract
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
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
