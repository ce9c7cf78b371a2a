"""The tree of a parsed query: its nodes, what can be said of it before any mail is looked at, and writing it down
again.

`parse(format_query(node)) == node` for every node that comes out of `parse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import assert_never

from postroom.mail.query.segmenting import ends_without_space, for_query, needs_segmenting

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TextField(StrEnum):
    """Where a word is looked for."""

    ANY = "any"
    FROM = "from"
    TO = "to"
    CC = "cc"
    BCC = "bcc"
    SUBJECT = "subject"
    LIST = "list"
    FILENAME = "filename"
    ATTACHMENT = "attachment"
    """In the text of attachments, not in their names."""


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


@dataclass(frozen=True, slots=True)
class Received:
    """Received in `[start, end)`, in milliseconds, whole seconds; None is open."""

    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """Strictly larger or strictly smaller than so many bytes."""

    over: int | None = None
    under: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """The words, next to each other and in this order; before an asterisk at the end, the beginning of a word."""

    field: TextField
    words: str

    @property
    def is_prefix(self) -> bool:
        """`invoi*`; a single letter would find nearly everything, unless it is as good as a word."""
        if not self.words.endswith("*"):
            return False
        return (len(self.words) > 2 and self.words[-3:-1].isalnum()) or ends_without_space(self.words)

    @property
    def segmented(self) -> Text:
        """For an index that has the words of languages without spaces."""
        if not needs_segmenting(self.words):
            return self
        words, is_prefix = for_query(self.words, self.is_prefix)
        return Text(self.field, f"{words}*" if is_prefix and not words.endswith("*") else words)


@dataclass(frozen=True, slots=True)
class Labelled:
    """Has the label of this id or name."""

    label: str


@dataclass(frozen=True, slots=True)
class MessageId:
    value: str


@dataclass(frozen=True, slots=True)
class HasAttachment:
    pass


@dataclass(frozen=True, slots=True)
class HasUserLabel:
    pass


class ConversationBy(StrEnum):
    """What a conversation is named by."""

    ANY_NAME = "any name"
    """As a person wrote it: the name of a conversation, the key of one of its messages, or a thread."""
    ROOT = "root"
    """Its name in the index of conversations."""
    THREAD = "thread"
    """A thread of a mailbox, for mail that is not in that index."""


@dataclass(frozen=True, slots=True)
class InConversation:
    value: str
    by: ConversationBy = ConversationBy.ANY_NAME


@dataclass(frozen=True, slots=True)
class HasConversation:
    """Is part of a conversation of at least two messages."""


@dataclass(frozen=True, slots=True)
class Anywhere:
    """True of every message, and opens spam and trash to the search."""


@dataclass(frozen=True, slots=True)
class Similar:
    """Means much the same as the message with this key. Only the archive can tell."""

    key: str


Fact = (
    Received | Size | MessageId | HasAttachment | HasUserLabel | InConversation | HasConversation | Anywhere | Similar
)
"""A leaf that is neither about text nor about a label."""
Node = And | Or | Not | Text | Labelled | Fact

EVERYTHING = And(())


Span = tuple[int | None, int | None]


def span(node: Node) -> Span:
    """A range of dates, in milliseconds, outside of which nothing can match; None is open."""
    if isinstance(node, Received):
        return node.start, node.end
    if isinstance(node, And):
        spans = [span(part) for part in node.parts]
        starts = [start for start, _ in spans if start is not None]
        ends = [end for _, end in spans if end is not None]
        return max(starts, default=None), min(ends, default=None)
    if isinstance(node, Or):
        spans = [span(part) for part in node.parts]
        starts = [start for start, _ in spans if start is not None]
        ends = [end for _, end in spans if end is not None]
        return (
            min(starts) if starts and len(starts) == len(spans) else None,
            max(ends) if ends and len(ends) == len(spans) else None,
        )
    return None, None


def opens_spam_and_trash(node: Node) -> bool:
    """Spam and trash are searched only by a query that names them."""
    if isinstance(node, And | Or):
        return any(opens_spam_and_trash(part) for part in node.parts)
    return isinstance(node, Anywhere) or (isinstance(node, Labelled) and node.label in ("SPAM", "TRASH"))


_BARE = re.compile(r"(?!(?:OR|AND)$)[A-Za-z0-9][A-Za-z0-9_.@+-]*")
_EVERYWHERE = ("anywhere", "all")  # `label:all` means another thing than a label of that name


def format_query(node: Node) -> str:
    """`parse(format_query(node)) == node` for every node that comes out of `parse`."""
    return " ".join(map(_beside, node.parts)) if isinstance(node, And) else _beside(node)


def _beside(node: Node) -> str:
    """Within a list of what must all be true: OR binds tighter, so it needs no brackets."""
    return " OR ".join(map(_alone, node.parts)) if isinstance(node, Or) else _alone(node)


def _alone(node: Node) -> str:
    match node:
        case And() | Or():
            return f"({format_query(node)})"
        case Not(Not() as part):
            return f"-({_alone(part)})"
        case Not(part):
            return f"-{_alone(part)}"
        case Text(TextField.ANY, words):
            return _quoted(words)
        case Text(field, words):
            return f"{field}:{_quoted(words)}"
        case Labelled(label):
            return f"{'is' if label.lower() in _EVERYWHERE else 'label'}:{_quoted(label)}"
        case _:
            return _fact(node)


def _fact(node: Fact) -> str:
    match node:
        case Received(start, end):
            return _both(_seconds("after", start), _seconds("before", end))
        case Size(over, under):
            return _both(_bytes("larger", over), _bytes("smaller", under))
        case MessageId(value):
            return f"rfc822msgid:{_quoted(value)}"
        case HasAttachment():
            return "has:attachment"
        case HasUserLabel():
            return "has:userlabels"
        case InConversation(value):
            return f"thread:{_quoted(value)}"
        case HasConversation():
            return "has:conversation"
        case Anywhere():
            return "in:anywhere"
        case Similar(key):
            return f"similar:{_quoted(key)}"
        case _:
            assert_never(node)


def _both(first: str, second: str) -> str:
    return f"({first} {second})" if first and second else first or second or "()"


def _seconds(operator: str, milliseconds: int | None) -> str:
    """A number of four digits would be a year, and one below zero cannot be written; the latter is always a day."""
    if milliseconds is None:
        return ""
    if milliseconds < 0:
        return f"{operator}:{(_EPOCH + timedelta(milliseconds=milliseconds)).date()}"
    return f"{operator}:{milliseconds // 1_000:05}"


def _bytes(operator: str, size: int | None) -> str:
    if size is None:
        return ""
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size and size % factor == 0:
            return f"{operator}:{size // factor}{unit}"
    return f"{operator}:{size}"


def _quoted(text: str) -> str:
    return text if _BARE.fullmatch(text) else f'"{text}"'
