"""Follows the labels of the source: what is renamed or deleted there is renamed or taken away in the archive.

The names that the archive may hold are on record before any mail gets them, and off the record only after none has
them: a crash in between is seen as such, and the labels concerned are then compared member by member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlalchemy import delete, select

from postroom.archive.account_store import AccountStore
from postroom.db import Database, Tx
from postroom.db.tables.sync import sync_labels
from postroom.gmail.client import GmailClient
from postroom.sync.label_changes import LabelChanges, changes_between
from postroom.sync.labels import Names
from postroom.sync.membership import align_label, strip_label
from postroom.telemetry import logs

log = logs.get(__name__)


class LabelFollower:
    """What `LabelNames` asks to keep the archive's names in step."""

    def __init__(self, database: Database, account_id: str, client: GmailClient, store: AccountStore) -> None:
        self._database = database
        self._account_id = account_id
        self._client = client
        self._store = store

    async def record(self, names: Names) -> Mapping[str, frozenset[str]]:
        return await self._database.write(lambda tx: record_names(tx, self._account_id, _owners(names)))

    async def follow(self, before: Mapping[str, frozenset[str]], names: Names) -> None:
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
            await align_label(self._client, self._store, label_id, name)


def _owners(names: Names) -> dict[str, str]:
    """System labels never change: only the owner's need watching."""
    return {label_id: name for label_id, name in names.items() if label_id != name}


def names_seen(tx: Tx, account_id: str) -> dict[str, frozenset[str]]:
    """The names that each label id may have in the archive; more than one while it is being renamed."""
    rows = tx.execute(select(sync_labels).where(sync_labels.c.account_id == account_id)).all()
    names: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        names[row.label_id].add(row.name)
    return {label_id: frozenset(some) for label_id, some in names.items()}


def record_names(tx: Tx, account_id: str, names: Names) -> dict[str, frozenset[str]]:
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
