"""Keeps labels and deletions of the archive in step with the mailbox: label names, which the mailbox may change or
delete; and comparisons of whole mailboxes, after a walk and for `postroom verify --against-source`.

A name is recorded before any mail gets it and forgotten only when no mail has it. After a crash in between, the
affected labels are compared message by message. What changes at the source during a comparison is in the history,
which is read afterwards; whatever looks wrong is checked again by id.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import delete, select

from postroom.accounts.account import Account
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import KnownId, Relabelling
from postroom.archive.service import AccountStore
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_labels
from postroom.domain.clock import Clock
from postroom.mailboxes.errors import CallRefused, Gone
from postroom.mailboxes.labels import LabelNamesById
from postroom.mailboxes.protocol import Mailbox, Span
from postroom.mailboxes.reader import gone_of
from postroom.sync.fetch import MailFetcher, bad_of
from postroom.sync.slices import LISTED_WITHIN_S, Granularity, oldest_mail, plan
from postroom.sync.state import find_state, get_state, record_comparison
from postroom.telemetry import logs


@dataclass(frozen=True, slots=True)
class LabelChanges:
    renamed: tuple[tuple[str, str], ...] = ()
    """Old and new name. Neither belongs to another label, so renames can be repeated and done in any order."""
    dropped: tuple[str, ...] = ()
    """Names that no label has now."""
    mixed: tuple[tuple[str, str], ...] = ()
    """Id and name of labels whose members in the archive are uncertain and have to be listed at the source."""

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.mixed)


def changes_between(before: Mapping[str, frozenset[str]], now: Mapping[str, str]) -> LabelChanges:
    """`before` has the names that each label id may have in the archive, `now` the one it has at the source.

    An id with several names was being renamed when a process died: which mail has which name is unknown.
    """
    old_names = frozenset[str]().union(*before.values())
    new_names = frozenset(now.values())
    changed = {each: name for each, name in now.items() if before.get(each) != frozenset({name})}
    plain = {
        each: (min(before[each]), name)
        for each, name in changed.items()
        if each in before and len(before[each]) == 1 and name not in old_names and before[each].isdisjoint(new_names)
    }
    mixed = [
        (each, name) for each, name in changed.items() if each not in plain and (each in before or name in old_names)
    ]
    dropped = old_names - new_names - {old for old, _ in plain.values()}
    return LabelChanges(tuple(plain.values()), tuple(sorted(dropped)), tuple(mixed))


_PORTION = 1_000


class IdSet:
    """A set of message ids in a temporary file, for mailboxes larger than memory. For one thread."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # no name: a temporary file that no other process sees
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -4096"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def __enter__(self) -> IdSet:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM ids").fetchone()[0])

    def add(self, ids: Iterable[str]) -> None:
        self._db.execute("INSERT OR IGNORE INTO ids SELECT value FROM json_each(?)", (json.dumps(list(ids)),))

    def lacking(self, ids: Sequence[str]) -> list[str]:
        """Those of the ids that are not in the set, in their order."""
        query = "SELECT value FROM json_each(?) WHERE value NOT IN ids ORDER BY key"
        return [value for (value,) in self._db.execute(query, (json.dumps(ids),))]

    def portions(self) -> Iterator[list[str]]:
        """All of them, some at a time."""
        last = ""
        query = "SELECT id FROM ids WHERE id > ? ORDER BY id LIMIT ?"
        while portion := [value for (value,) in self._db.execute(query, (last, _PORTION))]:
            yield portion
            last = portion[-1]


_AT_ONCE = 500

T = TypeVar("T")


async def align_label(mailbox: Mailbox, store: AccountStore, label_id: str, name: str) -> int:
    """Give a label in the archive the members that it has at the source; returns how many messages gained or lost it.

    What changes at the source meanwhile is in its history, which is read later. Ids that the archive lacks are skipped.
    """
    label = frozenset({name})
    with IdSet() as listed:
        try:
            async for ids in listed_ids(mailbox, label_id=label_id, max_age_s=LISTED_WITHIN_S):
                listed.add(ids)
        except (CallRefused, Gone):
            if any(each.id == label_id for each in await mailbox.labels()):
                raise
            return 0  # deleted meanwhile; the next refresh of the labels removes it
        members = await store.label_members(name)
        lost = [each for some in _portions(sorted(members)) for each in listed.lacking(some)]
        changed = await _change(store, [Relabelling(each, remove=label) for each in lost])
        for ids in listed.portions():
            gained = [Relabelling(each, add=label) for each in ids if each not in members]
            changed += await _change(store, gained)
    return changed


async def strip_label(store: AccountStore, name: str) -> int:
    """Remove a label that no message at the source has. Mail that is not at the source keeps it."""
    members = await store.label_members(name)
    return await _change(store, [Relabelling(each, remove=frozenset({name})) for each in sorted(members)])


async def listed_ids(
    mailbox: Mailbox, span: Span | None = None, *, label_id: str | None = None, max_age_s: float = 0.0
) -> AsyncIterator[list[str]]:
    """Listed ids, spam and trash included, page by page."""
    async for page in mailbox.list(span, label_id=label_id, max_age_s=max_age_s):
        yield [*page.ids]


async def _change(store: AccountStore, changes: Sequence[Relabelling]) -> int:
    unknown = 0
    for some in _portions(changes):
        unknown += len(await store.change_labels(some))
    return len(changes) - unknown


def _portions(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]


log = logs.get(__name__)


class LabelFollower:
    """Applies renamed and deleted labels to the archive; called by `LabelNames`."""

    def __init__(self, database: Database, account_id: str, mailbox: Mailbox, store: AccountStore) -> None:
        self._database = database
        self._account_id = account_id
        self._mailbox = mailbox
        self._store = store

    async def record(self, names: LabelNamesById) -> Mapping[str, frozenset[str]]:
        return await self._database.write(lambda tx: record_names(tx, self._account_id, _owners(names)))

    async def follow(self, before: Mapping[str, frozenset[str]], names: LabelNamesById) -> None:
        now = _owners(names)
        changes = changes_between(before, now)
        if not changes:
            return
        counts = {"renamed": len(changes.renamed), "dropped": len(changes.dropped), "mixed": len(changes.mixed)}
        log.info("sync.labels_changed", **counts)
        await self._store.settled()  # mail on its way may carry the old names
        await self._apply(changes)
        past = [(each, name) for each, some in before.items() for name in some if now.get(each) != name]
        await self._database.write(lambda tx: forget_names(tx, self._account_id, past))

    async def _apply(self, changes: LabelChanges) -> None:
        for old, new in changes.renamed:
            await self._store.rename_label(old, new)
        for name in changes.dropped:
            await strip_label(self._store, name)
        for label_id, name in changes.mixed:
            await align_label(self._mailbox, self._store, label_id, name)


def _owners(names: LabelNamesById) -> dict[str, str]:
    """Without system labels, which never change."""
    return {label_id: name for label_id, name in names.items() if label_id != name}


def names_seen(tx: Tx, account_id: str) -> dict[str, frozenset[str]]:
    """The names that each label id may have in the archive; more than one while it is being renamed."""
    rows = tx.execute(select(sync_labels).where(sync_labels.c.account_id == account_id)).all()
    names: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        names[row.label_id].add(row.name)
    return {label_id: frozenset(some) for label_id, some in names.items()}


def record_names(tx: Tx, account_id: str, names: LabelNamesById) -> dict[str, frozenset[str]]:
    """Record names that mail may get from now on; returns what was recorded before."""
    known = names_seen(tx, account_id)
    rows = [
        {"account_id": account_id, "label_id": label_id, "name": name}
        for label_id, name in names.items()
        if name not in known.get(label_id, frozenset())
    ]
    tx.insert_missing(sync_labels, *rows)
    return known


def forget_names(tx: Tx, account_id: str, past: Iterable[tuple[str, str]]) -> None:
    """Delete the records of names that no mail has."""
    mine = sync_labels.c.account_id == account_id
    for label_id, name in past:
        tx.execute(delete(sync_labels).where(mine, sync_labels.c.label_id == label_id, sync_labels.c.name == name))


@dataclass(frozen=True, slots=True)
class Reconciled:
    deleted: int
    """Marked as deleted at the source."""
    restored: int
    """Marked as deleted before, and at the source after all."""
    relabelled: int
    """How often a message gained or lost a label."""


class SourceReconciliation:
    """Corrects labels and deletions that a listing of ids does not show; as a side task of the sync, once after each
    walk."""

    def __init__(self, database: Database, account_id: str, fetcher: MailFetcher, clock: Clock) -> None:
        self._database = database
        self._account_id = account_id
        self._fetcher = fetcher
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
        """Deletions first: deleted mail keeps the labels that it had."""
        names = await self._fetcher.names.refresh()
        deleted, restored = await self._compare_presence()
        relabelled = 0
        for label_id, name in names.items():
            relabelled += await align_label(self._fetcher.mailbox, self._fetcher.store, label_id, name)
        for unknown in sorted(await self._fetcher.store.label_names() - set(names.values())):
            relabelled += await strip_label(self._fetcher.store, unknown)
        return Reconciled(deleted, restored, relabelled)

    async def _compare_presence(self) -> tuple[int, int]:
        deleted = restored = 0
        with IdSet() as listed, self._fetcher.store.backend.reader() as reader:
            async for ids in listed_ids(self._fetcher.mailbox, max_age_s=LISTED_WITHIN_S):
                listed.add(ids)
            portions = reader.all_ids(self._fetcher.store.email)
            while portion := await asyncio.to_thread(next, portions, None):
                unlisted = set(listed.lacking([each.gmail_id for each in portion]))
                deleted += await self._mark(portion, unlisted)
                restored += await self._unmark(portion, unlisted)
        return deleted, restored

    async def _mark(self, portion: Sequence[KnownId], unlisted: set[str]) -> int:
        missed = [each.gmail_id for each in portion if not each.is_deleted and each.gmail_id in unlisted]
        gone = await gone_of(self._fetcher.mailbox, missed)
        if gone:
            await self._fetcher.store.mark_deleted(gone, self._clock.now())
        return len(gone)

    async def _unmark(self, portion: Sequence[KnownId], unlisted: set[str]) -> int:
        back = [each.gmail_id for each in portion if each.is_deleted and each.gmail_id not in unlisted]
        if back:
            await self._fetcher.store.unmark_deleted(back)
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
    """Seconds since 1970; only mail dated before it was compared. Zero: the account was never synced."""
    listed: int = 0
    stored: int = 0
    bad: tuple[str, ...] = ()
    """Listed at the source and recorded as bad: `postroom sync bad list` says why."""
    gaps: tuple[SourceGap, ...] = ()
    gone: tuple[str, ...] = ()
    """No longer at the source, and not yet marked as deleted: no gap. The next sync marks them."""

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
        """`progress` is called with the number of ids listed since its last call."""
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
        """By months, so that no listing has very many pages."""
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
        """Without messages deleted at the source meanwhile."""
        gone = set(await gone_of(self._mailbox, list(lacking)))
        return tuple(SourceGap(each, lacking[each]) for each in sorted(lacking.keys() - gone))

    async def _gone(self, reader: MailReader, listed: IdSet, watermark: int) -> list[str]:
        """Held as present and not listed. The date of an import may differ from the source's, so each is requested by
        id."""
        gone: list[str] = []
        portions = reader.all_ids(self._account.email)
        while portion := await asyncio.to_thread(next, portions, None):
            held = [each.gmail_id for each in portion if not each.is_deleted and each.date_s < watermark]
            gone += await gone_of(self._mailbox, listed.lacking(held))
        return gone
