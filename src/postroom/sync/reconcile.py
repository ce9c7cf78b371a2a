"""After a walk: what no list of ids shows. Mail that the archive knew already may have other labels by now, or be gone.

The history id is read before this begins and the changes since then are read after it: so whatever happens to the
mailbox meanwhile is put right by its history, and each step may rest on what was listed a while ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from postroom.archive.model import KnownId
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Throttled, Unreachable
from postroom.gmail.fetching import Failed, Missing
from postroom.gmail.resources import Format
from postroom.sync.bringing import Bringer
from postroom.sync.id_set import IdSet
from postroom.sync.membership import align_label, listed_ids, strip_label
from postroom.sync.state import get_state, record_comparison
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

    def __init__(self, database: Database, account_id: str, bringer: Bringer, clock: Clock) -> None:
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
            relabelled += await align_label(self._bringer.client, self._bringer.store, label_id, name)
        for unknown in sorted(await self._bringer.store.label_names() - set(names.values())):
            relabelled += await strip_label(self._bringer.store, unknown)
        return Reconciled(deleted, restored, relabelled)

    async def _compare_presence(self) -> tuple[int, int]:
        deleted = restored = 0
        with IdSet() as listed, self._bringer.store.place.reader() as reader:
            async for ids in listed_ids(self._bringer.client):
                listed.add(ids)
            portions = reader.all_ids(self._bringer.store.email)
            while portion := await asyncio.to_thread(next, portions, None):
                unlisted = set(listed.lacking([each.gmail_id for each in portion]))
                deleted += await self._mark(portion, unlisted)
                restored += await self._unmark(portion, unlisted)
        return deleted, restored

    async def _mark(self, portion: Sequence[KnownId], unlisted: set[str]) -> int:
        missed = [each.gmail_id for each in portion if not each.is_deleted and each.gmail_id in unlisted]
        gone = await gone_of(self._bringer.client, missed)
        if gone:
            await self._bringer.store.mark_deleted(gone, self._clock.now())
        return len(gone)

    async def _unmark(self, portion: Sequence[KnownId], unlisted: set[str]) -> int:
        back = [each.gmail_id for each in portion if each.is_deleted and each.gmail_id not in unlisted]
        if back:
            await self._bringer.store.unmark_deleted(back)
        return len(back)


async def gone_of(client: GmailClient, ids: Sequence[str]) -> list[str]:
    """Those that the source does not have, each asked for by itself: a list may have missed what arrived or moved.

    One that cannot be had, for a reason of its own, is there.
    """
    gone = []
    for answer in await client.get_messages(ids, Format.MINIMAL) if ids else ():
        if isinstance(answer, Failed) and isinstance(answer.error, Throttled | Unreachable):
            raise answer.error
        if isinstance(answer, Missing):
            gone.append(answer.id)
    return gone
