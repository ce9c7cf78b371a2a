"""The facts of a message that rules test, computed when first asked for, from the control database or the archive.

Of archived mail the columns of a list often say enough to rule a message out: `glance_at` reads its headers only when
a rule asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import Row, select

from postroom.accounts.mailbox_state import label_ids_by_name, label_key
from postroom.archive.messages import ArchivedMessage
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.headers import Headers, triage_headers
from postroom.mail.patterns import LONGEST_TEXT, fold

_LIST_ID = re.compile(r"<([^<>]*)>[^<>]*$")
_PLAIN_SENDER = re.compile(r"(?:.*<)?([A-Za-z0-9._%+=-]+@[A-Za-z0-9.-]+)>?", re.DOTALL)
_LONGEST_PLAIN = 400
"""The archive cuts senders off; a longer one is not judged by its column."""

T = TypeVar("T")


class _lazy(Generic[T]):
    """`functools.cached_property` without its lock (gone in Python 3.12), which costs more than most facts do."""

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self._work_out = work_out
        self._name = work_out.__name__

    def __get__(self, facts: Any, owner: type) -> T:
        value = facts.__dict__[self._name] = self._work_out(facts)
        return value


@dataclass(frozen=True)
class MessageFacts:
    account_id: str | None
    senders: tuple[str, ...]
    """Every address in `From`, in its compared form. A rule about the sender has to fit them all: a message with two
    senders is from neither alone, or a forger need only add one."""
    subject: str
    headers: Mapping[str, str]
    """By lowercase name, as `mail/headers.py` keeps them."""
    labels: frozenset[str]
    """Names and ids, as `label_key` writes them."""
    has_attachment: bool
    size_bytes: int | None
    """None: not known, and then it is neither large nor small."""
    received_at: datetime

    @property
    def sender(self) -> str:
        """The first address in `From`; empty if there is none."""
        return self.senders[0] if self.senders else ""

    @_lazy
    def sender_domains(self) -> tuple[str, ...]:
        return tuple(sender.rpartition("@")[2] for sender in self.senders)

    @_lazy
    def folded_subject(self) -> str:
        return fold(self.subject)

    @_lazy
    def subject_bytes(self) -> bytes:
        """As patterns search it."""
        return self.subject[:LONGEST_TEXT].encode("utf-8", "replace")

    def folded_header(self, name: str) -> str:
        """Empty if the message has none of that name."""
        if name not in self._folded_headers:
            self._folded_headers[name] = fold(self.headers.get(name, ""))
        return self._folded_headers[name]

    @_lazy
    def _folded_headers(self) -> dict[str, str]:
        return {}

    @_lazy
    def recipients(self) -> frozenset[str]:
        """To whom it went openly: every address in `To` and `Cc`, in its compared form."""
        return frozenset((*_addresses(self.headers.get("to", "")), *_addresses(self.headers.get("cc", ""))))

    @_lazy
    def list_id(self) -> str | None:
        """The mailing list's own id, without the name that stands before it."""
        text = self.headers.get("list-id")
        return None if text is None else list_key(text)


def stored_facts(
    *,
    account_id: str | None,
    sender: str,
    subject: str | None,
    headers: Mapping[str, object] | None,
    labels: Iterable[str] | None,
    has_attachment: bool,
    size_bytes: int | None,
    received_at: datetime,
    label_ids: Mapping[str, str] | None = None,
) -> MessageFacts:
    """Of a message as the control database has it; `label_ids` are the ids of the account's labels by `label_key`."""
    texts = {str(name).lower(): str(value) for name, value in (headers or {}).items()}
    return MessageFacts(
        account_id=account_id,
        senders=_senders(texts, sender),
        subject=subject or "",
        headers=texts,
        labels=label_keys(labels or (), label_ids or {}),
        has_attachment=has_attachment,
        size_bytes=size_bytes,
        received_at=received_at,
    )


def _senders(headers: Mapping[str, str], envelope_sender: str) -> tuple[str, ...]:
    """Those of the message itself; of mail whose headers were not kept, the one that its connector named."""
    found = _addresses(headers.get("from", ""))
    return found or ((canonical_address(envelope_sender),) if envelope_sender else ())


@lru_cache(4_096)
def _addresses(text: str) -> tuple[str, ...]:
    """Most mail comes from few people, and goes to one."""
    return tuple(dict.fromkeys(address.canonical for address in parse_addresses(text))) if text else ()


def label_keys(labels: Iterable[str], ids: Mapping[str, str]) -> frozenset[str]:
    """Names and ids, whichever of them the message's row has, and the names that its labels had before."""
    found = {label_key(label) for label in labels}
    found |= {label_key(ids[name]) for name in found if name in ids}
    return frozenset(found | {name for name, label_id in ids.items() if label_key(label_id) in found})


def list_key(text: str) -> str:
    found = _LIST_ID.search(text)
    return (found[1] if found else text).strip().casefold()


def facts_of_message(tx: Tx, message_id: str) -> MessageFacts | None:
    """What rules may know of a message that was taken in; None if it is gone."""
    row = tx.execute(select(messages).where(messages.c.id == message_id)).one_or_none()
    return None if row is None else facts_of_row(tx, row)


def facts_of_row(tx: Tx, row: Row[*tuple[Any, ...]]) -> MessageFacts:
    account_id = row.account_id
    return stored_facts(
        account_id=account_id,
        sender=row.sender_identity,
        subject=row.subject,
        headers=row.headers,
        labels=row.labels,
        has_attachment=bool(row.attachments) if row.has_attachment is None else row.has_attachment,
        size_bytes=row.size_bytes,
        received_at=row.received_at,
        label_ids={}
        if account_id is None
        else tx.shared(("labels", account_id), lambda: label_ids_by_name(tx, account_id)),
    )


class _LateHeaders(Mapping[str, str]):
    """Headers that are read when a rule first asks for one."""

    def __init__(self, read: Callable[[], Headers]) -> None:
        self._read = read

    @_lazy
    def _found(self) -> dict[str, str]:
        return triage_headers(self._read())

    def __getitem__(self, name: str) -> str:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@lru_cache(4_096)
def _plain_sender(column: str) -> str | None:
    """The one address of a sender's column, in its compared form; None where it is not plain."""
    plain = _PLAIN_SENDER.fullmatch(column)
    return None if plain is None else canonical_address(plain[1])


def glance_at(
    message: ArchivedMessage, account_id: str | None, label_ids: Mapping[str, str], read: Callable[[], Headers]
) -> MessageFacts | None:
    """The facts as the columns of a list tell them. Of several senders, all of whom a rule has to fit, they know one,
    which is enough to rule a message out (`RuleSet.may_match`). None where the column is no plain address."""
    sender = _plain_sender(message.sender) if len(message.sender) <= _LONGEST_PLAIN else None
    if sender is None:
        return None
    return MessageFacts(
        account_id=account_id,
        senders=(sender,),
        subject=message.subject,
        headers=_LateHeaders(read),
        labels=label_keys(message.labels, label_ids),
        has_attachment=message.has_attachment,
        size_bytes=message.size,
        received_at=message.date,
    )


def archived_facts(
    headers: Headers,
    *,
    account_id: str | None,
    subject: str,
    labels: Iterable[str],
    has_attachment: bool,
    size_bytes: int,
    received_at: datetime,
    label_ids: Mapping[str, str],
) -> MessageFacts:
    """The same that would have been known of it, had it been taken in."""
    return stored_facts(
        account_id=account_id,
        sender="",
        subject=subject,
        headers=triage_headers(headers),
        labels=labels,
        has_attachment=has_attachment,
        size_bytes=size_bytes,
        received_at=received_at,
        label_ids=label_ids,
    )
