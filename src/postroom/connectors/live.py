"""The live pass: takes in what changed in the mailbox since the history cursor and moves the cursor, page by page
(SY-13).

A page that is not worked off is read again by the next pass, which is harmless. There is one reader at a time, under
a fenced lease. After an expired history id the gap is filled month by month, newest first, and recent mail is
compared; older mail that the archive lacks is stored, but not ingested, a little after each pass.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroom.connectors.arrivals import CHUNK, Arrivals, DeferredMessages, PassTally
from postroom.connectors.metrics import PassName
from postroom.connectors.source_mail import SPAM
from postroom.connectors.state_files import read_json, write_json
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.contract.mail import ArchivedMail, HistoryClaim
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import ChangePage, Mailbox, Span
from postroom.mailboxes.reader import compare, look_at
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


LOOK_BACK = timedelta(days=30)
_PAGE = 200


class RecentMailComparison:
    def __init__(self, switchboard: SwitchboardClient, mailbox: Mailbox, labels: LabelNames) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._labels = labels

    async def run(self, now: datetime, renew: Callable[[], Awaitable[None]]) -> int:
        """Compare the mail of the last weeks; the number of messages that had changed."""
        first, last = (now - LOOK_BACK).date(), (now + timedelta(days=1)).date()
        changed, cursor = 0, None
        await self._labels.refresh()
        while True:
            page = await self._switchboard.archive_range(first, last, cursor, _PAGE, ())
            changed += await self._compare([mail for mail in page.messages if not mail.deleted_at_source])
            await renew()
            cursor = page.cursor
            if cursor is None:
                return changed

    async def _compare(self, mails: Sequence[ArchivedMail]) -> int:
        found = await compare(self._mailbox, self._labels, {mail.gmail_id: frozenset(mail.labels) for mail in mails})
        if found.relabelled or found.gone:
            await self._switchboard.archive_changes(found.relabelled, found.gone)
        return len(found.relabelled) + len(found.gone)


LIVE_FILE = "live.json"
_MARGIN = timedelta(days=1)
"""A message may be dated a little before it arrived."""
_UNKNOWN_GAP = timedelta(days=30)
"""If it is not known when the mailbox was last looked at: Gmail keeps its history for a week or more."""
_BESIDE_LIVE = 200
"""Older messages that are looked at after each live pass."""
_GMAIL_BEGAN = 2004
"""Mail dated before that was imported, and is too little to be listed by month."""
log = logs.get(__name__)


@dataclass
class _GapState:
    """The state that survives a restart."""

    seen_at: str | None = None
    """When everything up to the cursor was last known to be in."""
    target: str | None = None
    """The history id that the gap leads to; read before anything was listed."""
    begins: int | None = None
    """Mail received from then on (seconds) came since the last look."""
    before: int | None = None
    """Months that begin then or later are compared; None: not begun."""
    older_before: int | None = None
    """The same for what is older than the gap; None: nothing left to compare."""


class HistoryGap:
    def __init__(
        self, switchboard: SwitchboardClient, mailbox: Mailbox, arrivals: Arrivals, folder: Path, clock: Clock
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._arrivals = arrivals
        self._path = folder / LIVE_FILE
        self._clock = clock
        self._state = _read(self._path)

    @property
    def last_seen(self) -> str | None:
        return self._state.seen_at

    @property
    def is_open(self) -> bool:
        return self._state.target is not None

    def look_again(self) -> None:
        """Read the state again: another process may have continued with this mailbox."""
        self._state = _read(self._path)

    def seen(self) -> None:
        """Everything up to now is in."""
        self._state.seen_at = self._clock.now().isoformat()
        self._write()

    async def fill(self, claim: HistoryClaim, tally: PassTally) -> str:
        """Bring in what came since the last look; the history id to go on from."""
        state = self._state
        if state.target is None:
            identity = await self._mailbox.identity()
            state.target, state.begins, state.before = identity.cursor, self._beginning(), None
            self._write()
        target, begins = state.target, state.begins or 0
        for start, end in _months(self._clock.now(), begins, state.before):
            await self._take_in(start, end, tally, claim)
            if tally.waiting is not None:
                # The cursor keeps its place, and the next pass comes back to this month.
                raise tally.waiting
            state.before = start
            self._write()
        state.target = state.begins = state.before = None
        state.older_before = begins
        self._write()
        log.info("history.gap_filled", stored=tally.stored, ingested=tally.ingested)
        return target

    async def go_on(self) -> None:
        """Compare a little more of what is older than the last gap. A message that fails here blocks no other."""
        if self._state.older_before is None:
            return
        tally, looked_at = PassTally(), 0
        for start, end in _months(self._clock.now(), 0, self._state.older_before):
            missing = await self._missing(start, end)
            for chunk in in_chunks(missing[: max(0, _BESIDE_LIVE - looked_at)], CHUNK):
                await self._arrivals.take(chunk, PassName.GAP, tally, wanted=lambda mail: False)
            looked_at += len(missing)
            if looked_at > _BESIDE_LIVE:
                return
            self._state.older_before = start if await self._is_more_before(start) else None
            self._write()
            if looked_at == _BESIDE_LIVE or self._state.older_before is None:
                return

    def _beginning(self) -> int:
        seen_at = self._state.seen_at
        since = datetime.fromisoformat(seen_at) - _MARGIN if seen_at else self._clock.now() - _UNKNOWN_GAP
        return max(0, int(since.timestamp()))

    async def _take_in(self, start: int, end: int | None, tally: PassTally, claim: HistoryClaim) -> None:
        listed = [gmail_id async for page in self._listed(start, end) for gmail_id in page]
        for chunk in in_chunks(list(dict.fromkeys(listed)), CHUNK):
            await self._arrivals.take(chunk, PassName.GAP, tally)
            await self._switchboard.history_commit(claim.fence)
        await self._switchboard.history_commit(claim.fence)

    async def _is_more_before(self, start: int) -> bool:
        """Whether anything is older, so that twenty years of empty months are not listed."""
        async for page in self._mailbox.list(Span(0, start + 1), page_size=1):
            if page.ids:
                return start > 0
        return False

    async def _missing(self, start: int, end: int | None) -> list[str]:
        """Those of this stretch that the archive does not have."""
        missing: list[str] = []
        async for ids in self._listed(start, end):
            known = await self._switchboard.archive_lookup(ids)
            missing += [each for each in ids if each not in known]
        return list(dict.fromkeys(missing))

    async def _listed(self, start: int, end: int | None) -> AsyncIterator[list[str]]:
        """Ids of the mailbox in this stretch, page by page; newest first, nearly."""
        # A second of overlap: neighbouring stretches are listed hours apart, and what is listed twice does no harm.
        span = Span(start, None if end is None else end + 1)
        async for page in self._mailbox.list(span):
            yield [*page.ids]

    def _write(self) -> None:
        write_json(self._path, asdict(self._state))


def _months(now: datetime, begins: int, before: int | None) -> Iterator[tuple[int, int | None]]:
    """From the newest month back to the beginning, as half-open stretches; the first has no end, for mail from the
    future, the last reaches down to the beginning."""
    end: int | None = before
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while True:
        start = int(first.timestamp())
        if end is None or start < end:
            yield max(start, begins), end
            end = start
        if start <= begins:
            return
        first = (first - timedelta(days=1)).replace(day=1)
        if first.year < _GMAIL_BEGAN:
            yield begins, end
            return


def _read(path: Path) -> _GapState:
    held = read_json(path)
    try:
        return _GapState(**held) if isinstance(held, dict) else _GapState()
    except TypeError:
        return _GapState()


class LivePass:
    def __init__(
        self,
        switchboard: SwitchboardClient,
        mailbox: Mailbox,
        arrivals: Arrivals,
        labels: LabelNames,
        deferred: DeferredMessages,
        gap: HistoryGap,
        instance: str,
        clock: Clock,
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._arrivals = arrivals
        self._labels = labels
        self._deferred = deferred
        self._gap = gap
        self._instance = instance
        self._clock = clock
        self._comparison = RecentMailComparison(switchboard, mailbox, labels)

    async def run(self, *, fills_gap: bool = True) -> PassTally:
        """One look at the mailbox. Raises Retryable where it has to be repeated.

        A pass that does not fill gaps says where one begins, and leaves the cursor there.
        """
        claim = await self._switchboard.history_claim(self._instance)
        self._gap.look_again()
        tally = PassTally()
        try:
            await self._from(claim, tally, fills_gap=fills_gap)
        except PostroomError:
            await self._let_go(claim)
            raise
        if tally.waiting is not None:
            await self._let_go(claim)
            raise tally.waiting
        return tally

    async def _from(self, claim: HistoryClaim, tally: PassTally, *, fills_gap: bool) -> None:
        if claim.history_id is None:
            # What was there before the first look is history, and history has a budget: backfill brings it.
            identity = await self._mailbox.identity()
            await self._commit(claim, identity.cursor)
            return
        await self._retry_deferred(tally)
        try:
            reached = await self._follow(claim, claim.history_id, tally)
        except HistoryExpired:
            log.warning("history.expired", since=self._gap.last_seen)
            if fills_gap:
                await self._fill(claim, tally)
            else:
                tally.gap = claim.history_id
                await self._let_go(claim)
            return
        if tally.waiting is None:
            await self._commit(claim, reached)
            await self._gap.go_on()

    async def _fill(self, claim: HistoryClaim, tally: PassTally) -> None:
        reached = await self._gap.fill(claim, tally)
        tally.compared = await self._comparison.run(self._clock.now(), lambda: self._renew(claim))
        await self._commit(claim, reached)

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

    async def _commit(self, claim: HistoryClaim, history_id: str | None) -> None:
        """Everything up to here is in; the next reader may come."""
        await self._switchboard.history_commit(claim.fence, history_id, release=True)
        self._gap.seen()

    async def _let_go(self, claim: HistoryClaim) -> None:
        try:
            await self._switchboard.history_commit(claim.fence, release=True)
        except PostroomError as error:
            log.info("history.not_released", problem=error.message)
