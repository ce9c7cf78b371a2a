"""Gmail's resources as types, and the functions that parse them. Ids, including history ids, are text; raw mail is
bytes, exactly as Gmail holds it.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class MessageFormat(StrEnum):
    """How much of a message to get. Only RAW brings the bytes."""

    RAW = "raw"
    METADATA = "metadata"
    MINIMAL = "minimal"


@dataclass(frozen=True, slots=True)
class Profile:
    email: str
    messages_total: int
    history_id: str


@dataclass(frozen=True, slots=True)
class MessageRef:
    """A message by its ids. Labels are there where Gmail gave them."""

    id: str
    thread_id: str
    label_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GmailMessage:
    id: str
    thread_id: str
    label_ids: frozenset[str] = frozenset()
    history_id: str | None = None
    internal_date_ms: int | None = None
    size_estimate: int | None = None
    snippet: str = field(default="", repr=False)
    raw: bytes | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Only with METADATA."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    messages: tuple[MessageRef, ...]
    next_token: str | None
    """Where to go on; None after the last page."""
    estimate: int
    """Gmail's guess at the total, which is often wrong."""


@dataclass(frozen=True, slots=True)
class GmailThread:
    id: str
    history_id: str | None
    messages: tuple[GmailMessage, ...]


@dataclass(frozen=True, slots=True)
class GmailLabel:
    id: str
    name: str
    is_system: bool


@dataclass(frozen=True, slots=True)
class Draft:
    id: str
    message: GmailMessage


@dataclass(frozen=True, slots=True)
class LabelChange:
    message: MessageRef
    label_ids: frozenset[str]
    """Those that were added, or removed."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    id: str
    added: tuple[MessageRef, ...] = ()
    deleted: tuple[MessageRef, ...] = ()
    labels_added: tuple[LabelChange, ...] = ()
    labels_removed: tuple[LabelChange, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryPage:
    records: tuple[HistoryRecord, ...]
    """May be empty and still not be the last."""
    next_token: str | None
    history_id: str
    """Where the mailbox stood when Gmail answered; what to start from once the last page is worked off."""


def decoded(text: str) -> bytes:
    """The bytes behind base64url, with or without padding; anything else in it is an error, never skipped."""
    digits = text.encode("ascii").rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    raw = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))  # strict mode takes half as long again
    if len(raw) != len(digits) * 3 // 4 or len(digits) % 4 == 1:
        raise binascii.Error("not base64url")
    return raw


def encoded(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def profile(value: Json) -> Profile:
    return Profile(
        value["emailAddress"],
        int(value.get("messagesTotal", 0)),
        str(value["historyId"]),
    )


def ref(value: Json) -> MessageRef:
    return MessageRef(_id(value), str(value.get("threadId", "")), frozenset(value.get("labelIds", ())))


def message(value: Json) -> GmailMessage:
    raw, date, history_id = (value.get(name) for name in ("raw", "internalDate", "historyId"))
    payload = value.get("payload") or {}
    return GmailMessage(
        id=_id(value),
        thread_id=str(value.get("threadId", "")),
        label_ids=frozenset(value.get("labelIds", ())),
        history_id=None if history_id is None else str(history_id),
        internal_date_ms=None if date is None else int(date),
        size_estimate=value.get("sizeEstimate"),
        snippet=value.get("snippet", ""),
        raw=None if raw is None else decoded(raw),
        headers=tuple((each["name"], each.get("value", "")) for each in payload.get("headers", ())),
    )


def raw_message(value: Json) -> GmailMessage:
    """Raises KeyError if the answer lacks the bytes that were asked for; only an empty message has none."""
    if "raw" not in value or (not value["raw"] and value.get("sizeEstimate")):
        raise KeyError("raw")
    return message(value)


def message_page(value: Json) -> MessagePage:
    refs = tuple(ref(each) for each in value.get("messages", ()))
    return MessagePage(refs, value.get("nextPageToken") or None, int(value.get("resultSizeEstimate", 0)))


def thread(value: Json) -> GmailThread:
    history_id = value.get("historyId")
    messages = tuple(message(each) for each in value.get("messages", ()))
    return GmailThread(_id(value), None if history_id is None else str(history_id), messages)


def label(value: Json) -> GmailLabel:
    return GmailLabel(_id(value), value["name"], value.get("type") == "system")


def labels(value: Json) -> tuple[GmailLabel, ...]:
    return tuple(label(each) for each in value.get("labels", ()))


def draft(value: Json) -> Draft:
    return Draft(_id(value), message(value["message"]))


def drafts(value: Json) -> tuple[Draft, ...]:
    return tuple(draft(each) for each in value.get("drafts", ()))


def history_page(value: Json) -> HistoryPage:
    records = tuple(_record(each) for each in value.get("history", ()))
    return HistoryPage(records, value.get("nextPageToken") or None, str(value["historyId"]))


def _record(value: Json) -> HistoryRecord:
    return HistoryRecord(
        str(value["id"]),
        added=tuple(ref(each["message"]) for each in value.get("messagesAdded", ())),
        deleted=tuple(ref(each["message"]) for each in value.get("messagesDeleted", ())),
        labels_added=tuple(_label_change(each) for each in value.get("labelsAdded", ())),
        labels_removed=tuple(_label_change(each) for each in value.get("labelsRemoved", ())),
    )


def _label_change(value: Json) -> LabelChange:
    return LabelChange(ref(value["message"]), frozenset(value.get("labelIds", ())))


def _id(value: Json) -> str:
    found = value["id"]
    if not isinstance(found, str) or not found:
        raise ValueError("an id is text")
    return found
