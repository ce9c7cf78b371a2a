"""The leaves of a query as SQL for one shard: text as a full-text expression, everything else as conditions on a
message id.

Values are bound; what a person typed appears in a full-text expression only as a quoted string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from postroom.archive.folding import Fact, LabelIndex, id_bounds, message_ids, size_bounds
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

COLUMNS = {
    TextField.ANY: "{subject sender recipients cc bcc body filenames}",
    TextField.FROM: "sender",
    TextField.TO: "{recipients bcc}",
    TextField.CC: "cc",
    TextField.BCC: "bcc",
    TextField.SUBJECT: "subject",
    TextField.LIST: "list",
    TextField.FILENAME: "filenames",
}
_DEEPEST = 6  # the index's own parser has a small stack


def is_text(node: Node, depth: int = 0) -> bool:
    """Whether the index alone can answer it. It cannot say "all but", only "these but not those"."""
    if depth > _DEEPEST:
        return False
    match node:
        case Text():
            return True
        case Or(parts):
            return bool(parts) and all(is_text(part, depth + 1) for part in parts)
        case And(parts):
            wanted = [part for part in parts if not isinstance(part, Not)]
            unwanted = [part.part for part in parts if isinstance(part, Not)]
            return bool(wanted) and all(is_text(part, depth + 1) for part in wanted + unwanted)
        case _:
            return False


def expression(node: Node) -> str:
    """The full-text expression of a node that `is_text`."""
    match node:
        case Text(field, words):
            return f"{COLUMNS[field]} : {quoted(words)}{' *' if node.is_prefix else ''}"
        case Or(parts):
            return _joined_text("OR", parts)
        case And(parts):
            return these_but_not(
                [part for part in parts if not isinstance(part, Not)],
                [part.part for part in parts if isinstance(part, Not)],
            )
        case _:
            raise ValueError(f"{node!r} is not a question for the index")


def these_but_not(wanted: Sequence[Node], unwanted: Sequence[Node]) -> str:
    if not unwanted:
        return _joined_text("AND", wanted)
    return f"({_joined_text('AND', wanted)} NOT {_joined_text('OR', unwanted)})"


def any_of(nodes: Sequence[Node]) -> str:
    return _joined_text("OR", nodes)


def quoted(words: str) -> str:
    """As one phrase: the index cuts it into tokens as it did with the mail, so `ann@x.org` is three words in a row."""
    return '"' + words.replace("\0", " ").replace('"', '""') + '"'


def _joined_text(word: str, parts: Sequence[Node]) -> str:
    inner = f" {word} ".join(map(expression, parts))
    return inner if len(parts) == 1 else f"({inner})"


BY_FACTS = "INDEXED BY messages_facts"  # its rows are short, those of the table are long
LABEL = "(SELECT label FROM labels WHERE name = ?)"  # by name: its number is another one in every shard
_SHALLOW = 4


@dataclass(frozen=True, slots=True)
class ShardCondition:
    sql: str
    values: tuple[Any, ...] = ()
    depth: int = 0
    """The depth of nested brackets."""


@dataclass(frozen=True, slots=True)
class ShardConditions:
    """Conditions on the messages of one statement, whose id is `id`: a column of the table that it calls `driver`."""

    id: str
    labels: LabelIndex
    has_message_row: bool
    """The driver is `messages` itself, so that its columns need no look-up."""

    def of(self, node: Node) -> ShardCondition:
        """Of any tree; text becomes a look-up in a full-text result, which is computed once for the statement."""
        if isinstance(node, Text) or is_text(node):
            found = f"{self.id} IN (SELECT rowid FROM search WHERE search MATCH ?)"
            return ShardCondition(found, (expression(node),))
        match node:
            case And(parts):
                return _joined("AND", [self.of(part) for part in parts], empty="TRUE")
            case Or(parts):
                return _joined("OR", [self.of(part) for part in _text_as_one(parts)], empty="FALSE")
            case Not(part):
                inner = self.of(part)
                return ShardCondition(f"NOT {inner.sql}", inner.values, inner.depth + 1)
            case _:
                return self._fact(node)

    def _fact(self, node: Fact) -> ShardCondition:
        match node:
            case Received():
                return ShardCondition(f"({self.id} >= ? AND {self.id} < ?)", id_bounds(node))
            case Size():
                size = self._column("size")
                bounds = [ShardCondition(f"{size} {sign} ?", (value,)) for sign, value in size_bounds(node)]
                return _joined("AND", bounds, empty="TRUE")
            case HasAttachment():
                return ShardCondition(self._column("has_attachment"))
            case MessageId(value):
                return ShardCondition(f"{self._column('message_id')} IN (?, ?)", message_ids(value))
            case Labelled(name):
                found = f"EXISTS (SELECT 1 FROM message_labels WHERE label = {LABEL} AND id = {self.id})"
                return ShardCondition(found, (name,))
            case HasUserLabel():
                return self._has_one_of(self.labels.of_the_user)
            case Anywhere():
                return ShardCondition("TRUE")
            case _:
                assert_never(node)

    def _has_one_of(self, names: Sequence[str]) -> ShardCondition:
        labels = f"SELECT label FROM labels WHERE name IN ({', '.join('?' * len(names))})"
        found = f"EXISTS (SELECT 1 FROM message_labels WHERE id = {self.id} AND label IN ({labels}))"
        return ShardCondition(found, tuple(names))

    def _column(self, name: str) -> str:
        if self.has_message_row:
            return f"driver.{name}"
        index = "" if name == "message_id" else BY_FACTS
        return f"(SELECT {name} FROM messages {index} WHERE id = {self.id})"


def _text_as_one(parts: Sequence[Node]) -> list[Node]:
    """Merge the text parts, so that the index is searched once."""
    text = tuple(part for part in parts if is_text(part, depth=1))
    others = [part for part in parts if not is_text(part, depth=1)]
    return [*others, Or(text)] if text else others


def _joined(word: str, parts: Sequence[ShardCondition], *, empty: str) -> ShardCondition:
    """Deep parts come first, because SQLite's parser has a small stack."""
    if not parts:
        return ShardCondition(empty)
    deepest, *others = sorted(parts, key=lambda part: part.depth if part.depth > _SHALLOW else 0, reverse=True)
    return _pair(word, deepest, _halved(word, others)) if others else deepest


def _halved(word: str, parts: Sequence[ShardCondition]) -> ShardCondition:
    """As a balanced tree, because a long chain would be too deep."""
    middle = len(parts) // 2
    return parts[0] if len(parts) == 1 else _pair(word, _halved(word, parts[:middle]), _halved(word, parts[middle:]))


def _pair(word: str, left: ShardCondition, right: ShardCondition) -> ShardCondition:
    return ShardCondition(
        f"({left.sql} {word} {right.sql})", left.values + right.values, max(left.depth, right.depth) + 1
    )
