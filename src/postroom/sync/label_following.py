"""Follows the labels of the source: what is renamed or deleted there is renamed or taken away in the archive.

The names that the archive may hold are on record before any mail gets them, and off the record only after none has
them: a crash in between is seen as such, and the labels concerned are then compared member by member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import delete, select

from postroom.db import Database, Tx
from postroom.db.tables.sync import sync_labels
from postroom.gmail.client import GmailClient
from postroom.sync.label_changes import changes_between
from postroom.sync.membership import align_label, strip_label
from postroom.sync.store import ArchiveStore
from postroom.telemetry import logs

log = logs.get(__name__)


class LabelFollower:
    """`follow` is what `LabelNames` calls with every list of labels."""

    def __init__(self, database: Database, account_id: str, client: GmailClient, store: ArchiveStore) -> None:
        self._database = database
        self._account_id = account_id
        self._client = client
        self._store = store

    async def follow(self, listed: Mapping[str, str]) -> None:
        now = {label_id: name for label_id, name in listed.items() if label_id != name}  # system labels never change
        before = await self._database.read(lambda tx: names_seen(tx, self._account_id))
        if before == {label_id: frozenset({name}) for label_id, name in now.items()}:
            return
        await self._database.write(lambda tx: record_names(tx, self._account_id, now))
        changes = changes_between(before, now)
        if changes:
            log.info(
                "sync.labels_changed",
                renamed=len(changes.renamed),
                dropped=len(changes.dropped),
                compared=len(changes.mixed),
            )
        for old, new in changes.renamed:
            await self._store.rename_label(old, new)
        for name in changes.dropped:
            await strip_label(self._store, name)
        for label_id, name in changes.mixed:
            await align_label(self._client, self._store, label_id, name)
        await self._database.write(lambda tx: record_names(tx, self._account_id, now, alone=True))


def names_seen(tx: Tx, account_id: str) -> dict[str, frozenset[str]]:
    """The names that each label id may have in the archive; more than one while it is being renamed."""
    rows = tx.execute(select(sync_labels).where(sync_labels.c.account_id == account_id)).all()
    names: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        names[row.label_id].add(row.name)
    return {label_id: frozenset(some) for label_id, some in names.items()}


def record_names(tx: Tx, account_id: str, names: Mapping[str, str], *, alone: bool = False) -> None:
    """These may be in the archive from now on, beside those on record; `alone`: no others any more."""
    known = names_seen(tx, account_id)
    if alone:
        tx.execute(delete(sync_labels).where(sync_labels.c.account_id == account_id))
        known = {}
    rows = [
        {"account_id": account_id, "label_id": label_id, "name": name}
        for label_id, name in names.items()
        if name not in known.get(label_id, frozenset())
    ]
    if rows:
        tx.execute(sync_labels.insert(), rows)
