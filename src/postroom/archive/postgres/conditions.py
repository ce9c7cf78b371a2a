"""A query as one SQL condition on a row of `archive.messages`, called `m`, with bound values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from postroom.archive.postgres.insertion import message_hash
from postroom.archive.postgres.words import FOLDED_IN, all_of, around, phrase, words_of
from postroom.archive.rowids import first_id
from postroom.archive.search.conditions import message_ids
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

_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Condition:
    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditions:
    """For a folded query, in which every `Labelled` is the exact name of a label."""

    labels: Mapping[str, Sequence[int]]
    """The labels' numbers by name; an account has one number for a name, several accounts have several."""
    of_the_user: Sequence[str]

    def of(self, node: Node) -> Condition:
        match node:
            case And(parts):
                left_out = [
                    part.part.label for part in parts if isinstance(part, Not) and isinstance(part.part, Labelled)
                ]
                rest = [
                    self.of(part) for part in parts if not (isinstance(part, Not) and isinstance(part.part, Labelled))
                ]
                return joined("AND", [*rest, *self._one_of(left_out, "NOT ")], empty="TRUE")
            case Or(parts):
                wanted = [part.label for part in parts if isinstance(part, Labelled)]
                rest = [self.of(part) for part in parts if not isinstance(part, Labelled)]
                return joined("OR", [*rest, *self._one_of(wanted)], empty="FALSE")
            case Not(part):
                inner = self.of(part)
                return Condition(f"NOT ({inner.sql})", inner.values)
            case Text():
                return _text(node)
            case _:
                return self._fact(node)

    def _one_of(self, names: Sequence[str], negation: str = "") -> list[Condition]:
        """Many labels are one question: a plan of a thousand would take longer than any search."""
        if not names:
            return []
        found = _labelled(sorted({label for name in names for label in self.labels.get(name, ())}))
        return [Condition(f"{negation}{found.sql}", found.values)]

    def _fact(
        self, node: Received | Size | Labelled | MessageId | HasAttachment | HasUserLabel | Anywhere
    ) -> Condition:
        match node:
            case Received(start, end):
                low = first_id(start) if start is not None else 0
                high = first_id(end) if end is not None else _LARGEST
                return Condition("(m.id >= %s AND m.id < %s)", (low, high))
            case Size(over, under):
                sizes = [("m.size > %s", over), ("m.size < %s", under)]
                parts = [Condition(sql, (min(size, _LARGEST),)) for sql, size in sizes if size is not None]
                return joined("AND", parts, empty="TRUE")
            case HasAttachment():
                return Condition("m.has_attachment")
            case MessageId(value):
                return _named(value)
            case Labelled(name):
                return _labelled(self.labels.get(name, ()))
            case HasUserLabel():
                return _labelled([label for name in self.of_the_user for label in self.labels[name]])
            case Anywhere():
                return Condition("TRUE")
            case _:
                assert_never(node)


def wanted_words(node: Node) -> Iterator[str]:
    """A tsquery for each text that makes a message a better match."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from wanted_words(part)
        case Text(field, text) if words := words_of(text):
            yield f"({all_of(field, words)})"
        case _:
            return


def joined(word: str, parts: Sequence[Condition], *, empty: str) -> Condition:
    if not parts:
        return Condition(empty)
    sql = f" {word} ".join(part.sql for part in parts)
    return Condition(f"({sql})", tuple(value for part in parts for value in part.values))


def _text(node: Text) -> Condition:
    """The index finds the words. Whether they stand next to each other it knows too, but for messages with more words
    than it has places: those keep their words in order beside it."""
    words = words_of(node.words)
    if not words:
        return Condition("FALSE")  # as in a shard: nothing to look for is found nowhere
    every = Condition("m.tokens @@ %s::tsquery", (all_of(node.field, words),))
    if len(words) == 1:
        return every
    near = Condition("m.folded IS NULL AND m.tokens @@ %s::tsquery", (phrase(node.field, words),))
    places = FOLDED_IN[node.field]
    in_order = Condition(
        " OR ".join(f"strpos(m.folded[{place}], %s) > 0" for place in places), (around(words),) * len(places)
    )
    return Condition(f"({every.sql} AND ({near.sql} OR {in_order.sql}))", every.values + near.values + in_order.values)


def _named(value: str) -> Condition:
    names = message_ids(value)
    found = (
        "EXISTS (SELECT 1 FROM archive.register r WHERE r.account = m.account AND r.id = m.id "
        "AND r.message_hash = ANY(%s))"
    )
    return Condition(found, ([message_hash(name) for name in names],))


def _labelled(labels: Sequence[int]) -> Condition:
    found = (
        "EXISTS (SELECT 1 FROM archive.message_labels ml "
        "WHERE ml.id = m.id AND ml.account = m.account AND ml.label = ANY(%s))"
    )
    return Condition(found, (list(labels),)) if labels else Condition("FALSE")
