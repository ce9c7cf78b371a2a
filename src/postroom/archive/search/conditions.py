"""Everything but text as SQL conditions on a message id, with bound values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from postroom.archive.rowids import first_id
from postroom.archive.search.labels import LabelIndex
from postroom.archive.search.matching import expression, is_text
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
)

BY_FACTS = "INDEXED BY messages_facts"  # its rows are short, those of the table are long
LABEL = "(SELECT label FROM labels WHERE name = ?)"  # by name: its number is another one in every shard
_LARGEST = (1 << 63) - 1
_SHALLOW = 4


@dataclass(frozen=True, slots=True)
class Condition:
    sql: str
    values: tuple[Any, ...] = ()
    depth: int = 0
    """How many brackets stand open at its innermost place."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on the messages of one statement, whose id is `id`: a column of the table that it calls `driver`."""

    id: str
    labels: LabelIndex
    has_message_row: bool
    """The driver is `messages` itself, so that its columns need no look-up."""

    def of(self, node: Node) -> Condition:
        """Any tree; text becomes a look-up in the index's answer, which is made once for the statement."""
        if isinstance(node, Text) or is_text(node):
            found = f"{self.id} IN (SELECT rowid FROM search WHERE search MATCH ?)"
            return Condition(found, (expression(node),))
        match node:
            case And(parts):
                return _joined("AND", [self.of(part) for part in parts], empty="TRUE")
            case Or(parts):
                return _joined("OR", [self.of(part) for part in _text_as_one(parts)], empty="FALSE")
            case Not(part):
                inner = self.of(part)
                return Condition(f"NOT {inner.sql}", inner.values, inner.depth + 1)
            case _:
                return self._leaf(node)

    def _leaf(
        self, node: Received | Size | Labelled | MessageId | HasAttachment | HasUserLabel | Anywhere
    ) -> Condition:
        match node:
            case Received(start, end):
                return _between(self.id, start, end)
            case Size(over, under):
                bounds = [("> ?", over), ("< ?", under)]
                sizes = [self._size(sign, value) for sign, value in bounds if value is not None]
                return _joined("AND", sizes, empty="TRUE")
            case HasAttachment():
                return Condition(self._column("has_attachment"))
            case MessageId(value):
                return Condition(f"{self._column('message_id')} IN (?, ?)", message_ids(value))
            case Labelled(name):
                found = f"EXISTS (SELECT 1 FROM message_labels WHERE label = {LABEL} AND id = {self.id})"
                return Condition(found, (name,))
            case HasUserLabel():
                return self._has_one_of(self.labels.of_the_user)
            case Anywhere():
                return Condition("TRUE")
            case _:
                assert_never(node)

    def _has_one_of(self, names: Sequence[str]) -> Condition:
        labels = f"SELECT label FROM labels WHERE name IN ({', '.join('?' * len(names))})"
        found = f"EXISTS (SELECT 1 FROM message_labels WHERE id = {self.id} AND label IN ({labels}))"
        return Condition(found, tuple(names))

    def _size(self, sign: str, value: int) -> Condition:
        return Condition(f"{self._column('size')} {sign}", (min(value, _LARGEST),))

    def _column(self, name: str) -> str:
        if self.has_message_row:
            return f"driver.{name}"
        index = "" if name == "message_id" else BY_FACTS
        return f"(SELECT {name} FROM messages {index} WHERE id = {self.id})"


def message_ids(value: str) -> tuple[str, str]:
    """As the archive keeps it, with or without its angle brackets."""
    return f"<{value}>", value


def _between(id: str, start: int | None, end: int | None) -> Condition:
    low = first_id(start) if start is not None else 0
    high = first_id(end) if end is not None else _LARGEST
    return Condition(f"({id} >= ? AND {id} < ?)", (low, high))


def _text_as_one(parts: Sequence[Node]) -> list[Node]:
    """One question to the index instead of many."""
    text = tuple(part for part in parts if is_text(part, depth=1))
    others = [part for part in parts if not is_text(part, depth=1)]
    return [*others, Or(text)] if text else others


def _joined(word: str, parts: Sequence[Condition], *, empty: str) -> Condition:
    """The database's parser has a small stack: what is truly deep comes first, when the least is on it."""
    if not parts:
        return Condition(empty)
    deepest, *others = sorted(parts, key=lambda part: part.depth if part.depth > _SHALLOW else 0, reverse=True)
    return _pair(word, deepest, _halved(word, others)) if others else deepest


def _halved(word: str, parts: Sequence[Condition]) -> Condition:
    """Halved again and again, because a chain of a thousand would be refused."""
    middle = len(parts) // 2
    return parts[0] if len(parts) == 1 else _pair(word, _halved(word, parts[:middle]), _halved(word, parts[middle:]))


def _pair(word: str, left: Condition, right: Condition) -> Condition:
    return Condition(f"({left.sql} {word} {right.sql})", left.values + right.values, max(left.depth, right.depth) + 1)
