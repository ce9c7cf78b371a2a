"""A search that looks at every message, written apart from the real one, to compare it with."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

from postroom.archive.preparing import PreparedMail
from postroom.archive.search.labels import normal
from postroom.mail.query import opens_spam_and_trash
from postroom.mail.query.nodes import (
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

_OWN = re.compile(r"[A-Z_]+")  # the labels of these tests: Gmail's are written in capitals, the owner's are not


@cache
def words(text: str) -> str:
    """Cut and folded as the index does, one space around each: letters and digits count, accents do not."""
    folded = ""
    for character in text.lower():
        base = unicodedata.normalize("NFD", character)
        character = base[0] if len(base) > 1 and all(unicodedata.combining(mark) for mark in base[1:]) else character
        is_mark = unicodedata.combining(character)
        folded += "" if is_mark else character if unicodedata.category(character)[0] in "LN" else " "
    return f" {' '.join(folded.split())} "


def find(node: Node, mails: Iterable[PreparedMail]) -> list[PreparedMail]:
    hidden = set() if opens_spam_and_trash(node) else {"SPAM", "TRASH"}
    return [mail for mail in mails if matches(node, mail) and not hidden & (mail.mail.labels or frozenset())]


def matches(node: Node, mail: PreparedMail) -> bool:
    labels = mail.mail.labels or frozenset()
    match node:
        case And(parts):
            return all(matches(part, mail) for part in parts)
        case Or(parts):
            return any(matches(part, mail) for part in parts)
        case Not(part):
            return not matches(part, mail)
        case Text(field, wanted):
            return any(words(wanted) in words(text) for text in _texts(field, mail))
        case Labelled(label):
            return any(normal(label) == normal(own) for own in labels)
        case HasUserLabel():
            return any(not _OWN.fullmatch(label) for label in labels)
        case _:
            return _fact(node, mail)


def _fact(node: Received | Size | MessageId | HasAttachment | Anywhere, mail: PreparedMail) -> bool:
    match node:
        case Received(start, end):
            return (start is None or mail.date_ms >= start) and (end is None or mail.date_ms < end)
        case Size(over, under):
            size = len(mail.mail.raw)
            return (over is None or size > over) and (under is None or size < under)
        case MessageId(value):
            return mail.message_id.strip("<>") == value
        case HasAttachment():
            return bool(mail.attachments)
        case Anywhere():
            return True


def _texts(field: TextField, mail: PreparedMail) -> Sequence[str]:
    texts = mail.texts
    match field:
        case TextField.ANY:
            return [texts.subject, texts.sender, texts.recipients, texts.cc, texts.bcc, texts.body, texts.filenames]
        case TextField.FROM:
            return [texts.sender]
        case TextField.TO:
            return [texts.recipients, texts.bcc]
        case TextField.CC:
            return [texts.cc]
        case TextField.BCC:
            return [texts.bcc]
        case TextField.SUBJECT:
            return [texts.subject]
        case TextField.LIST:
            return [texts.list]
        case TextField.FILENAME:
            return [texts.filenames]
