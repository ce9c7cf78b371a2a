"""Random queries, and a search that looks at every message. It is written independently of the real search, which has
to agree with it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

from hypothesis import strategies as st

from postroom.archive.folding import normal
from postroom.archive.preparing import PreparedMail
from postroom.mail.query import opens_spam_and_trash
from postroom.mail.query.nodes import (
    EVERYTHING,
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
    Similar,
    Size,
    Text,
    TextField,
)

NOISE = st.lists(
    st.sampled_from(
        [*"(){}-:|\"' ", "OR", "AND", "from:", "in:", "after:", "larger:", "has:", "is:", "2025/01/01", "1y"]
    )
    | st.text(max_size=5),
    max_size=30,
).map("".join)

_SECONDS = st.integers(0, 4_000_000_000).map(lambda second: second * 1_000)
_WORDS = st.text(max_size=12).map(lambda text: text.replace('"', ""))


def trees(leaves: st.SearchStrategy[Node], most: int = 12) -> st.SearchStrategy[Node]:
    """Leaves under AND, OR and NOT, in the shapes that the grammar can produce."""

    def grow(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        parts = st.lists(nodes, min_size=2, max_size=4).map(tuple)
        return parts.map(And) | parts.map(Or) | nodes.map(Not)

    return st.recursive(leaves, grow, max_leaves=most)


def any_leaf() -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(Text, st.just(TextField.ANY), _WORDS),
        st.builds(Text, st.sampled_from(TextField).filter(lambda field: field != "any"), _WORDS.filter(bool)),
        _SECONDS.map(lambda start: Received(start=start)),
        _SECONDS.map(lambda end: Received(end=end)),
        st.integers(0, 10**12 - 1).map(lambda size: Size(over=size)),
        st.integers(0, 10**12 - 1).map(lambda size: Size(under=size << 20)),
        st.sampled_from(["SPAM", "UNREAD", "CATEGORY_UPDATES", "my bills", "Kunden/Süd", "x-y"]).map(Labelled),
        _WORDS.map(lambda text: MessageId(text.strip("<>"))),
        st.sampled_from([HasAttachment(), HasUserLabel(), Anywhere(), EVERYTHING]),
    )


_OWN = re.compile(r"[A-Z_]+")  # the labels of these tests: Gmail's are written in capitals, the owner's are not


@cache
def words_of(text: str) -> str:
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
            spelled = words_of(wanted).rstrip(" ") if node.is_prefix else words_of(wanted)
            return any(spelled in words_of(text) for text in _texts(field, mail))
        case Labelled(label):
            return any(normal(label) == normal(own) for own in labels)
        case HasUserLabel():
            return any(not _OWN.fullmatch(label) for label in labels)
        case _:
            return _fact(node, mail)


def _fact(node: Received | Size | MessageId | HasAttachment | Anywhere | Similar, mail: PreparedMail) -> bool:
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
        case Similar():
            raise ValueError("words alone cannot tell what is similar")


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
        case TextField.ATTACHMENT:
            return []  # none was read
