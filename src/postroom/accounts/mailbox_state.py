"""The labels of a mailbox and the state of its messages, as the control database knows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Row, delete, func, select, update

from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import labels
from postroom.mailboxes.protocol import MailboxLabel


@dataclass(frozen=True, slots=True)
class KnownLabel:
    label_id: str
    name: str
    is_system: bool
    description: str | None
    """The owner's words for the model."""
    available_to_classifier: bool


@dataclass(frozen=True, slots=True)
class ListingEffect:
    """What a listing of the mailbox's labels changed here."""

    added: int
    renamed: tuple[tuple[str, str], ...]
    """From, to."""
    deleted: tuple[KnownLabel, ...]


def labels_of(tx: Tx, account_id: str) -> list[KnownLabel]:
    query = select(labels).where(labels.c.account_id == account_id).order_by(labels.c.name, labels.c.label_id)
    return [_known(row) for row in tx.execute(query)]


def for_classifier(known: Iterable[KnownLabel]) -> list[KnownLabel]:
    """Those of the owner's own labels that a model may use."""
    return [label for label in known if label.available_to_classifier and not label.is_system]


def find_label(tx: Tx, account_id: str, text: str) -> KnownLabel | None:
    """By its id, else by its name: a mailbox has no two labels whose names differ in case alone."""
    mine = select(labels).where(labels.c.account_id == account_id)
    for condition in (
        labels.c.label_id == text,
        labels.c.name == text,
        func.lower(labels.c.name) == text.lower(),
    ):
        if (row := tx.execute(mine.where(condition).limit(1)).first()) is not None:
            return _known(row)
    return None


def remember_labels(tx: Tx, account_id: str, found: Iterable[MailboxLabel], now: datetime) -> None:
    """Add or rename; what the owner wrote about a label stays as it is."""
    rows = [_values(account_id, label, now) for label in found]
    if not rows:
        return
    statement = insert(tx, labels)
    written = statement.on_conflict_do_update(
        index_elements=["account_id", "label_id"],
        set_={name: statement.excluded[name] for name in ("name", "type", "updated_at")},
    )
    tx.execute(written, rows)


def take_listing(
    tx: Tx, account_id: str, listed: Sequence[MailboxLabel], asked_at: datetime, now: datetime
) -> ListingEffect:
    """Record a complete listing of the mailbox's labels; labels on record that it lacks are removed.

    A label that was recorded after `asked_at` stays, since it was made after the listing.
    """
    known = {label.label_id: label for label in labels_of(tx, account_id)}
    current = {label.id for label in listed}
    older = (labels.c.account_id == account_id) & (labels.c.updated_at <= asked_at)
    candidates = set(tx.execute(select(labels.c.label_id).where(older)).scalars()) - current
    deleted = tuple(label for label_id, label in known.items() if label_id in candidates)
    renamed = tuple(
        (known[label.id].name, label.name)
        for label in listed
        if label.id in known and known[label.id].name != label.name
    )
    for label in deleted:
        forget_label(tx, account_id, label.label_id)
    remember_labels(tx, account_id, listed, now)
    return ListingEffect(len(current - known.keys()), renamed, deleted)


def forget_label(tx: Tx, account_id: str, label_id: str) -> None:
    tx.execute(delete(labels).where(labels.c.account_id == account_id, labels.c.label_id == label_id))


def describe_label(
    tx: Tx, account_id: str, label_id: str, now: datetime, *, description: str | None, available: bool
) -> bool:
    """The owner's own columns; False if there is no such label."""
    mine = (labels.c.account_id == account_id) & (labels.c.label_id == label_id)
    values = {"description": description, "available_to_classifier": available, "updated_at": now}
    return tx.execute(update(labels).where(mine).values(**values)).rowcount == 1


def _values(account_id: str, label: MailboxLabel, now: datetime) -> dict[str, Any]:
    kind = "system" if label.is_system else "user"
    return {"account_id": account_id, "label_id": label.id, "name": label.name, "type": kind, "updated_at": now}


def _known(row: Row[*tuple[Any, ...]]) -> KnownLabel:
    return KnownLabel(row.label_id, row.name, row.type == "system", row.description, row.available_to_classifier)


_GMAIL = "gmail"


class MailboxObserver(Protocol):
    """Called with what changed in a mailbox, in the transaction that records it."""

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        """`labels`: by Gmail id, the labels that messages have now, or at least those they gained."""


class NoObserver:
    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        """Ignores changes."""


def record_labels(tx: Tx, identity: str, labels: Mapping[str, Collection[str]]) -> None:
    """These messages, by Gmail id, have these labels now, by name. Messages that are not here are passed over."""
    for gmail_id, names in labels.items():
        tx.execute(update(messages).where(_is(identity, gmail_id)).values(labels=sorted(names)))


def change_labels(tx: Tx, identity: str, gmail_id: str, add: Collection[str], remove: Collection[str]) -> None:
    """The same where only the difference is known; a label in both `add` and `remove` is added."""
    found = tx.execute(tx.locking(select(messages.c.labels).where(_is(identity, gmail_id)))).first()
    if found is not None:
        record_labels(tx, identity, {gmail_id: (set(found.labels or ()) - set(remove)) | set(add)})


def record_deleted(tx: Tx, identity: str, gmail_ids: Collection[str], now: datetime) -> None:
    """These are no longer in the mailbox. One that is already marked as deleted keeps its time."""
    for gmail_id in gmail_ids:
        condition = _is(identity, gmail_id) & messages.c.deleted_at_source.is_(None)
        tx.execute(update(messages).where(condition).values(deleted_at_source=now))


def record_label_ids(tx: Tx, account_id: str, gmail_id: str, label_ids: Collection[str]) -> None:
    """As `record_labels` for one message, with label ids in place of names."""
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
