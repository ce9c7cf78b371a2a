"""The live pass: takes in what changed in the mailbox since the history cursor and moves the cursor, page by page
(SY-13).

A page that is not worked off is read again by the next pass, which is harmless. There is one reader at a time, under
a fenced lease. After an expired history id the cursor moves to now, and the gap is owed: `gap.py` compares what lies
in it beside the passes that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from postroom.connectors.arrivals import CHUNK, Arrivals, DeferredMessages, PassTally
from postroom.connectors.gap import earlier_gap, forget_earlier_gap
from postroom.connectors.metrics import PassName
from postroom.connectors.source_mail import SPAM
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.contract.mail import GapArgument, HistoryClaim
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import ChangePage, Mailbox
from postroom.mailboxes.reader import look_at
from postroom.telemetry import logs


@dataclass
class HistoryChanges:
    """What some pages of one reading come to, whatever the order and the repetitions of their changes."""

    added: dict[str, None] = field(default_factory=dict)
    """In the order in which they came."""
    labels: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """All labels after the latest change; None where the history does not say them."""
    deleted: set[str] = field(default_factory=set)
    cursor: str | None = None
    """Where the last page ends: everything before it is here."""
    _sequences: dict[str, int] = field(default_factory=dict)

    def read(self, page: ChangePage) -> None:
        self.cursor = page.cursor or self.cursor
        self.added.update(dict.fromkeys(page.added))
        self.deleted.update(page.deleted)
        for change in page.relabelled:
            if change.sequence >= self._sequences.get(change.id, -1):
                self._sequences[change.id] = change.sequence
                self.labels[change.id] = change.now
            if SPAM in change.remove:
                # It was taken out of the spam folder, so it is mail after all.
                self.added.setdefault(change.id)

    def settle(self) -> None:
        """Drop other changes of deleted messages."""
        for gone in self.deleted:
            self.added.pop(gone, None)
            self.labels.pop(gone, None)

    def clear(self) -> None:
        """The pages so far are worked off. What is older than their changes is still recognised."""
        self.added.clear()
        self.labels.clear()
        self.deleted.clear()


def in_chunks(ids: Iterable[str], size: int) -> list[list[str]]:
    listed = list(ids)
    return [listed[start : start + size] for start in range(0, len(listed), size)]


log = logs.get(__name__)


class LivePass:
    def __init__(
        self,
        switchboard: SwitchboardClient,
        mailbox: Mailbox,
        arrivals: Arrivals,
        labels: LabelNames,
        deferred: DeferredMessages,
        folder: Path,
        instance: str,
        clock: Clock,
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._arrivals = arrivals
        self._labels = labels
        self._deferred = deferred
        self._folder = folder
        self._instance = instance
        self._clock = clock
        self.seen_at: datetime | None = None
        """When this process last took in everything."""

    async def run(self) -> PassTally:
        """One look at the mailbox. The tally says whether a gap is owed. Raises Retryable where the look has to be
        repeated."""
        claim = await self._switchboard.history_claim(self._instance)
        tally = PassTally(gap=claim.gap is not None)
        try:
            await self._from(claim, tally)
        except PostroomError:
            await self._let_go(claim)
            raise
        if tally.waiting is not None:
            await self._let_go(claim)
            raise tally.waiting
        return tally

    async def _from(self, claim: HistoryClaim, tally: PassTally) -> None:
        if claim.history_id is None:
            # What was there before the first look is history, and history has a budget: backfill brings it.
            identity = await self._mailbox.identity()
            await self._commit(claim, identity.cursor)
            return
        await self._retry_deferred(tally)
        earlier = earlier_gap(self._folder)
        try:
            reached = await self._follow(claim, claim.history_id, tally)
        except HistoryExpired:
            # Read before anything is listed: what changes from now on is in the history.
            identity = await self._mailbox.identity()
            await self._commit(claim, identity.cursor, earlier.argument)
            log.warning("history.expired", history_id=claim.history_id)
            tally.gap = True
            return
        if tally.waiting is None:
            await self._commit(claim, reached, earlier.older)
            tally.gap = tally.gap or earlier.older is not None

    async def _follow(self, claim: HistoryClaim, since: str, tally: PassTally) -> str | None:
        """Take in the changes and move the cursor, page by page, up to the first page that has to wait; where the
        last page ends."""
        changes = HistoryChanges()
        async for page in self._mailbox.changes(since):
            changes.read(page)
            changes.settle()
            await self._take(claim, changes, tally)
            if tally.waiting is not None:
                break
            await self._switchboard.history_commit(claim.fence, page.cursor)
            changes.clear()
        return changes.cursor

    async def _take(self, claim: HistoryClaim, changes: HistoryChanges, tally: PassTally) -> None:
        if changes.added or changes.labels:
            await self._labels.refresh()
        for chunk in in_chunks(changes.added, CHUNK):
            await self._arrivals.take(chunk, PassName.LIVE, tally)
            await self._renew(claim)
        labels = await self._labels_now(changes.labels)
        if labels or changes.deleted:
            named = {key: await self._labels.names(ids) for key, ids in labels.items()}
            await self._switchboard.archive_changes(named, sorted(changes.deleted))

    async def _labels_now(self, known_labels: Mapping[str, frozenset[str] | None]) -> dict[str, frozenset[str]]:
        """The labels of changed messages; where the history leaves them out, Gmail is asked."""
        known = {key: labels for key, labels in known_labels.items() if labels is not None}
        found = await look_at(self._mailbox, [key for key in known_labels if key not in known])
        for error in found.failed.values():
            raise error
        return known | {message.id: message.label_ids for message in found.got}

    async def _retry_deferred(self, tally: PassTally) -> None:
        for chunk in in_chunks(self._deferred.due(), 1):
            await self._arrivals.take(chunk, PassName.LIVE, tally)

    async def _renew(self, claim: HistoryClaim) -> None:
        await self._switchboard.history_commit(claim.fence)

    async def _commit(self, claim: HistoryClaim, history_id: str | None, gap: GapArgument | None = None) -> None:
        """Everything up to here is in or owed; the next reader may come."""
        await self._switchboard.history_commit(claim.fence, history_id, release=True, gap=gap)
        forget_earlier_gap(self._folder)
        self.seen_at = self._clock.now()

    async def _let_go(self, claim: HistoryClaim) -> None:
        try:
            await self._switchboard.history_commit(claim.fence, release=True)
        except PostroomError as error:
            log.info("history.not_released", problem=error.message)
