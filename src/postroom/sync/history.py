"""Reads the changes of a mailbox since the cursor: new mail, label changes and deletions, page by page.

The cursor moves after a page's effects are on disk, in the transaction that records its bad messages and counts it.
Every effect can be repeated, so a crash or a change of reader neither loses nor doubles anything. An expired history
id is raised: the mailbox has to be walked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass

from postroom.accounts.history_cursor import LEASE, HistoryLease, cursor_of, move_cursor, renew_reader
from postroom.accounts.mailbox_state import MailboxObserver, NoObserver, change_labels, email_of, record_deleted
from postroom.accounts.troubled import TroubleKind, forget_trouble
from postroom.archive.messages import Relabelling
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.mailboxes.gmail.resources import HistoryRecord
from postroom.sync import status
from postroom.sync.fetch import FetchOutcome, MailFetcher
from postroom.sync.state import add_counters, bad_of, record_outcome
from postroom.telemetry import logs


@dataclass(frozen=True, slots=True)
class LabelIdChange:
    gmail_id: str
    add: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PageChanges:
    wanted: tuple[str, ...] = ()
    """Added or relabelled, and not deleted as far as the page tells: they should be in the archive."""
    deleted: tuple[str, ...] = ()
    relabelled: tuple[LabelIdChange, ...] = ()
    """In the order in which it happened."""

    @property
    def label_ids(self) -> frozenset[str]:
        return frozenset[str]().union(*(each.add | each.remove for each in self.relabelled))


def fold(records: Sequence[HistoryRecord]) -> PageChanges:
    """Ids of messages do not come back, so a deletion is final wherever it stands."""
    wanted: dict[str, None] = {}
    deleted: dict[str, None] = {}
    relabelled: list[LabelIdChange] = []
    for record in sorted(records, key=lambda each: int(each.id)):
        wanted.update(dict.fromkeys(ref.id for ref in record.added))
        deleted.update(dict.fromkeys(ref.id for ref in record.deleted))
        relabelled += [LabelIdChange(each.message.id, add=each.label_ids) for each in record.labels_added]
        relabelled += [LabelIdChange(each.message.id, remove=each.label_ids) for each in record.labels_removed]
    wanted.update(dict.fromkeys(each.gmail_id for each in relabelled))
    return PageChanges(tuple(each for each in wanted if each not in deleted), tuple(deleted), tuple(relabelled))


def latest(history_ids: Iterable[str]) -> str | None:
    """History ids are numbers, of any length, and text to everybody else."""
    return max(history_ids, key=int, default=None)


def resume_point(records: Sequence[HistoryRecord]) -> str | None:
    """From where to go on if the next page is never reached; None: from where this page began.

    It is not the last id: records that share it may go on behind the page's end.
    """
    last = latest(each.id for each in records)
    return latest(each.id for each in records if each.id != last)


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
        reached = None
        async for page in self._bringer.client.list_history(since):
            # Where the mailbox stood when the first page was answered: what came later may be on no page.
            reached = latest([since, reached or page.history_id, *(record.id for record in page.records)])
            is_last = page.next_token is None
            deltas = await self._take_in(page.records, reached if is_last else resume_point(page.records))
            self._on_page(deltas)
            total += deltas
        return total

    async def _take_in(self, records: Sequence[HistoryRecord], cursor: str | None) -> ChangeCounts:
        """One page: its effects onto disk first, then the cursor. `cursor` None leaves it where it is."""
        changes = fold(records)
        if records:
            await self._bringer.store.settled()
        brought = await self._bring(await self._missing(changes.wanted))
        relabelled = await self._relabel(changes)
        deleted = await self._mark_deleted(changes.deleted)
        deltas = ChangeCounts(len(brought.stored), len(brought.gone), len(brought.failed), deleted, len(relabelled))

        def conclude(tx: Tx) -> None:
            self._conclude(tx, changes, brought, deltas, cursor)
            self._tell_control(tx, relabelled, changes.deleted)

        await self._database.write(conclude)
        if records:
            log.info("history.page", records=len(records), **_counted(deltas))
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

    async def _relabel(self, changes: PageChanges) -> list[Relabelling]:
        names = self._bringer.names.names
        relabelled = [
            Relabelling(each.gmail_id, await names(each.add), await names(each.remove)) for each in changes.relabelled
        ]
        if relabelled:
            await self._bringer.store.change_labels(relabelled)
        return relabelled

    async def _mark_deleted(self, ids: Sequence[str]) -> int:
        """What the archive never had was gone before it could be fetched: there is nothing to mark."""
        unknown = await self._bringer.store.mark_deleted(ids, self._clock.now()) if ids else ()
        return len(ids) - len(unknown)

    def _conclude(
        self, tx: Tx, changes: PageChanges, brought: FetchOutcome, deltas: ChangeCounts, cursor: str | None
    ) -> None:
        account_id, now = self._reader.account_id, self._clock.now()
        if cursor is None:
            renew_reader(tx, self._reader, now)
        else:
            move_cursor(tx, self._reader, cursor, now)
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
