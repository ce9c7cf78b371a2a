"""Keeps the label names of the archive in step with the mailbox, which knows labels by id and may rename or delete
them.

A name is recorded before any mail gets it and forgotten only when no mail has it. After a crash in between, the
affected labels are compared message by message.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import delete, select

from postroom.archive.messages import Relabelling
from postroom.archive.service import AccountStore
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_labels
from postroom.mailboxes.errors import CallRefused, Gone
from postroom.mailboxes.labels import LabelNamesById
from postroom.mailboxes.protocol import Mailbox, Span
from postroom.telemetry import logs


@dataclass(frozen=True, slots=True)
class LabelChanges:
    renamed: tuple[tuple[str, str], ...] = ()
    """Old and new name, neither of them ever another label's: done again or in any order, it comes to the same."""
    dropped: tuple[str, ...] = ()
    """Names that no label has any more."""
    mixed: tuple[tuple[str, str], ...] = ()
    """Id and name of labels of which the archive's names tell nothing certain: their members have to be asked for."""

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.mixed)


def changes_between(before: Mapping[str, frozenset[str]], now: Mapping[str, str]) -> LabelChanges:
    """From the names that each label id may have in the archive to the one that it has at the source.

    An id with several names was being renamed when somebody died: which mail has which name is not known.
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
    """Of use within one thread."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # no name: a temporary file that nobody else sees
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
    """One label at a time, so that memory stays small; returns how many messages gained or lost it.

    What changes at the source meanwhile is in its history, which is read after this. Ids that the archive does not have
    are left to whoever brings mail.
    """
    label = frozenset({name})
    with IdSet() as listed:
        try:
            async for ids in listed_ids(mailbox, label_id=label_id):
                listed.add(ids)
        except (CallRefused, Gone):
            if any(each.id == label_id for each in await mailbox.labels()):
                raise
            return 0  # deleted meanwhile; the next look at the labels takes it away
        members = await store.label_members(name)
        lost = [each for some in _portions(sorted(members)) for each in listed.lacking(some)]
        changed = await _change(store, [Relabelling(each, remove=label) for each in lost])
        for ids in listed.portions():
            gained = [Relabelling(each, add=label) for each in ids if each not in members]
            changed += await _change(store, gained)
    return changed


async def strip_label(store: AccountStore, name: str) -> int:
    """No message at the source has it. Mail that is not there any more, or never was, keeps what it had."""
    members = await store.label_members(name)
    return await _change(store, [Relabelling(each, remove=frozenset({name})) for each in sorted(members)])


async def listed_ids(
    mailbox: Mailbox, span: Span | None = None, *, label_id: str | None = None
) -> AsyncIterator[list[str]]:
    """What the source lists, spam and trash included, page by page."""
    async for page in mailbox.list(span, label_id=label_id):
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
    """What `LabelNames` asks to keep the archive's names in step."""

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
        await self._store.settled()  # mail on its way may carry names of before
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
    """System labels never change: only the owner's need watching."""
    return {label_id: name for label_id, name in names.items() if label_id != name}


def names_seen(tx: Tx, account_id: str) -> dict[str, frozenset[str]]:
    """The names that each label id may have in the archive; more than one while it is being renamed."""
    rows = tx.execute(select(sync_labels).where(sync_labels.c.account_id == account_id)).all()
    names: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        names[row.label_id].add(row.name)
    return {label_id: frozenset(some) for label_id, some in names.items()}


def record_names(tx: Tx, account_id: str, names: LabelNamesById) -> dict[str, frozenset[str]]:
    """These may be in the archive from now on, beside those on record; returns what was on record."""
    known = names_seen(tx, account_id)
    rows = [
        {"account_id": account_id, "label_id": label_id, "name": name}
        for label_id, name in names.items()
        if name not in known.get(label_id, frozenset())
    ]
    tx.insert_missing(sync_labels, *rows)
    return known


def forget_names(tx: Tx, account_id: str, past: Iterable[tuple[str, str]]) -> None:
    """No mail has these any more."""
    mine = sync_labels.c.account_id == account_id
    for label_id, name in past:
        tx.execute(delete(sync_labels).where(mine, sync_labels.c.label_id == label_id, sync_labels.c.name == name))
