"""A query written down again, so that reading it gives the same tree."""

from __future__ import annotations

import re
from typing import assert_never

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


def _fact(node: Received | Size | MessageId | HasAttachment | HasUserLabel | Anywhere) -> str:
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
        case Anywhere():
            return "in:anywhere"
        case _:
            assert_never(node)


def _both(first: str, second: str) -> str:
    return f"({first} {second})" if first and second else first or second or "()"


def _seconds(operator: str, milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{operator}:{milliseconds // 1_000}"


def _bytes(operator: str, size: int | None) -> str:
    if size is None:
        return ""
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size and size % factor == 0:
            return f"{operator}:{size // factor}{unit}"
    return f"{operator}:{size}"


def _quoted(text: str) -> str:
    return text if _BARE.fullmatch(text) else f'"{text}"'
