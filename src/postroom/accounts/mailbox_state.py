"""The labels of a mailbox and the state of its messages, as the control database knows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, func, select, update

from postroom.db import Prepared, Tx
from postroom.db.database import insert
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import former_label_names, labels
from postroom.mailboxes.protocol import MailboxLabel


@dataclass(frozen=True, slots=True)
class KnownLabel:
    label_id: str
    name: str
    is_system: bool
    description: str | None
    """The owner's words for the model."""
    available_to_classifier: bool


def label_key(label: str) -> str:
    """The form in which labels are compared: Gmail has no two whose names differ only in capitals."""
    return label.strip().casefold()


@dataclass(frozen=True, slots=True)
class DeletedLabel:
    """A label that the mailbox no longer has."""

    name: str
    keys: frozenset[str]
    """All that a rule may call it by, in compared form: its id, its name and its former names."""


@dataclass(frozen=True, slots=True)
class ListingEffect:
    """What a listing of the mailbox's labels changed here."""

    added: int
    renamed: tuple[tuple[str, str], ...]
    """From, to."""
    deleted: tuple[DeletedLabel, ...]


_LABELS_OF = Prepared(
    select(labels).where(labels.c.account_id == bindparam("account")).order_by(labels.c.name, labels.c.label_id)
)


def labels_of(tx: Tx, account_id: str) -> list[KnownLabel]:
    return [_known(row) for row in tx.run(_LABELS_OF, {"account": account_id})]


def for_classifier(known: Iterable[KnownLabel]) -> list[KnownLabel]:
    """Those of the owner's own labels that a model may use."""
    return [label for label in known if label.available_to_classifier and not label.is_system]


def find_label(tx: Tx, account_id: str, text: str) -> KnownLabel | None:
    """By its id, else by its name, else by a name that it had before: a mailbox has no two labels whose names differ in
    case alone."""
    mine = select(labels).where(labels.c.account_id == account_id)
    before = select(former_label_names.c.label_id).where(
        former_label_names.c.account_id == account_id, former_label_names.c.name == label_key(text)
    )
    for condition in (
        labels.c.label_id == text,
        labels.c.name == text,
        func.lower(labels.c.name) == text.lower(),
        labels.c.label_id.in_(before),
    ):
        if (row := tx.execute(mine.where(condition).limit(1)).first()) is not None:
            return _known(row)
    return None


# Made once: to build a statement takes longer than to run it.
_NAMES = select(labels.c.name, labels.c.label_id).where(labels.c.account_id == bindparam("account"))
_ALL_NAMES, _NAME = Prepared(_NAMES), Prepared(_NAMES.where(labels.c.label_id == bindparam("label")))
_FORMER_NAMES = Prepared(
    select(former_label_names.c.name, former_label_names.c.label_id).where(
        former_label_names.c.account_id == bindparam("account")
    )
)


def label_ids_by_name(tx: Tx, account_id: str) -> dict[str, str]:
    """The ids of an account's labels, by the compared form of their names; also by names that they had before."""
    mine = {"account": account_id}
    former = {name: label_id for name, label_id in tx.run(_FORMER_NAMES, mine)}
    return former | {label_key(name): label_id for name, label_id in tx.run(_ALL_NAMES, mine)}


def former_names(tx: Tx, account_id: str) -> dict[str, str]:
    """The names that labels of the account have now, by the compared form of those that they had before."""
    query = select(former_label_names.c.name, labels.c.name.label("current")).where(
        former_label_names.c.account_id == account_id,
        labels.c.account_id == account_id,
        labels.c.label_id == former_label_names.c.label_id,
    )
    return {row.name: row.current for row in tx.execute(query)}


def remember_labels(tx: Tx, account_id: str, found: Iterable[MailboxLabel], now: datetime) -> None:
    """Add or rename; what the owner wrote about a label stays as it is. A renamed label is still found by its former
    name, unless another label has that name now."""
    found = list(found)
    rows = [_values(account_id, label, now) for label in found]
    if not rows:
        return
    _remember_former_names(tx, account_id, {label.id: label.name for label in found})
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
    by_name = label_ids_by_name(tx, account_id)
    deleted = tuple(
        DeletedLabel(label.name, frozenset({label_key(key), *(each for each, its in by_name.items() if its == key)}))
        for key, label in known.items()
        if key in candidates
    )
    renamed = tuple(
        (known[label.id].name, label.name)
        for label in listed
        if label.id in known and known[label.id].name != label.name
    )
    for label_id in candidates:
        forget_label(tx, account_id, label_id)
    remember_labels(tx, account_id, listed, now)
    return ListingEffect(len(current - known.keys()), renamed, deleted)


def forget_label(tx: Tx, account_id: str, label_id: str) -> None:
    for table in (labels, former_label_names):
        tx.execute(delete(table).where(table.c.account_id == account_id, table.c.label_id == label_id))


def _remember_former_names(tx: Tx, account_id: str, current: Mapping[str, str]) -> None:
    """`current` are the names that labels get now, by id."""
    renamed = [
        {"account_id": account_id, "name": label_key(label.name), "label_id": label.label_id}
        for label in labels_of(tx, account_id)
        if label_key(current.get(label.label_id, label.name)) != label_key(label.name)
    ]
    mine = former_label_names.c.account_id == account_id
    taken = [label_key(name) for name in current.values()]
    if renamed:
        statement = insert(tx, former_label_names)
        change = {"label_id": statement.excluded["label_id"]}
        tx.execute(statement.on_conflict_do_update(index_elements=["account_id", "name"], set_=change), renamed)
    tx.execute(delete(former_label_names).where(mine, former_label_names.c.name.in_(taken)))


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
_EMAIL = Prepared(select(accounts.c.email).where(accounts.c.id == bindparam("account")))
_THE_MESSAGE = and_(
    messages.c.provider == _GMAIL,
    messages.c.endpoint_identity == bindparam("identity"),
    messages.c.external_event_id == bindparam("the_message"),
)
_LABELS = Prepared(select(messages.c.labels).where(_THE_MESSAGE))
_LABELS_IN_ACCOUNT = Prepared(
    select(messages.c.labels, messages.c.endpoint_identity).where(
        messages.c.provider == _GMAIL,
        messages.c.endpoint_identity
        == select(accounts.c.email).where(accounts.c.id == bindparam("account")).scalar_subquery(),
        messages.c.external_event_id == bindparam("the_message"),
    )
)
_RELABEL = Prepared(update(messages).where(_THE_MESSAGE))
_MARK_DELETED = Prepared(update(messages).where(_THE_MESSAGE, messages.c.deleted_at_source.is_(None)))


def record_labels(tx: Tx, identity: str, labels: Mapping[str, Collection[str]]) -> None:
    """These messages, by Gmail id, have these labels now, by name. Messages that are not here are passed over."""
    tx.run_many(
        _RELABEL, [_named(identity, gmail_id) | {"labels": sorted(names)} for gmail_id, names in labels.items()]
    )


def change_labels(tx: Tx, identity: str, gmail_id: str, add: Collection[str], remove: Collection[str]) -> None:
    """The same where only the difference is known; a label in both `add` and `remove` is added."""
    for found in tx.run(_LABELS, _named(identity, gmail_id), lock=True):
        record_labels(tx, identity, {gmail_id: (set(found.labels or ()) - set(remove)) | set(add)})


def record_deleted(tx: Tx, identity: str, gmail_ids: Collection[str], now: datetime) -> None:
    """These are no longer in the mailbox. One that is already marked as deleted keeps its time."""
    for gmail_id in gmail_ids:
        tx.run(_MARK_DELETED, _named(identity, gmail_id) | {"deleted_at_source": now})


def record_label_change(
    tx: Tx, account_id: str, gmail_id: str, before: Collection[str], after: Collection[str]
) -> None:
    """What an action changed, by label ids. Only the difference is applied: another change of the same moment, which
    history may have reported already, stays."""
    for known in tx.run(_LABELS_IN_ACCOUNT, {"account": account_id, "the_message": gmail_id}, lock=True):
        kept = set() if known.labels is None else set(before) & set(after)
        was, now = ({_name(tx, account_id, each) for each in {*ids} - kept} for ids in (before, after))
        record_labels(tx, known.endpoint_identity, {gmail_id: (set(known.labels or ()) - (was - now)) | now})


def _name(tx: Tx, account_id: str, label_id: str) -> str:
    return next((row.name for row in tx.run(_NAME, {"account": account_id, "label": label_id})), label_id)


def email_of(tx: Tx, account_id: str) -> str:
    [row] = tx.run(_EMAIL, {"account": account_id})
    return str(row.email)


def _named(identity: str, gmail_id: str) -> dict[str, Any]:
    return {"identity": identity, "the_message": gmail_id}
