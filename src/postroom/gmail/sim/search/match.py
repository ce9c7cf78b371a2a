"""Decides whether a message matches a query. Cheap questions are asked first; a body is read last, if at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.search.nodes import (
    And,
    Anywhere,
    HasAttachment,
    HasUserLabel,
    Labelled,
    MessageId,
    Node,
    Not,
    Or,
    Received,
    Size,
    Text,
    TextField,
)

Test = Callable[["Candidate"], bool]
LabelFinder = Callable[[str], str | None]

_WORD = re.compile(r"[^\W_]+")
_USER_LABEL = "Label_"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message as a query sees it; the functions are called only by queries about bodies or attachments."""

    summary: MailSummary
    body: Callable[[], str]
    filenames: Callable[[], list[str]]


class Matcher:
    """A query made ready to be asked of many messages."""

    def __init__(self, node: Node, label_id: LabelFinder) -> None:
        self.start, self.end = _span(node)
        self.opens_spam_and_trash = _opens(node)
        self._test = _compile(node, label_id)

    def __call__(self, candidate: Candidate) -> bool:
        return self._test(candidate)


def normal(text: str) -> str:
    """Words in one case, one space around each: `x in y` then finds whole words next to each other."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def _span(node: Node) -> tuple[int | None, int | None]:
    """A range of dates outside of which nothing can match."""
    if isinstance(node, Received):
        return node.start, node.end
    if isinstance(node, And):
        spans = [_span(part) for part in node.parts]
        starts = [start for start, _ in spans if start is not None]
        ends = [end for _, end in spans if end is not None]
        return max(starts, default=None), min(ends, default=None)
    if isinstance(node, Or):
        spans = [_span(part) for part in node.parts]
        starts = [start for start, _ in spans if start is not None]
        ends = [end for _, end in spans if end is not None]
        return (
            min(starts) if len(starts) == len(spans) else None,
            max(ends) if len(ends) == len(spans) else None,
        )
    return None, None


def _opens(node: Node) -> bool:
    if isinstance(node, And | Or):
        return any(_opens(part) for part in node.parts)
    return isinstance(node, Anywhere) or (isinstance(node, Labelled) and node.label in ("SPAM", "TRASH"))


def _price(node: Node) -> int:
    """How dear it is to ask: header and label questions are nearly free, a body must be written and decoded."""
    if isinstance(node, And | Or):
        return max((_price(part) for part in node.parts), default=0)
    if isinstance(node, Not):
        return _price(node.part)
    if isinstance(node, Text):
        return 3 if node.field is TextField.ANY else 2 if node.field is TextField.FILENAME else 1
    return 0


def _compile(node: Node, label_id: LabelFinder) -> Test:
    match node:
        case And(parts):
            tests = [_compile(part, label_id) for part in sorted(parts, key=_price)]
            return lambda mail: all(test(mail) for test in tests)
        case Or(parts):
            tests = [_compile(part, label_id) for part in sorted(parts, key=_price)]
            return lambda mail: any(test(mail) for test in tests)
        case Not(part):
            test = _compile(part, label_id)
            return lambda mail: not test(mail)
        case Text():
            return _text(node)
        case Labelled(label):
            wanted = label_id(label)
            return lambda mail: wanted in mail.summary.label_ids
        case _:
            return _leaf(node)


def _leaf(node: Received | Size | MessageId | HasAttachment | HasUserLabel | Anywhere) -> Test:
    match node:
        case Received(start, end):
            low, high = start or 0, end if end is not None else 1 << 62
            return lambda mail: low <= mail.summary.internal_date < high
        case Size(over, under):
            least, most = over if over is not None else -1, under if under is not None else 1 << 62
            return lambda mail: least < mail.summary.size < most
        case MessageId(value):
            return lambda mail: mail.summary.message_id.strip("<>") == value
        case HasAttachment():
            return lambda mail: mail.summary.has_attachment
        case HasUserLabel():
            return lambda mail: any(label.startswith(_USER_LABEL) for label in mail.summary.label_ids)
        case Anywhere():
            return lambda mail: True
        case _:
            assert_never(node)


def _text(node: Text) -> Test:
    wanted = normal(node.words)
    if not wanted.strip():
        return lambda mail: True
    match node.field:
        case TextField.FROM:
            return lambda mail: wanted in normal(mail.summary.sender)
        case TextField.TO:
            return lambda mail: wanted in normal(mail.summary.to)
        case TextField.CC:
            return lambda mail: wanted in normal(mail.summary.cc)
        case TextField.SUBJECT:
            return lambda mail: wanted in normal(mail.summary.subject)
        case TextField.LIST:
            return lambda mail: wanted in normal(mail.summary.list_id)
        case TextField.FILENAME:
            return lambda mail: mail.summary.has_attachment and any(wanted in normal(name) for name in mail.filenames())
        case TextField.ANY:
            return lambda mail: _anywhere(mail, wanted)
        case _:
            assert_never(node.field)


def _anywhere(mail: Candidate, wanted: str) -> bool:
    summary = mail.summary
    headers = (summary.subject, summary.sender, summary.to, summary.cc)
    return any(wanted in normal(text) for text in headers) or wanted in normal(mail.body())
