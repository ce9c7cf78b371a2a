"""How a mailbox's messages stand, as the control database has it: their labels by name, and what is gone there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import ColumnElement, select, update

from postroom.accounts.labels import labels_of
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages

_GMAIL = "gmail"


class SourceWatch(Protocol):
    """Whoever has to know what changed in a mailbox; told in the transaction that records it."""

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        """By Gmail id: the labels that messages have now, or at least those that came; and what is gone."""


class NobodyWatches:
    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        """Nobody has to know."""


def record_labels(tx: Tx, identity: str, labels: Mapping[str, Collection[str]]) -> None:
    """These messages, by Gmail id, have these labels now, by name. Messages that are not here are passed over."""
    for gmail_id, names in labels.items():
        tx.execute(update(messages).where(_is(identity, gmail_id)).values(labels=sorted(names)))


def change_labels(tx: Tx, identity: str, gmail_id: str, add: Collection[str], remove: Collection[str]) -> None:
    """The same where only the difference is known; what is on both sides was given."""
    found = tx.execute(tx.locking(select(messages.c.labels).where(_is(identity, gmail_id)))).first()
    if found is not None:
        record_labels(tx, identity, {gmail_id: (set(found.labels or ()) - set(remove)) | set(add)})


def record_deleted(tx: Tx, identity: str, gmail_ids: Collection[str], now: datetime) -> None:
    """These are no longer in the mailbox; the first word of it stands."""
    for gmail_id in gmail_ids:
        condition = _is(identity, gmail_id) & messages.c.deleted_at_source.is_(None)
        tx.execute(update(messages).where(condition).values(deleted_at_source=now))


def record_label_ids(tx: Tx, account_id: str, gmail_id: str, label_ids: Collection[str]) -> None:
    """The same where ids are known and not names."""
    names = {label.label_id: label.name for label in labels_of(tx, account_id)}
    record_labels(tx, email_of(tx, account_id), {gmail_id: {names.get(each, each) for each in label_ids}})


def email_of(tx: Tx, account_id: str) -> str:
    return str(tx.execute(select(accounts.c.email).where(accounts.c.id == account_id)).scalar_one())


def _is(identity: str, gmail_id: str) -> ColumnElement[bool]:
    return (
        (messages.c.provider == _GMAIL)
        & (messages.c.endpoint_identity == identity)
        & (messages.c.external_event_id == gmail_id)
    )
