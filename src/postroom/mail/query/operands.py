"""What each operator makes of its operand: dates, ages, sizes, places, words in a header; and the errors of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from postroom.domain.errors import BadInput
from postroom.mail.query import nodes


class QueryError(BadInput):
    """A query that means nothing: `position` is the column of the mistake, counted from 1."""

    def __init__(self, problem: str, *, position: int, expected: str) -> None:
        super().__init__("query", f"{problem} at column {position}; expected {expected}")
        self.reason = problem
        self.position = position
        self.expected = expected


class OperandError(Exception):
    """An operator cannot use its operand; the grammar adds where that stands."""

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected


DAY_MS = 86_400_000
_UNIT_DAYS = {"d": 1, "m": 30, "y": 365}
_UNIT_BYTES = {"": 1, "k": 1024, "m": 1024 * 1024}
_PLACES = {"draft": "DRAFT", "drafts": "DRAFT", "sent": "SENT", "inbox": "INBOX", "spam": "SPAM", "trash": "TRASH"}
_STATES = {"unread": "UNREAD", "starred": "STARRED", "important": "IMPORTANT"}
STATES = frozenset({*_STATES, *_PLACES, "read"})
CATEGORIES = frozenset({"primary", "social", "promotions", "updates", "forums", "reservations", "purchases"})
_KEY = re.compile(r"[0-9A-Za-z]{1,80}")
_YEAR_DIGITS = 4  # so many digits are a year, as people write it; any other number is seconds
_MAX_EPOCH_S = 253_402_300_799  # the last second of the year 9999, the last that a datetime can hold


Operand = Callable[[str, int], nodes.Node]


_YEAR_ALONE = re.compile(
    r"""("[^"]*"?)|(?<![^\s(){}-])((?:after|newer|before|older):[0-9]{4})(?![^\s(){}])""", re.IGNORECASE
)


def with_whole_dates(query: str) -> str:
    """`after:2025` as `after:2025/01/01`, for a mailbox that may take a bare number for seconds; phrases stay."""
    return _YEAR_ALONE.sub(lambda found: found[1] or f"{found[2]}/01/01", query)


def _date_ms(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) != _YEAR_DIGITS:
        seconds = int(text[:20])
        if seconds > _MAX_EPOCH_S:
            raise OperandError(f"{text[:40]} is later than any date", "at most the year 9999")
        return seconds * 1000
    for pattern in ("%Y/%m/%d", "%Y-%m-%d", "%Y"):
        try:
            return int(datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp()) * 1000
        except ValueError:
            continue
    raise OperandError(f"{text[:40]!r} is not a date", "YYYY, YYYY/MM/DD or seconds since 1970")


def _age_ms(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,5})([dmy])", text.lower())
    if not found:
        raise OperandError(f"{text[:40]!r} is not an age", "for example 3d, 2m or 1y")
    return int(found[1]) * _UNIT_DAYS[found[2]] * DAY_MS


def _ago(now: int, text: str) -> int:
    return max(now - _age_ms(text), 0)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([km]?)b?", text.lower())
    if not found:
        raise OperandError(f"{text[:40]!r} is not a size", "for example 500000, 200K or 5M")
    return int(found[1]) * _UNIT_BYTES[found[2]]


def _words_in(field: nodes.TextField) -> Operand:
    return lambda text, now: nodes.Text(field, text) if text else nodes.EVERYTHING


def _place(text: str, now: int) -> nodes.Node:
    name = text.lower()
    if name in ("anywhere", "all"):
        return nodes.Anywhere()
    return _state(text, now) if name in _STATES or name == "read" else nodes.Labelled(_PLACES.get(name, text))


def _state(text: str, now: int) -> nodes.Node:
    name = text.lower()
    if name == "read":
        return nodes.Not(nodes.Labelled("UNREAD"))
    return nodes.Labelled(_STATES.get(name) or _PLACES.get(name, text))


def _category(text: str, now: int) -> nodes.Node:
    name = text.lower()
    return nodes.Labelled("CATEGORY_" + ("PERSONAL" if name == "primary" else name.upper()))


def _has(text: str, now: int) -> nodes.Node:
    match text.lower():
        case "attachment":
            return nodes.HasAttachment()
        case "userlabels":
            return nodes.HasUserLabel()
        case "nouserlabels":
            return nodes.Not(nodes.HasUserLabel())
        case "conversation":
            return nodes.HasConversation()
        case other:
            known = "attachment, conversation, userlabels or nouserlabels"
            raise OperandError(f"has:{other[:40]} is not known", known)


def _conversation(text: str, now: int) -> nodes.Node:
    return nodes.InConversation(text) if text else nodes.EVERYTHING


def _similar(text: str, now: int) -> nodes.Node:
    if not _KEY.fullmatch(text):
        raise OperandError(f"{text[:40]!r} is not the key of a message", "a key as search and lists print it")
    return nodes.Similar(text)


OPERATORS: Mapping[str, Operand] = {
    "from": _words_in(nodes.TextField.FROM),
    "to": _words_in(nodes.TextField.TO),
    "cc": _words_in(nodes.TextField.CC),
    "bcc": _words_in(nodes.TextField.BCC),
    "subject": _words_in(nodes.TextField.SUBJECT),
    "list": _words_in(nodes.TextField.LIST),
    "filename": _words_in(nodes.TextField.FILENAME),
    "attachment": _words_in(nodes.TextField.ATTACHMENT),
    "in": _place,
    "is": _state,
    "label": _place,
    "category": _category,
    "has": _has,
    "after": lambda text, now: nodes.Received(start=_date_ms(text)),
    "newer": lambda text, now: nodes.Received(start=_date_ms(text)),
    "before": lambda text, now: nodes.Received(end=_date_ms(text)),
    "older": lambda text, now: nodes.Received(end=_date_ms(text)),
    "older_than": lambda text, now: nodes.Received(end=_ago(now, text)),
    "newer_than": lambda text, now: nodes.Received(start=_ago(now, text)),
    "larger": lambda text, now: nodes.Size(over=_bytes(text)),
    "size": lambda text, now: nodes.Size(over=_bytes(text)),
    "smaller": lambda text, now: nodes.Size(under=_bytes(text)),
    "thread": _conversation,
    "similar": _similar,
    "rfc822msgid": lambda text, now: nodes.MessageId(text.strip("<>")),
}
