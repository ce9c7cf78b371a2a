"""What joins a message to others: its Message-ID, what it refers to, who is concerned, its subject. Read from its head;
pure, and never fails because of what a sender wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from postroom.archive.preparing import Packed, clean_text, unpack_beginning
from postroom.domain.errors import Fatal
from postroom.mail.addresses import Address, parse_addresses
from postroom.mail.authentication import is_refuted
from postroom.mail.headers import Headers, bare_subject
from postroom.mail.parsing import list_id_of, message_id_in, message_ids_in
from postroom.reading.mail import read_headers

MOST_REFERENCES = 20
"""Of a longer chain count the first, which began it, and the nearest ones."""
MOST_PEOPLE = 100
"""Of a message; those beyond are not among its people."""
_HEAD_BYTES = 256 << 10
_SHORTEST_ID = 5
_SHORTEST_SUBJECT = 3


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A message as an archive has it, as far as conversations need it."""

    place: str
    """The shard, or the account in PostgreSQL."""
    row_id: int
    account: str
    thread: str
    date_ms: int
    sha256: bytes
    head: bytes
    """At least its headers; empty if they cannot be read."""
    labels: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    place: str
    row_id: int
    account: str
    thread: str
    sha256: bytes
    vertex: str
    """The same for all copies of a message, in whichever account: its Message-ID, Date and references are equal."""
    named: str
    """The hash of its Message-ID, by which others refer to it; empty if it has none."""
    date_ms: int
    author: str
    people: tuple[str, ...]
    """Author and recipients, in their compared form."""
    mailing_list: str
    subject: str
    """The hash of its subject without marks; empty where that is too short, or the message is of a mailing list."""
    is_answer_by_subject: bool
    """It is marked as an answer and refers to nothing, as some programs write it."""
    is_believed: bool
    """Neither spam, nor refuted by the receiving server, and of one author."""
    references: tuple[str, ...]
    """Hashes of Message-IDs, the nearest first."""


def head_of(codec: str, data: bytes) -> bytes:
    """The beginning of a stored message, without unpacking the rest; empty if it is damaged."""
    try:
        return unpack_beginning(Packed(codec, data), _HEAD_BYTES)
    except Fatal:
        return b""


def facts_of(stored: StoredHead) -> ConversationFacts:
    headers = read_headers(stored.head)
    authors = parse_addresses(*headers.get_all("From"))
    author = _compared(authors[:1])
    message_id = message_id_in(headers.get("Message-ID"))
    references = _references(headers, message_id)
    mailing_list = clean_text(list_id_of(headers) or "")[:200]
    subject, is_reply = bare_subject(headers.text("Subject") or "")
    is_comparable = len(subject) >= _SHORTEST_SUBJECT and not mailing_list
    return ConversationFacts(
        place=stored.place,
        row_id=stored.row_id,
        account=stored.account,
        thread=stored.thread,
        sha256=stored.sha256,
        vertex=_vertex(stored, headers, message_id, references),
        named=_hash(message_id) if message_id is not None and _can_be_referred_to(message_id) else "",
        date_ms=stored.date_ms,
        author=author[0] if author else "",
        people=_people(headers, author),
        mailing_list=mailing_list,
        subject=_hash(subject) if is_comparable else "",
        is_answer_by_subject=is_comparable and is_reply and not references,
        is_believed=_is_believed(stored, headers, authors),
        references=references,
    )


def _vertex(stored: StoredHead, headers: Headers, message_id: str | None, references: tuple[str, ...]) -> str:
    """A Message-ID that is used again for something else names another message, which takes no one's place."""
    if message_id is None:
        return f"c{_hash(stored.sha256.hex())}"
    return f"c{_hash(' '.join((message_id, headers.get('Date') or '', *references)))}"


def _references(headers: Headers, own: str | None) -> tuple[str, ...]:
    chain = list(message_ids_in(headers.get("References")))
    direct = message_id_in(headers.get("In-Reply-To"))
    nearest_first = dict.fromkeys([*([direct] if direct else []), *reversed(chain)])
    usable = [each for each in nearest_first if each != own and _can_be_referred_to(each)]
    if len(usable) > MOST_REFERENCES:
        usable = [*usable[: MOST_REFERENCES - 1], usable[-1]]
    return tuple(map(_hash, usable))


def _can_be_referred_to(message_id: str) -> bool:
    """Placeholders such as `<1>` are not names of messages."""
    return "@" in message_id and len(message_id) > _SHORTEST_ID


def _people(headers: Headers, author: tuple[str, ...]) -> tuple[str, ...]:
    written = [value for name in ("To", "Cc", "Bcc") for value in headers.get_all(name)]
    recipients = parse_addresses(*written)[:MOST_PEOPLE]
    return tuple(dict.fromkeys([*author, *_compared(recipients)]))


def _compared(addresses: Collection[Address]) -> tuple[str, ...]:
    return tuple(clean_text(each.canonical)[:320] for each in addresses)


def _is_believed(stored: StoredHead, headers: Headers, authors: tuple[Address, ...]) -> bool:
    is_one = len(authors) == 1 and "SPAM" not in stored.labels
    return is_one and not is_refuted(headers, authors[0].domain)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:15]
