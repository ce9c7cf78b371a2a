"""When two messages are the same, and what becomes of one that is stored again. The same for files and PostgreSQL.

Identity is the account and the Gmail id. The sender writes the Message-ID, so it proves nothing by itself: it finds a
duplicate only together with equal bytes, and only where one of the two has no Gmail id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from postroom.archive.messages import Provenance, StoreOutcome
from postroom.archive.preparing import PreparedMail


class KnownMessage(Protocol):
    """What is compared of a stored message."""

    @property
    def key(self) -> str: ...

    @property
    def gmail_id(self) -> str | None: ...

    @property
    def sha256(self) -> bytes: ...

    @property
    def provenance(self) -> str: ...

    @property
    def is_unread(self) -> bool:
        """Whether little more than its bytes is known."""


@dataclass(frozen=True, slots=True)
class KnownMessageUpdate:
    """What to change of a message that is stored again, and the result to return."""

    outcome: StoreOutcome
    key: str
    """The message's key afterwards."""
    sha256: bytes
    """Of the bytes that are stored afterwards."""
    trouble: str | None
    learns_labels: bool
    corrects_date: bool
    """If an import stored it first, its date was that of the Date header. The row id stays."""
    replaces: bool = False
    """The API's bytes are what Gmail holds; a Takeout's may differ in details."""
    rereads: bool = False
    """The same bytes, of which more is known now."""
    confirms: bool = False
    """The API has just shown these bytes: it is the source's, and not deleted there."""
    adopts: bool = False
    """It was imported without a Gmail id and has one now."""


def may_be_twins(gmail_id: str | None, other: str | None) -> bool:
    """Whether messages with equal bytes and Message-ID are one: two with Gmail ids are two."""
    return gmail_id is None or other is None


def reconcile(known: KnownMessage, mail: PreparedMail) -> KnownMessageUpdate:
    incoming = mail.mail
    from_api = incoming.provenance is Provenance.API
    learns_labels = incoming.labels is not None
    corrects_date = from_api and incoming.received is not None
    if known.sha256 == mail.sha256:
        adopts = incoming.gmail_id is not None and known.gmail_id is None
        rereads = known.is_unread and mail.trouble is None
        again = StoreOutcome.REREAD if rereads else StoreOutcome.DUPLICATE
        return KnownMessageUpdate(
            outcome=StoreOutcome.ADOPTED if adopts else again,
            key=mail.key if adopts else known.key,
            sha256=mail.sha256,
            trouble=mail.trouble,
            learns_labels=learns_labels,
            corrects_date=corrects_date,
            rereads=rereads,
            confirms=from_api,
            adopts=adopts,
        )
    replaces = from_api and known.provenance != Provenance.API
    return KnownMessageUpdate(
        outcome=StoreOutcome.REPLACED if replaces else StoreOutcome.DUPLICATE,
        key=known.key,
        sha256=mail.sha256 if replaces else known.sha256,
        trouble=mail.trouble if replaces else None,
        learns_labels=learns_labels,
        corrects_date=corrects_date,
        replaces=replaces,
    )
