"""What a query asks for, as a condition on rows of the PostgreSQL archive: pure, from nodes to SQL and its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from postroom.archive.conversations.forest import HAS_CONVERSATION, IN_CONVERSATION
from postroom.archive.folding import Fact, id_bounds, message_ids, size_bounds
from postroom.archive.postgres.connections import sayable
from postroom.archive.postgres.conversations import PREFIX
from postroom.archive.postgres.insertion import message_hash
from postroom.archive.postgres.words import FOLDED_IN, all_of, around, phrase
from postroom.archive.words.tokens import words_of
from postroom.mail.query import nodes

_INDEX = {
    "t": PREFIX,
    "place": "(SELECT email FROM archive.accounts a WHERE a.account = m.account)",
}


@dataclass(frozen=True, slots=True)
class RowCondition:
    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class RowConditions:
    """For a folded query, in which every `Labelled` is the exact name of a label."""

    labels: Mapping[str, Sequence[int]]
    """The labels' numbers by name; an account has one number for a name, several accounts have several."""
    of_the_user: Sequence[str]

    def of(self, node: nodes.Node) -> RowCondition:
        match node:
            case nodes.And(parts):
                left_out = [
                    part.part.label
                    for part in parts
                    if isinstance(part, nodes.Not) and isinstance(part.part, nodes.Labelled)
                ]
                rest = [
                    self.of(part)
                    for part in parts
                    if not (isinstance(part, nodes.Not) and isinstance(part.part, nodes.Labelled))
                ]
                return joined("AND", [*rest, *self._one_of(left_out, "NOT ")], empty="TRUE")
            case nodes.Or(parts):
                wanted = [part.label for part in parts if isinstance(part, nodes.Labelled)]
                rest = [self.of(part) for part in parts if not isinstance(part, nodes.Labelled)]
                return joined("OR", [*rest, *self._one_of(wanted)], empty="FALSE")
            case nodes.Not(part):
                inner = self.of(part)
                return RowCondition(f"NOT ({inner.sql})", inner.values)
            case nodes.Text():
                return _text(node)
            case _:
                return self._fact(node)

    def _one_of(self, names: Sequence[str], negation: str = "") -> list[RowCondition]:
        """One condition for many labels: planning a thousand would take longer than the search."""
        if not names:
            return []
        found = _labelled(sorted({label for name in names for label in self.labels.get(name, ())}))
        return [RowCondition(f"{negation}{found.sql}", found.values)]

    def _fact(self, node: Fact) -> RowCondition:
        match node:
            case nodes.Received():
                return RowCondition("(m.id >= %s AND m.id < %s)", id_bounds(node))
            case nodes.Size():
                bounds = [RowCondition(f"m.size {sign} %s", (value,)) for sign, value in size_bounds(node)]
                return joined("AND", bounds, empty="TRUE")
            case nodes.HasAttachment():
                return RowCondition("m.has_attachment")
            case nodes.MessageId(value):
                return _named(value)
            case nodes.Labelled(name):
                return _labelled(self.labels.get(name, ()))
            case nodes.HasUserLabel():
                return _labelled([label for name in self.of_the_user for label in self.labels[name]])
            case nodes.InConversation() | nodes.HasConversation():
                return _in_conversation(node)
            case nodes.Anywhere() | nodes.Similar():  # a search takes `similar:` out before it asks (`meaning/`)
                return RowCondition("TRUE")
            case _:
                assert_never(node)


def wanted_words(node: nodes.Node) -> Iterator[str]:
    """A tsquery for each text that makes a message a better match."""
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            for part in parts:
                yield from wanted_words(part)
        case nodes.Text() if words := words_of(node.words):
            yield f"({all_of(node, words)})"
        case _:
            return


def joined(word: str, parts: Sequence[RowCondition], *, empty: str) -> RowCondition:
    if not parts:
        return RowCondition(empty)
    sql = f" {word} ".join(part.sql for part in parts)
    return RowCondition(f"({sql})", tuple(value for part in parts for value in part.values))


def _text(node: nodes.Text) -> RowCondition:
    """The index finds words and phrases. Messages with more words than it has positions keep their words in order in
    `folded`, where phrases are looked for."""
    words = words_of(node.words)
    if not words:
        return RowCondition("FALSE")  # as in a shard: nothing to look for is found nowhere
    every = RowCondition("m.tokens @@ %s::tsquery", (all_of(node, words),))
    if len(words) == 1:
        return every
    near = RowCondition("m.folded IS NULL AND m.tokens @@ %s::tsquery", (phrase(node, words),))
    columns = FOLDED_IN[node.field]
    spelled = around(words).rstrip(" ") if node.is_prefix else around(words)
    in_order = RowCondition(
        " OR ".join(f"strpos(m.folded[{column}], %s) > 0" for column in columns), (spelled,) * len(columns)
    )
    return RowCondition(
        f"({every.sql} AND ({near.sql} OR {in_order.sql}))", every.values + near.values + in_order.values
    )


def _named(value: str) -> RowCondition:
    names = message_ids(value)
    found = (
        "EXISTS (SELECT 1 FROM archive.register r WHERE r.account = m.account AND r.id = m.id "
        "AND r.message_hash = ANY(%s))"
    )
    return RowCondition(found, ([message_hash(name) for name in names],))


def _in_conversation(node: nodes.InConversation | nodes.HasConversation) -> RowCondition:
    if isinstance(node, nodes.HasConversation):
        return RowCondition(HAS_CONVERSATION.format(**_INDEX, id="m.id"))
    if node.by is nodes.ConversationBy.ROOT:
        return RowCondition(IN_CONVERSATION.format(**_INDEX, id="m.id", v="%s"), (node.value,))
    found = (
        "EXISTS (SELECT 1 FROM archive.register r WHERE r.account = m.account AND r.id = m.id "
        "AND r.thread_id = ANY(%s))"
    )
    return RowCondition(found, (sayable([node.value]),))


def _labelled(labels: Sequence[int]) -> RowCondition:
    found = (
        "EXISTS (SELECT 1 FROM archive.message_labels ml "
        "WHERE ml.id = m.id AND ml.account = m.account AND ml.label = ANY(%s))"
    )
    return RowCondition(found, (list(labels),)) if labels else RowCondition("FALSE")
