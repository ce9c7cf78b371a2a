"""The live pass: takes in what changed in the mailbox since the history cursor and moves the cursor, page by page; and
what compares the mailbox with the archive where its history has a gap (SY-13).

A page that is not worked off is read again by the next pass, which is harmless. There is one reader at a time, under a
fenced lease. After an expired history id the cursor moves to now, and the gap is owed.

A gap is compared in steps that the Switchboard records, beside live mail. First what came since the last look is stored
and taken in, newest day first. Then the labels of recent mail are compared. Last, older mail that the archive lacks is
stored, but not taken in. A step that is repeated does no harm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroom.connectors.arrivals import CHUNK, Arrivals, DeferredMessages, PassTally
from postroom.connectors.metrics import PassName
from postroom.connectors.source_mail import SPAM
from postroom.connectors.state_files import read_json
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.contract.mail import ArchivedMail, GapArgument, HistoryClaim, OwedGap
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import ChangePage, Mailbox, Span
from postroom.mailboxes.reader import compare, look_at
from postroom.telemetry import logs

_DAY_S = 86_400
_LOOK_BACK = timedelta(days=30)
_PAGE = 200
_GMAIL_BEGAN = 2004
"""Mail dated before that was imported, and is too little to be listed by month."""
log = logs.get(__name__)


def day_below(before: int | None, since: int, now: datetime) -> Span:
    """The newest day that is not done, down to `since`. The first has no end, for mail from the future."""
    last = int(now.timestamp()) if before is None else before - 1
    return Span(max(last // _DAY_S * _DAY_S, since), before)


def month_below(before: int) -> Span:
    """The month that ends at or contains `before`; the oldest reaches down to the beginning of time."""
    last = datetime.fromtimestamp(max(before - 1, 0), UTC)
    first = last.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Span(0 if first.year < _GMAIL_BEGAN else int(first.timestamp()), before)


class GapWalk:
    def __init__(
        self, switchboard: SwitchboardClient, mailbox: Mailbox, arrivals: Arrivals, labels: LabelNames, clock: Clock
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._arrivals = arrivals
        self._labels = labels
        self._clock = clock

    async def run(self, budget_s: float) -> PassTally:
        """Go on for so long at most. The tally says whether something is left; Retryable is raised where a message has
        to be tried again first."""
        tally, ends = PassTally(), self._clock.monotonic() + budget_s
        gap = await self._switchboard.history_gap()
        while gap is not None and self._clock.monotonic() < ends:
            match gap.stage:
                case "arrivals":
                    gap = await self._take_in(gap, tally, ends)
                case "labels":
                    gap = await self._compare(gap, tally)
                case "older":
                    gap = await self._store_missing(gap, tally, ends)
        tally.gap = gap is not None
        if gap is None:
            log.info("history.gap_filled", stored=tally.stored, ingested=tally.ingested)
        return tally

    async def _take_in(self, gap: OwedGap, tally: PassTally, ends: float) -> OwedGap | None:
        """One day, chunk by chunk, or as much of it as there is time for."""
        day = day_below(gap.before, gap.since, self._clock.now())
        listed = {each async for page in self._listed(day) for each in page}
        # In an order that a later listing has too: messages that came since are in the history.
        left = sorted((each for each in listed if gap.mark is None or each < gap.mark), reverse=True)
        for start in range(0, len(left), CHUNK):
            chunk = left[start : start + CHUNK]
            await self._arrivals.take(chunk, PassName.GAP, tally)
            if tally.waiting is not None:
                raise tally.waiting  # the next run comes back to this chunk
            if start + CHUNK >= len(left):
                break
            reached = await self._reach(gap, "arrivals", gap.before, chunk[-1])
            if reached is None or reached.step != gap.step + 1 or self._clock.monotonic() >= ends:
                return reached
            gap = reached
        if day.start > gap.since:
            return await self._reach(gap, "arrivals", day.start)
        return await self._reach(gap, "labels", gap.since)

    async def _compare(self, gap: OwedGap, tally: PassTally) -> OwedGap | None:
        """One page of the mail of the last weeks: its labels, and whether it is still there."""
        if gap.mark is None:
            await self._labels.refresh()
        first, last = (gap.opened_at - _LOOK_BACK).date(), (gap.opened_at + timedelta(days=1)).date()
        page = await self._switchboard.archive_range(first, last, gap.mark, _PAGE, ())
        tally.compared += await self._changed([mail for mail in page.messages if not mail.deleted_at_source])
        if page.cursor is not None:
            return await self._reach(gap, "labels", gap.before, page.cursor)
        return await self._reach(gap, "older", gap.since)

    async def _changed(self, mails: Sequence[ArchivedMail]) -> int:
        found = await compare(self._mailbox, self._labels, {mail.gmail_id: frozenset(mail.labels) for mail in mails})
        if found.relabelled or found.gone:
            await self._switchboard.archive_changes(found.relabelled, found.gone)
        return len(found.relabelled) + len(found.gone)

    async def _store_missing(self, gap: OwedGap, tally: PassTally, ends: float) -> OwedGap | None:
        """One month. A message that fails here is listed as troubled and blocks no other."""
        month = month_below(gap.since if gap.before is None else gap.before)
        missing = await self._missing(month)
        for start in range(0, len(missing), CHUNK):
            taken = PassTally()
            await self._arrivals.take(missing[start : start + CHUNK], PassName.GAP, taken, wanted=lambda mail: False)
            tally.stored += taken.stored
            if self._clock.monotonic() >= ends:
                return gap  # what is stored by then is not missing when the month is listed again
        if month.start > 0 and await self._is_more_before(month.start):
            return await self._reach(gap, "older", month.start)
        return await self._switchboard.history_gap(step=gap.step)

    async def _reach(self, gap: OwedGap, stage: str, before: int | None, mark: str | None = None) -> OwedGap | None:
        return await self._switchboard.history_gap(step=gap.step, stage=stage, before=before, mark=mark)

    async def _is_more_before(self, start: int) -> bool:
        """Whether anything is older, so that twenty years of empty months are not listed."""
        async for page in self._mailbox.list(Span(0, start + 1), page_size=1):
            if page.ids:
                return True
        return False

    async def _missing(self, span: Span) -> list[str]:
        """Those of this stretch that the archive does not have."""
        missing: list[str] = []
        async for ids in self._listed(span):
            known = await self._switchboard.archive_lookup(ids)
            missing += [each for each in ids if each not in known]
        return list(dict.fromkeys(missing))

    async def _listed(self, span: Span) -> AsyncIterator[list[str]]:
        # A second of overlap: neighbouring stretches are listed hours apart, and what is listed twice does no harm.
        async for page in self._mailbox.list(Span(span.start, None if span.end is None else span.end + 1)):
            yield [*page.ids]


_OLD_FILE = "live.json"


@dataclass(frozen=True, slots=True)
class EarlierGap:
    """What a connector of an earlier version kept in a file: when it last looked, and the gap that it was filling."""

    seen_at: datetime | None = None
    begins: int | None = None
    older_before: int | None = None

    @property
    def argument(self) -> GapArgument:
        """For a history that has expired."""
        if self.begins is not None:
            return GapArgument(since=self.begins)
        if self.seen_at is not None:
            return GapArgument(since=max(0, int((self.seen_at - timedelta(days=1)).timestamp())))
        return GapArgument()

    @property
    def older(self) -> GapArgument | None:
        """What is left to compare although the history is unbroken."""
        return None if self.older_before is None else GapArgument(since=self.older_before, only_older=True)


def earlier_gap(folder: Path) -> EarlierGap:
    held = read_json(folder / _OLD_FILE)
    if not isinstance(held, dict):
        return EarlierGap()
    seen_at, begins, older = held.get("seen_at"), held.get("begins"), held.get("older_before")
    return EarlierGap(
        seen_at=datetime.fromisoformat(seen_at) if isinstance(seen_at, str) else None,
        begins=begins if isinstance(begins, int) else None,
        older_before=older if isinstance(older, int) else None,
    )


def forget_earlier_gap(folder: Path) -> None:
    (folder / _OLD_FILE).unlink(missing_ok=True)


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
