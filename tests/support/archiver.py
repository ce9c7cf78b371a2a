"""A mailbox at the stand-in, the same mail in an archive, and a sync that has come far enough for an archiver to
run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.archive.certificates import Certificate, Removal, RemovalAction
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.service import SharedArchive
from postroom.archive.shards.certificates import certificates_path, list_certificates
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.db import Database, Tx
from postroom.domain.clock import SystemClock
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.settings import ArchiverSettings
from postroom.sim.gmail.server import GmailSim
from postroom.sim.gmail.sources import MailboxSource
from postroom.sync import state
from postroom.sync.archiver import Archiver, ArchiverContext, ArchiveReport, open_archiver
from postroom.sync.removal import policy_of
from postroom.sync.slices import Granularity, Slice
from tests.support.gmail_sim import EagerClock, client_of
from tests.support.mail import HOUR_MS, OWNER, START_MS

CLOCK = SystemClock()
FROM_INBOX = Removal(RemovalAction.LABEL, "INBOX")


def hour(index: int) -> int:
    """When letter `index` of `sim_mail.mailbox` was received, in seconds."""
    return (START_MS + index * HOUR_MS) // 1_000


@dataclass(frozen=True)
class ArchiverScene:
    sim: GmailSim
    database: Database
    account: Account
    root: Path

    @asynccontextmanager
    async def archiver(
        self, removal: Removal = FROM_INBOX, *, batch_size: int = 300, settings: ArchiverSettings | None = None
    ) -> AsyncIterator[Archiver]:
        label = removal.label or None
        policy = policy_of(settings or ArchiverSettings(), CLOCK.now(), action=removal.action, label=label)
        site = ArchiverContext(self.database, EagerClock(), SharedArchive(FileArchive(self.root)), batch_size)
        async with (
            client_of(self.sim) as client,
            open_archiver(site, self.account, policy, GmailMailbox(client)) as archiver,
        ):
            yield archiver

    async def run(
        self,
        removal: Removal = FROM_INBOX,
        *,
        batch_size: int = 300,
        settings: ArchiverSettings | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> ArchiveReport:
        async with self.archiver(removal, batch_size=batch_size, settings=settings) as archiver:
            return await archiver.run(stop)

    def labels(self) -> dict[str, set[str]]:
        """What every message at the source has now."""
        return {str(mail["id"]): set(mail["label_ids"]) for mail in self.sim.control.truth(hashes=False)}  # type: ignore[call-overload]

    def in_inbox(self) -> set[str]:
        return {message_id for message_id, labels in self.labels().items() if "INBOX" in labels}

    def certificates(self) -> list[Certificate]:
        return list_certificates(self.root, OWNER, limit=1_000_000)

    def on_disk(self) -> set[tuple[str, str]]:
        return certified_on_disk(self.root)


def certified_on_disk(root: Path) -> set[tuple[str, str]]:
    """Gmail id and action of every certificate, read with nothing but the file."""
    path = certificates_path(root, OWNER)
    if not path.exists():
        return set()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return set(connection.execute("SELECT gmail_id, action FROM certificates"))


def incoming(source: MailboxSource, index: int, provenance: Provenance = Provenance.API) -> IncomingMail:
    summary = source.summary(index)
    return IncomingMail(
        raw=source.raw(index),
        provenance=provenance,
        gmail_id=summary.id,
        thread_id=summary.thread_id,
        labels=summary.label_ids,
        received=datetime.fromtimestamp(summary.internal_date / 1_000, UTC),
    )


def store(root: Path, mails: Iterable[IncomingMail]) -> None:
    with FileArchiveWriter(root, purpose="a test") as archive:
        archive.store(OWNER, list(mails))


def as_takeout(mail: IncomingMail, *, changed: bool) -> IncomingMail:
    raw = b"X-GM-THRID: 1\n" + mail.raw if changed else mail.raw
    return replace(mail, provenance=Provenance.TAKEOUT, raw=raw)


def advance_watermark(tx: Tx, account_id: str, to: int) -> None:
    """Claim, as the sync would once it is true, that all mail before `to` is here."""
    known = state.find_state(tx, account_id)
    start = 0 if known is None else known.watermark
    done = Slice(0, to)
    begun = state.begin_walk(tx, account_id, [done], to, Granularity.MONTH, CLOCK.now())
    state.finish_slice(tx, account_id, begun.walk, done, 0, CLOCK.now())
    assert state.get_state(tx, account_id).watermark == max(start, to)


async def archiver_scene(
    sim: GmailSim, source: MailboxSource, database: Database, root: Path, watermark: int
) -> ArchiverScene:
    """All of the source's mail is in the archive, and the sync has come as far as the watermark."""
    new = NewAccount(OWNER, sim.url)
    account = await database.write(lambda tx: add_account(tx, new, CLOCK.now()))
    await database.write(lambda tx: advance_watermark(tx, account.id, watermark))
    store(root, (incoming(source, index) for index in range(source.count())))
    return ArchiverScene(sim, database, account, root)
