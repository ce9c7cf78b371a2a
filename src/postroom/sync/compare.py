"""Compares the archive with the mailbox: after a walk, to correct labels and deletions that no listing of ids shows;
and for `postroom verify --against-source`, which only reads.

Changes that happen meanwhile are in the history, which is read afterwards; whatever looks wrong is checked again by
id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from postroom.accounts.account import Account
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import KnownId
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.mailboxes.protocol import Mailbox
from postroom.mailboxes.reader import gone_of
from postroom.sync.fetch import MailFetcher
from postroom.sync.labels import IdSet, align_label, listed_ids, strip_label
from postroom.sync.slices import Granularity, oldest_mail, plan
from postroom.sync.state import bad_of, find_state, get_state, record_comparison
from postroom.telemetry import logs

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Reconciled:
    deleted: int
    """Marked as deleted at the source."""
    restored: int
    """Marked so before, and there after all."""
    relabelled: int
    """Times that a message gained or lost a label."""


class Reconciliation:
    """As a chore of the sync: does its work once after each walk, and nothing otherwise."""

    def __init__(self, database: Database, account_id: str, bringer: MailFetcher, clock: Clock) -> None:
        self._database = database
        self._account_id = account_id
        self._bringer = bringer
        self._clock = clock

    async def __call__(self) -> None:
        state = await self._database.read(lambda tx: get_state(tx, self._account_id))
        if not state.needs_comparing:
            return
        outcome = await self.reconcile()
        await self._database.write(lambda tx: record_comparison(tx, self._account_id, state.walk, self._clock.now()))
        counts = {"deleted": outcome.deleted, "restored": outcome.restored, "relabelled": outcome.relabelled}
        log.info("walk.reconciled", walk=state.walk, **counts)

    async def reconcile(self) -> Reconciled:
        """Deletions first: mail that is gone keeps the labels that it had."""
        names = await self._bringer.names.refresh()
        deleted, restored = await self._compare_presence()
        relabelled = 0
        for label_id, name in names.items():
            relabelled += await align_label(self._bringer.mailbox, self._bringer.store, label_id, name)
        for unknown in sorted(await self._bringer.store.label_names() - set(names.values())):
            relabelled += await strip_label(self._bringer.store, unknown)
        return Reconciled(deleted, restored, relabelled)

    async def _compare_presence(self) -> tuple[int, int]:
        deleted = restored = 0
        with IdSet() as listed, self._bringer.store.place.reader() as reader:
            async for ids in listed_ids(self._bringer.mailbox):
                listed.add(ids)
            portions = reader.all_ids(self._bringer.store.email)
            while portion := await asyncio.to_thread(next, portions, None):
                unlisted = set(listed.lacking([each.gmail_id for each in portion]))
                deleted += await self._mark(portion, unlisted)
                restored += await self._unmark(portion, unlisted)
        return deleted, restored

    async def _mark(self, portion: Sequence[KnownId], unlisted: set[str]) -> int:
        missed = [each.gmail_id for each in portion if not each.is_deleted and each.gmail_id in unlisted]
        gone = await gone_of(self._bringer.mailbox, missed)
        if gone:
            await self._bringer.store.mark_deleted(gone, self._clock.now())
        return len(gone)

    async def _unmark(self, portion: Sequence[KnownId], unlisted: set[str]) -> int:
        back = [each.gmail_id for each in portion if each.is_deleted and each.gmail_id not in unlisted]
        if back:
            await self._bringer.store.unmark_deleted(back)
        return len(back)


Progress = Callable[[int], None]


class SourceGapKind(StrEnum):
    MISSING = "not in the archive"
    MARKED = "marked as deleted, and at the source"


@dataclass(frozen=True, slots=True)
class SourceGap:
    gmail_id: str
    lack: SourceGapKind


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What the comparison of one account found."""

    account: str
    watermark: int
    """Seconds since 1970: only mail dated before it was compared. Zero: the account was never synced."""
    listed: int = 0
    stored: int = 0
    bad: tuple[str, ...] = ()
    """Listed, and known to be unreadable: `postroom sync bad list` says why."""
    gaps: tuple[SourceGap, ...] = ()
    gone: tuple[str, ...] = ()
    """No longer at the source, and not yet marked so: kept, of course, and no gap. The next sync marks them."""

    @property
    def is_complete(self) -> bool:
        return not self.gaps


class SourceCheck:
    def __init__(self, database: Database, account: Account, mailbox: Mailbox, archive: ArchiveBackend) -> None:
        self._database = database
        self._account = account
        self._mailbox = mailbox
        self._archive = archive

    async def run(self, progress: Progress = lambda listed: None) -> SourceReport:
        """`progress` is told how many ids were listed since it was last told."""
        email = self._account.email
        state = await self._database.read(lambda tx: find_state(tx, self._account.id))
        if state is None or state.watermark == 0:
            return SourceReport(email, 0)
        suspects: dict[str, SourceGapKind] = {}
        with IdSet() as listed, self._archive.reader() as reader:
            async for ids in self._listed_below(state.watermark):
                fresh = listed.lacking(ids)
                listed.add(fresh)
                suspects |= await self._lacking(reader, fresh)
                progress(len(fresh))
            gone = await self._gone(reader, listed, state.watermark)
            bad = await self._bad_of(suspects)
            lacking = await self._lacking(reader, sorted(suspects.keys() - bad))
            return SourceReport(
                account=email,
                watermark=state.watermark,
                listed=len(listed),
                stored=len(listed) - len(bad) - len(lacking),
                bad=tuple(sorted(bad)),
                gaps=await self._gaps(lacking),
                gone=tuple(gone),
            )

    async def _listed_below(self, watermark: int) -> AsyncIterator[list[str]]:
        """By months, so that no list is very deep."""
        oldest = await oldest_mail(self._mailbox, watermark)
        for part in plan(oldest, watermark, Granularity.MONTH):
            if part.end is not None:
                async for ids in listed_ids(self._mailbox, part):
                    yield ids

    async def _lacking(self, reader: MailReader, ids: Sequence[str]) -> dict[str, SourceGapKind]:
        known = await asyncio.to_thread(reader.look_up, self._account.email, ids)
        missing = {each: SourceGapKind.MISSING for each in ids if each not in known}
        return missing | {each: SourceGapKind.MARKED for each in ids if each in known and known[each].is_deleted}

    async def _bad_of(self, suspects: Mapping[str, SourceGapKind]) -> set[str]:
        rows = await self._database.read(lambda tx: bad_of(tx, self._account.id))
        return suspects.keys() & {row.key for row in rows}

    async def _gaps(self, lacking: Mapping[str, SourceGapKind]) -> tuple[SourceGap, ...]:
        """Without those that were deleted at the source meanwhile."""
        gone = set(await gone_of(self._mailbox, list(lacking)))
        return tuple(SourceGap(each, lacking[each]) for each in sorted(lacking.keys() - gone))

    async def _gone(self, reader: MailReader, listed: IdSet, watermark: int) -> list[str]:
        """Held as present and not listed. An import's date may differ from Gmail's, so each is asked for by itself."""
        gone: list[str] = []
        portions = reader.all_ids(self._account.email)
        while portion := await asyncio.to_thread(next, portions, None):
            held = [each.gmail_id for each in portion if not each.is_deleted and each.date_s < watermark]
            gone += await gone_of(self._mailbox, listed.lacking(held))
        return gone
