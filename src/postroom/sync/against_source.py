"""Holds the archive against the source: every id that the source lists below the watermark is stored, or bad, or a gap.

Reads only, and may run beside a sync. Whatever looks wrong is looked at once more at the end, because mail comes, goes
and is stored meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from postroom.accounts.store import Account
from postroom.archive.place import ArchivePlace, MailReader
from postroom.db import Database
from postroom.gmail.client import GmailClient
from postroom.sync.id_set import IdSet
from postroom.sync.listing import query_of
from postroom.sync.membership import listed_ids
from postroom.sync.planning import oldest_mail
from postroom.sync.reconcile import gone_of
from postroom.sync.slices import Granularity, plan
from postroom.sync.state import bad_of, find_state

Progress = Callable[[int], None]


class Lack(StrEnum):
    MISSING = "not in the archive"
    MARKED = "marked as deleted, and at the source"


@dataclass(frozen=True, slots=True)
class Gap:
    gmail_id: str
    lack: Lack


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
    gaps: tuple[Gap, ...] = ()
    gone: tuple[str, ...] = ()
    """No longer at the source, and not yet marked so: kept, of course, and no gap. The next sync marks them."""

    @property
    def is_complete(self) -> bool:
        return not self.gaps


class SourceCheck:
    def __init__(self, database: Database, account: Account, client: GmailClient, archive: ArchivePlace) -> None:
        self._database = database
        self._account = account
        self._client = client
        self._archive = archive

    async def run(self, progress: Progress = lambda listed: None) -> SourceReport:
        """`progress` is told how many ids were listed since it was last told."""
        email = self._account.email
        state = await self._database.read(lambda tx: find_state(tx, self._account.id))
        if state is None or state.watermark == 0:
            return SourceReport(email, 0)
        suspects: dict[str, Lack] = {}
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
        oldest = await oldest_mail(self._client, watermark)
        for part in plan(oldest, watermark, Granularity.MONTH):
            if part.end is not None:
                async for ids in listed_ids(self._client, query_of(part)):
                    yield ids

    async def _lacking(self, reader: MailReader, ids: Sequence[str]) -> dict[str, Lack]:
        known = await asyncio.to_thread(reader.look_up, self._account.email, ids)
        missing = {each: Lack.MISSING for each in ids if each not in known}
        return missing | {each: Lack.MARKED for each in ids if each in known and known[each].is_deleted}

    async def _bad_of(self, suspects: Mapping[str, Lack]) -> set[str]:
        rows = await self._database.read(lambda tx: bad_of(tx, self._account.id))
        return suspects.keys() & {row.key for row in rows}

    async def _gaps(self, lacking: Mapping[str, Lack]) -> tuple[Gap, ...]:
        """Without those that were deleted at the source meanwhile."""
        gone = set(await gone_of(self._client, list(lacking)))
        return tuple(Gap(each, lacking[each]) for each in sorted(lacking.keys() - gone))

    async def _gone(self, reader: MailReader, listed: IdSet, watermark: int) -> list[str]:
        """Held as present and not listed. An import's date may differ from Gmail's, so each is asked for by itself."""
        gone: list[str] = []
        portions = reader.all_ids(self._account.email)
        while portion := await asyncio.to_thread(next, portions, None):
            held = [each.gmail_id for each in portion if not each.is_deleted and each.date_s < watermark]
            gone += await gone_of(self._client, listed.lacking(held))
        return gone
