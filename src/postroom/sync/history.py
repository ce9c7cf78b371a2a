"""Reads the changes of a mailbox since the cursor: new mail, label changes and deletions, page by page.

The cursor moves after a page's effects are on disk, in the transaction that records its bad messages and counts it.
Every effect can be repeated, so a crash or a change of reader neither loses nor doubles anything. An expired history
id is raised: the mailbox has to be walked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from postroom.accounts.history_cursor import LEASE, HistoryLease, cursor_of, move_cursor, renew_reader
from postroom.accounts.mailbox_state import MailboxObserver, NoObserver, change_labels, email_of, record_deleted
from postroom.accounts.troubled import TroubleKind, forget_trouble
from postroom.archive.messages import Relabelling
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.mailboxes.protocol import ChangePage
from postroom.sync import status
from postroom.sync.fetch import FetchOutcome, MailFetcher
from postroom.sync.state import add_counters, bad_of, record_outcome
from postroom.telemetry import logs

log = logs.get(__name__)

_AT_ONCE = 100
"""Messages brought before the lease is looked at again."""
_RENEW_AFTER = LEASE / 3


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """What a page came to, or several."""

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
    """Reads for whoever holds the account's one `Reader`; every move of the cursor shows its fence.

    `on_page` is told what each page came to, once the cursor has moved past it; `watch` what changed, before that.
    """

    def __init__(
        self,
        database: Database,
        reader: HistoryLease,
        bringer: MailFetcher,
        clock: Clock,
        on_page: OnPage = lambda page: None,
        watch: MailboxObserver = NoObserver(),  # noqa: B008 - holds nothing
    ) -> None:
        self._database = database
        self._reader = reader
        self._bringer = bringer
        self._clock = clock
        self._on_page = on_page
        self._watch = watch
        self._renewed_at = clock.now()

    async def read(self) -> ChangeCounts:
        """Take in everything up to now. Raises HistoryExpired, and ReaderLost if somebody else reads by now."""
        since = await self._database.read(lambda tx: cursor_of(tx, self._reader.account_id))
        if since is None:
            raise Fatal("There is no history id to read from: it is read from the profile before the first listing.")
        await self._bringer.names.refresh()
        total = ChangeCounts()
        async for page in self._bringer.mailbox.changes(since):
            deltas = await self._take_in(page)
            self._on_page(deltas)
            total += deltas
        return total

    async def _take_in(self, changes: ChangePage) -> ChangeCounts:
        """One page: its effects onto disk first, then the cursor."""
        if changes.records:
            await self._bringer.store.settled()
        brought = await self._bring(await self._missing(changes.wanted))
        relabelled = await self._relabel(changes)
        deleted = await self._mark_deleted(changes.deleted)
        deltas = ChangeCounts(len(brought.stored), len(brought.gone), len(brought.failed), deleted, len(relabelled))

        def conclude(tx: Tx) -> None:
            self._conclude(tx, changes, brought, deltas)
            self._tell_control(tx, relabelled, changes.deleted)

        await self._database.write(conclude)
        if changes.records:
            log.info("history.page", records=changes.records, **_counted(deltas))
        _measure(deltas)
        return deltas

    async def _missing(self, wanted: Sequence[str]) -> list[str]:
        """A message that is bad already waits for its next try, which brings it with the labels of then."""
        if not wanted:
            return []
        bad = await self._database.read(lambda tx: bad_of(tx, self._reader.account_id))
        have = await self._bringer.store.known(wanted) | {each.key for each in bad}
        return [each for each in wanted if each not in have]

    async def _bring(self, ids: Sequence[str]) -> FetchOutcome:
        brought = FetchOutcome()
        for start in range(0, len(ids), _AT_ONCE):
            brought |= await self._bringer.bring(ids[start : start + _AT_ONCE])
            await self._keep_lease()
        return brought

    async def _relabel(self, changes: ChangePage) -> list[Relabelling]:
        names = self._bringer.names.names
        relabelled = [
            Relabelling(each.id, await names(each.add), await names(each.remove)) for each in changes.relabelled
        ]
        if relabelled:
            await self._bringer.store.change_labels(relabelled)
        return relabelled

    async def _mark_deleted(self, ids: Sequence[str]) -> int:
        """What the archive never had was gone before it could be fetched: there is nothing to mark."""
        unknown = await self._bringer.store.mark_deleted(ids, self._clock.now()) if ids else ()
        return len(ids) - len(unknown)

    def _conclude(self, tx: Tx, changes: ChangePage, brought: FetchOutcome, deltas: ChangeCounts) -> None:
        account_id, now = self._reader.account_id, self._clock.now()
        if changes.cursor is None:
            renew_reader(tx, self._reader, now)
        else:
            move_cursor(tx, self._reader, changes.cursor, now)
        record_outcome(tx, account_id, brought, now)
        forget_trouble(tx, account_id, changes.deleted, [TroubleKind.FETCH])
        if counted := _counted(deltas):
            add_counters(tx, account_id, counted, now)

    def _tell_control(self, tx: Tx, relabelled: Sequence[Relabelling], deleted: Sequence[str]) -> None:
        """Mail that was taken in for triage is known to the control database too."""
        if relabelled or deleted:
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
