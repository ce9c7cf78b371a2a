"""An IMAP mailbox on a real server, with its places in a database."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sqlalchemy import update

from postroom.accounts.account import Account, NewAccount, Provider, add_account
from postroom.accounts.places import DatabasePlaces
from postroom.db import Database, connect
from postroom.db.tables.accounts import mailbox_journals
from postroom.domain.clock import Clock, SystemClock
from postroom.mailboxes.imap.connection import ImapLogin, Patience
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.imap.places import digest
from postroom.mailboxes.imap.session import ImapSession
from postroom.mailboxes.limiter import limiter_for
from postroom.mailboxes.ports import PriorityLane
from tests.support.databases import install
from tests.support.dovecot import Dovecot, MailServer, dovecot
from tests.support.gmail_sim import UNHURRIED

BARE = "IMAP4rev1 UIDPLUS"
"""What a server says that has none of the extensions which save work."""
IMPATIENT = Patience(connect_s=5, silence_s=5, total_s=20, max_literal=32 << 20)


def crlf(raw: bytes) -> bytes:
    """With the line ends that an IMAP server gives every message."""
    return raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


_FOLDERS = {"INBOX": "INBOX", "SPAM": "Junk", "TRASH": "Trash", "SENT": "Sent"}


S = TypeVar("S", bound=MailServer)


@dataclass(frozen=True)
class ServerRig(Generic[S]):
    server: S
    database: Database
    account: Account
    session: ImapSession
    clock: Clock

    @property
    def mailbox(self) -> ImapMailbox:
        return ImapMailbox(self.session, PriorityLane.USER_ACTION)

    def deliver(self, raw: bytes, labels: frozenset[str] = frozenset({"INBOX"})) -> str:
        for label in sorted(labels & _FOLDERS.keys()):
            self.server.deliver(raw, _FOLDERS[label])
        return digest(crlf(raw))

    async def forget_history(self) -> None:
        """As after the places were lost: they have another journal."""
        statement = update(mailbox_journals).values(epoch="another")
        await self.database.write(lambda tx: tx.execute(statement).rowcount)


ImapRig = ServerRig[Dovecot]


def session_of(
    login: ImapLogin, database: Database, account: Account, clock: Clock, patience: Patience = IMPATIENT
) -> ImapSession:
    limiter = limiter_for(None, clock, tuning=UNHURRIED, dice=random.Random(1))
    return ImapSession(lambda: login, DatabasePlaces(database, account.id), limiter, clock, patience)


async def imap_account(database: Database, server: MailServer, clock: Clock) -> Account:
    new = NewAccount(server.email, str(server.login().address), provider=Provider.IMAP)
    return await database.write(lambda tx: add_account(tx, new, clock.now()))


@contextlib.asynccontextmanager
async def imap_rig(folder: Path, database: Database | None = None, *, capability: str = "") -> AsyncIterator[ImapRig]:
    with dovecot(capability=capability) as server:
        async with rig_on(server, folder, database) as rig:
            yield rig


@contextlib.asynccontextmanager
async def rig_on(server: S, folder: Path, database: Database | None = None) -> AsyncIterator[ServerRig[S]]:
    """An account on a running server."""
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        if database is None:
            database = await connect(f"sqlite:///{install(folder / 'home') / 'postroom.db'}")
            stack.push_async_callback(database.close)
        account = await imap_account(database, server, clock)
        session = session_of(server.login(), database, account, clock)
        stack.push_async_callback(session.close)
        yield ServerRig(server, database, account, session, clock)
