"""Applies the changes of a mailbox since the cursor: new mail, label changes and deletions, page by page.

The cursor moves after a page's effects are on disk, in the transaction that records its bad messages and counts it.
Every effect can be repeated, so a crash or a change of reader neither loses nor doubles anything. HistoryExpired is
raised: the mailbox has to be walked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from postroom.accounts.history import LEASE, HistoryLease, cursor_of, move_cursor, record_end, renew_reader
from postroom.accounts.observers import MailboxObserver, NoObserver
from postroom.accounts.troubled import TroubleKind, forget_trouble
from postroom.archive.messages import Relabelling
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.mailboxes.protocol import ChangePage
from postroom.sync import status
from postroom.sync.fetch import FetchOutcome, MailFetcher, bad_of, record_outcome
from postroom.sync.state import add_counters
from postroom.telemetry import logs

log = logs.get(__name__)

_AT_ONCE = 100
"""Messages fetched before the lease is checked again."""
_RENEW_AFTER = LEASE / 3


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """The effects of one or more pages."""

    stored: int = 0
    gone: int = 0
    """Deleted before they could be fetched."""
    bad: int = 0
    deleted: int = 0
    relabelled: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(*(mine + others for mine, others in zip(astuple(self), astuple(other), strict=True)))


OnPage = Callable[[ChangeCounts], None]


class HistoryFollower:
    """Reads under the account's one `HistoryLease`; every move of the cursor names its fence.

    `on_page` is called after the cursor has moved past a page; `watch` in the transaction that moves it.
    """

    def __init__(
        self,
        database: Database,
        reader: HistoryLease,
        fetcher: MailFetcher,
        clock: Clock,
        on_page: OnPage = lambda page: None,
        watch: MailboxObserver = NoObserver(),  # noqa: B008 - holds nothing
    ) -> None:
        self._database = database
        self._reader = reader
        self._fetcher = fetcher
        self._clock = clock
        self._on_page = on_page
        self._watch = watch
        self._renewed_at = clock.now()

    async def read(self) -> ChangeCounts:
        """Apply everything up to now. Raises HistoryExpired, and HistoryLeaseLost if another process reads by now."""
        since = await self._database.read(lambda tx: cursor_of(tx, self._reader.account_id))
        if since is None:
            raise Fatal("There is no history id to read from: it is read from the profile before the first listing.")
        await self._fetcher.names.refresh()
        total = ChangeCounts()
        async for page in self._fetcher.mailbox.changes(since):
            deltas = await self._take_in(page)
            self._on_page(deltas)
            total += deltas
        await self._database.write(lambda tx: record_end(tx, self._reader, self._clock.now()))
        return total

    async def _take_in(self, changes: ChangePage) -> ChangeCounts:
        """One page: first its effects are on disk, then the cursor moves."""
        if changes.records:
            await self._fetcher.store.settled()
        await self._bring_back(changes.added)
        outcome = await self._fetch(await self._missing(changes.wanted))
        relabelled = await self._relabel(changes)
        deleted = await self._mark_deleted(changes.deleted)
        deltas = ChangeCounts(len(outcome.stored), len(outcome.gone), len(outcome.failed), deleted, len(relabelled))

        def conclude(tx: Tx) -> None:
            self._conclude(tx, changes, outcome, deltas)
            self._update_control(tx, relabelled, changes.deleted)

        await self._database.write(conclude)
        if changes.records:
            log.info("history.page", records=changes.records, **_counted(deltas))
        _measure(deltas)
        return deltas

    async def _missing(self, wanted: Sequence[str]) -> list[str]:
        """Without bad messages: their next retry fetches them with the labels that they have then."""
        if not wanted:
            return []
        bad = await self._database.read(lambda tx: bad_of(tx, self._reader.account_id))
        have = await self._fetcher.store.known(wanted) | {each.key for each in bad}
        return [each for each in wanted if each not in have]

    async def _bring_back(self, added: Sequence[str]) -> None:
        """Where a message is known by its bytes, one that was deleted may come again."""
        back = await self._fetcher.store.known(added) if added else ()
        if back:
            await self._fetcher.store.unmark_deleted(sorted(back))

    async def _fetch(self, ids: Sequence[str]) -> FetchOutcome:
        outcome = FetchOutcome()
        for start in range(0, len(ids), _AT_ONCE):
            outcome |= await self._fetcher.fetch(ids[start : start + _AT_ONCE])
            await self._keep_lease()
        return outcome

    async def _relabel(self, changes: ChangePage) -> list[Relabelling]:
        names = self._fetcher.names.names
        relabelled = [
            Relabelling(each.id, await names(each.add), await names(each.remove)) for each in changes.relabelled
        ]
        if relabelled:
            await self._fetcher.store.change_labels(relabelled)
        return relabelled

    async def _mark_deleted(self, ids: Sequence[str]) -> int:
        """Returns how many were marked; the others were deleted before they could be fetched."""
        unknown = await self._fetcher.store.mark_deleted(ids, self._clock.now()) if ids else ()
        return len(ids) - len(unknown)

    def _conclude(self, tx: Tx, changes: ChangePage, outcome: FetchOutcome, deltas: ChangeCounts) -> None:
        account_id, now = self._reader.account_id, self._clock.now()
        if changes.cursor is None:
            renew_reader(tx, self._reader, now)
        else:
            move_cursor(tx, self._reader, changes.cursor, now)
        record_outcome(tx, account_id, outcome, now)
        forget_trouble(tx, account_id, changes.deleted, [TroubleKind.FETCH])
        if counted := _counted(deltas):
            add_counters(tx, account_id, counted, now)

    def _update_control(self, tx: Tx, relabelled: Sequence[Relabelling], deleted: Sequence[str]) -> None:
        """Update messages that the control database knows because they were ingested for triage."""
        if relabelled or deleted:
            from postroom.accounts.mailbox_state import change_labels, email_of, record_deleted  # with many tables

            identity = email_of(tx, self._reader.account_id)
            for each in relabelled:
                change_labels(tx, identity, each.gmail_id, each.add, each.remove)
            record_deleted(tx, identity, deleted, self._clock.now())
            came = {each.gmail_id: each.add for each in relabelled}
            self._watch.changed(tx, self._reader.account_id, came, deleted)

    async def _keep_lease(self) -> None:
        now = self._clock.now()
        if now - self._renewed_at >= _RENEW_AFTER:
            await self._database.write(lambda tx: renew_reader(tx, self._reader, now))
            self._renewed_at = now


def _measure(deltas: ChangeCounts) -> None:
    status.record_processed({"stored": deltas.stored, "gone": deltas.gone, "bad": deltas.bad})
    for _ in range(deltas.bad):
        status.count_bad_message()


def _counted(deltas: ChangeCounts) -> dict[str, int]:
    names = ("stored", "gone", "bad", "deleted", "relabelled")
    return {name: number for name in names if (number := getattr(deltas, name))}
