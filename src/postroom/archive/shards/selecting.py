"""SQL over one shard: a query becomes alternatives, each with a statement that meets its messages newest first without
a sort.

`invoice (from:ann OR label:work)` is `invoice from:ann`, or else `invoice label:work`. Text drives a statement where
there is some, else size, else a label, else the messages themselves; but a rare label, or a size that few messages
have, drives also where there is text. Everything else is a condition that is looked up on the way, so a page stops as
soon as it is full.

Values are bound; what a person typed appears in a full-text expression only as a quoted string.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal, assert_never

from postroom.archive.conversations.forest import HAS_CONVERSATION, IN_CONVERSATION
from postroom.archive.folding import Fact, LabelIndex, id_bounds, message_ids, size_bounds
from postroom.archive.messages import first_id
from postroom.mail.query import span
from postroom.mail.query.nodes import (
    And,
    Anywhere,
    ConversationBy,
    HasAttachment,
    HasConversation,
    HasUserLabel,
    InConversation,
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

COLUMNS = {
    TextField.ANY: "- list",  # also the texts of attachments, which a shard of version 1 does not have
    TextField.FROM: "sender",
    TextField.TO: "{recipients bcc}",
    TextField.CC: "cc",
    TextField.BCC: "bcc",
    TextField.SUBJECT: "subject",
    TextField.LIST: "list",
    TextField.FILENAME: "filenames",
    TextField.ATTACHMENT: "attachments",
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


THIS_SHARD = "this_shard"
"""A function that gives the name of the shard that is asked."""
_INDEX = {"t": "conversations.", "place": f"{THIS_SHARD}()"}
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
            case InConversation():
                return self._in_conversation(node)
            case HasConversation():
                return ShardCondition(HAS_CONVERSATION.format(**_INDEX, id=self.id))
            case Anywhere() | Similar():  # a search takes `similar:` out before it asks (`meaning/`)
                return ShardCondition("TRUE")
            case _:
                assert_never(node)

    def _in_conversation(self, node: InConversation) -> ShardCondition:
        if node.by is ConversationBy.ROOT:
            return ShardCondition(IN_CONVERSATION.format(**_INDEX, id=self.id, v="?"), (node.value,))
        return ShardCondition(f"{self._column('thread_id')} = ?", (node.value,))

    def _has_one_of(self, names: Sequence[str]) -> ShardCondition:
        labels = f"SELECT label FROM labels WHERE name IN ({', '.join('?' * len(names))})"
        found = f"EXISTS (SELECT 1 FROM message_labels WHERE id = {self.id} AND label IN ({labels}))"
        return ShardCondition(found, tuple(names))

    def _column(self, name: str) -> str:
        if self.has_message_row:
            return f"driver.{name}"
        index = "" if name in ("message_id", "thread_id") else BY_FACTS
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


MOST = 16

Literals = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    wanted: tuple[Node, ...]
    """Text that must be there; the index answers it."""
    unwanted: tuple[Node, ...]
    """Text that must not be there."""
    facts: tuple[Node, ...]
    """Everything else: a leaf, or `Not` of a leaf."""


def alternatives(node: Node, most: int = MOST) -> list[Alternative] | None:
    """None if there would be too many of them."""
    if _count(node, negated=False, most=most) > most:
        return None
    return [_sorted(literals) for literals in dict.fromkeys(_split(node, negated=False))]


def _sorted(literals: Literals) -> Alternative:
    unwanted = [part.part for part in literals if isinstance(part, Not) and is_text(part.part)]
    wanted = [part for part in literals if is_text(part)]
    facts = [part for part in literals if not is_text(part) and not (isinstance(part, Not) and is_text(part.part))]
    return Alternative(tuple(wanted), tuple(unwanted), tuple(facts))


def _split(node: Node, *, negated: bool) -> list[Literals]:
    if not is_text(node):
        match node, negated:
            case (Not(part), _):
                return _split(part, negated=not negated)
            case (And(parts), False) | (Or(parts), True):
                choices = [_split(part, negated=negated) for part in parts]
                return [tuple(dict.fromkeys(sum(choice, ()))) for choice in product(*choices)]
            case (And(parts), True) | (Or(parts), False):
                return [literals for part in parts for literals in _split(part, negated=negated)]
    return [(Not(node) if negated else node,)]


def _count(node: Node, *, negated: bool, most: int) -> int:
    """How many alternatives `_split` would give; stops counting a little above `most`."""
    if not is_text(node):
        match node, negated:
            case (Not(part), _):
                return _count(part, negated=not negated, most=most)
            case (And(parts), False) | (Or(parts), True):
                total = 1
                for part in parts:
                    total = min(total * _count(part, negated=negated, most=most), most + 1)
                return total
            case (And(parts), True) | (Or(parts), False):
                return sum(_count(part, negated=negated, most=most) for part in parts)
    return 1


_WEIGHTS = (
    "5.0, 3.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 0.5"  # as the index's columns stand: a subject says more than a body
)


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Ids:
    """A range of row ids, which is a range of dates; None is open."""

    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, node: Node) -> Ids:
        start, end = span(node)
        return cls(None if start is None else first_id(start), None if end is None else first_id(end))

    def below(self, id: int | None) -> Ids:
        return self if id is None else Ids(self.low, id if self.high is None else min(id, self.high))

    def at_least(self, id: int | None) -> Ids:
        return self if id is None else Ids(id if self.low is None else max(id, self.low), self.high)

    def conditions(self, id: str) -> list[ShardCondition]:
        low = [ShardCondition(f"{id} >= ?", (self.low,))] if self.low is not None else []
        return low + ([ShardCondition(f"{id} < ?", (self.high,))] if self.high is not None else [])


@dataclass(frozen=True, slots=True)
class MergedText:
    """What the index finds, merged with what the driver finds. Both come in order, so that this stops early too."""

    operation: Literal["INTERSECT", "EXCEPT"]
    match: str
    labels_left_out: tuple[str, ...] = ()
    """Merged too, after the text: nearly nothing may be left by then, and looking up every message costs more."""


@dataclass(frozen=True, slots=True)
class Select:
    """One alternative: the ids of its messages, from its driver."""

    table: str
    id: str
    where: tuple[ShardCondition, ...]
    ids: Ids
    text: MergedText | None = None
    index: str = ""
    """A hint for the database."""
    looked_up: tuple[ShardCondition, ...] = ()
    """Conditions on what the merge leaves: few messages, while the driver may have met many."""

    def newest(self, below: int | None = None) -> Statement:
        """The newest ones, only those with an id below the given one; how many of them is its last value, to be
        added."""
        found = self._in_order("ORDER BY 1 DESC", self.ids.below(below))
        return Statement(f"{found.sql} LIMIT ?", found.values)

    def oldest(self, at_least: int | None = None) -> Statement:
        """The oldest ones, only those with at least the given id; how many of them is its last value, to be added."""
        found = self._in_order("ORDER BY 1", self.ids.at_least(at_least))
        return Statement(f"{found.sql} LIMIT ?", found.values)

    def best(self, limit: int) -> Statement:
        """Ids and scores, the smaller the better; without text to score, the newest are as good as any."""
        if self.table != "search":
            newest = self.newest()
            return Statement(f"SELECT *, 0.0 FROM ({newest.sql})", (*newest.values, limit))
        where = _all([*self.where, *self.ids.conditions(self.id)])
        sql = f"SELECT {self.id}, bm25(search, {_WEIGHTS}) FROM search AS driver WHERE {where.sql}"
        return Statement(f"{sql} ORDER BY 2, 1 DESC LIMIT ?", (*where.values, limit))

    def all(self) -> Statement:
        return self._in_order("", self.ids)

    def _in_order(self, order: str, ids: Ids) -> Statement:
        merged = self._merged(ids)
        ordered = f"{merged.sql} {order}"
        if not self.looked_up:
            return Statement(ordered, merged.values)
        where = _all(self.looked_up)
        # because of its own limit, the inner query stays one by itself, and hands on its rows in its order
        sql = f"SELECT id FROM ({ordered} LIMIT -1) AS driver WHERE {where.sql}"
        return Statement(sql, merged.values + where.values)

    def _merged(self, ids: Ids) -> Statement:
        where = _all([*self.where, *ids.conditions(self.id)])
        source = f"{self.table} AS driver {self.index}"
        parts = [Statement(f"SELECT {self.id} FROM {source} WHERE {where.sql}", where.values)]
        if self.text is not None:
            found = _all([ShardCondition("search MATCH ?", (self.text.match,)), *ids.conditions("rowid")])
            sql = f"{self.text.operation} SELECT rowid FROM search WHERE {found.sql}"
            parts.append(Statement(sql, found.values))
            parts += [_except_labelled(label, ids) for label in self.text.labels_left_out]
        return Statement(" ".join(part.sql for part in parts), tuple(v for part in parts for v in part.values))


def _except_labelled(label: str, ids: Ids) -> Statement:
    labelled = _all([ShardCondition(f"label = {LABEL}", (label,)), *ids.conditions("id")])
    return Statement(f"EXCEPT SELECT id FROM message_labels WHERE {labelled.sql}", labelled.values)


def _all(conditions: Sequence[ShardCondition]) -> ShardCondition:
    sql = " AND ".join(condition.sql for condition in conditions) or "TRUE"
    return ShardCondition(sql, tuple(value for condition in conditions for value in condition.values))


@dataclass(frozen=True, slots=True)
class SizeIndex:
    """Of a shard, in the order of the messages."""

    name: str
    least: int
    """It has the messages of so many bytes and more."""
    is_short: bool
    """Whether they are so few that all of them can be examined."""


def selects(
    node: Node, labels: LabelIndex, sizes: Sequence[SizeIndex] = (), *, by_text: bool = False, most: int = MOST
) -> list[Select]:
    """The statements that together find what a folded query means in its shard, which has these indexes by size.

    `by_text`: text drives wherever there is some, because only the index can tell how well a message matches.
    """
    found = alternatives(node, most)
    if found is not None:
        return [_select(alternative, labels, sizes, by_text=by_text) for alternative in found]
    whole = ShardConditions("driver.id", labels, has_message_row=True)
    return [Select("messages", "driver.id", (whole.of(node),), Ids.of(node))]


def among(node: Node, labels: LabelIndex, ids: Sequence[int]) -> Statement:
    """Those of the ids whose messages a folded query finds."""
    condition = ShardConditions("driver.id", labels, has_message_row=True).of(node)
    sql = f"SELECT id FROM messages AS driver WHERE id IN (SELECT value FROM json_each(?)) AND {condition.sql}"
    return Statement(sql, (json.dumps(list(ids)), *condition.values))


def count(parts: Sequence[Select], limit: int | None) -> Statement:
    """How many different messages; no more than `limit` are counted."""
    ids = [part.all() for part in parts]
    sql = " UNION ".join(f"SELECT * FROM ({one.sql})" for one in ids)
    values = tuple(value for one in ids for value in one.values)
    return Statement(f"SELECT count(*) FROM (SELECT * FROM ({sql}) LIMIT ?)", (*values, -1 if limit is None else limit))


def _select(alternative: Alternative, labels: LabelIndex, sizes: Sequence[SizeIndex], *, by_text: bool) -> Select:
    """With the driver that meets the fewest messages in vain, as far as that can be known beforehand."""
    if alternative.wanted and by_text:
        return _by_text(alternative, labels)
    named = next((fact for fact in alternative.facts if isinstance(fact, MessageId)), None)
    label = _narrowest([fact for fact in alternative.facts if isinstance(fact, Labelled)], labels)
    if named is not None:
        return _by_message_id(alternative, named, labels)
    conversation = next((fact for fact in alternative.facts if isinstance(fact, InConversation)), None)
    if conversation is not None:
        return _by_conversation(alternative, conversation, labels)
    if label is not None and labels.is_rare(label.label):
        return _by_label(alternative, label, labels)
    large = _shortest(alternative.facts, sizes)
    if large is not None and (large.is_short or not alternative.wanted):
        return _of_the_large(alternative, large, labels)
    if label is not None and not alternative.wanted:
        return _by_label(alternative, label, labels)
    if alternative.wanted:
        return _by_text(alternative, labels)
    conditions = ShardConditions("driver.id", labels, has_message_row=True)
    return _driven("messages", conditions, alternative, (), text=_text(alternative), index=BY_FACTS)


def _narrowest(facts: Sequence[Labelled], labels: LabelIndex) -> Labelled | None:
    return next((fact for fact in facts if labels.is_rare(fact.label)), facts[0] if facts else None)


def _shortest(facts: Sequence[Node], sizes: Sequence[SizeIndex]) -> SizeIndex | None:
    """Of the indexes that have every message of these sizes."""
    over = max((fact.over or 0 for fact in facts if isinstance(fact, Size)), default=0)
    fitting = [index for index in sizes if index.least <= over + 1]
    return max(fitting, key=lambda index: index.least, default=None)


def _by_text(alternative: Alternative, labels: LabelIndex) -> Select:
    conditions = ShardConditions("driver.rowid", labels, has_message_row=False)
    match = ShardCondition("driver.search MATCH ?", (these_but_not(alternative.wanted, alternative.unwanted),))
    return _driven("search", conditions, alternative, (match,))


def _by_label(alternative: Alternative, label: Labelled, labels: LabelIndex) -> Select:
    conditions = ShardConditions("driver.id", labels, has_message_row=False)
    driver = ShardCondition(f"driver.label = {LABEL}", (label.label,))
    return _driven("message_labels", conditions, alternative, (driver,), done=label, text=_text(alternative))


def _by_message_id(alternative: Alternative, named: MessageId, labels: LabelIndex) -> Select:
    conditions = ShardConditions("driver.id", labels, has_message_row=True)
    driver = ShardCondition("driver.message_id IN (?, ?)", message_ids(named.value))
    return _driven("messages", conditions, alternative, (driver,), done=named, text=_text(alternative))


def _by_conversation(alternative: Alternative, conversation: InConversation, labels: LabelIndex) -> Select:
    conditions = ShardConditions("driver.id", labels, has_message_row=True)
    driver = conditions.of(conversation)
    return _driven("messages", conditions, alternative, (driver,), done=conversation, text=_text(alternative))


def _of_the_large(alternative: Alternative, large: SizeIndex, labels: LabelIndex) -> Select:
    conditions = ShardConditions("driver.id", labels, has_message_row=True)
    driver = ShardCondition(f"driver.size >= {large.least}")
    index = f"INDEXED BY {large.name}"
    done = Size(over=large.least - 1)  # to compare sizes would take nearly as long as all the rest of a long merge
    return _driven("messages", conditions, alternative, (driver,), done, _text(alternative), index)


def _text(alternative: Alternative) -> MergedText | None:
    if alternative.wanted:
        return MergedText("INTERSECT", these_but_not(alternative.wanted, alternative.unwanted))
    if not alternative.unwanted:
        return None
    labels = [_label_left_out(fact) for fact in alternative.facts]
    return MergedText("EXCEPT", any_of(alternative.unwanted), tuple(label for label in labels if label is not None))


def _label_left_out(fact: Node) -> str | None:
    match fact:
        case Not(Labelled(label)):
            return label
        case _:
            return None


def _driven(
    table: str,
    conditions: ShardConditions,
    alternative: Alternative,
    driver: tuple[ShardCondition, ...],
    done: Node | None = None,
    text: MergedText | None = None,
    index: str = "",
) -> Select:
    merged = text.labels_left_out if text is not None else ()
    facts = [fact for fact in alternative.facts if fact != done and not isinstance(fact, Received)]
    checked = [fact for fact in facts if _label_left_out(fact) not in merged]
    is_narrowed = text is not None and text.operation == "INTERSECT"
    later = [fact for fact in checked if is_narrowed and not (conditions.has_message_row and _is_of_the_row(fact))]
    at_once = [fact for fact in checked if fact not in later]
    where = (*driver, conditions.of(And(tuple(at_once)))) if at_once else driver
    looked_up = (replace(conditions, has_message_row=False).of(And(tuple(later))),) if later else ()
    return Select(table, conditions.id, where, Ids.of(And(alternative.facts)), text, index, looked_up)


def _is_of_the_row(fact: Node) -> bool:
    """Whether the row of a message tells it, without a look-up elsewhere."""
    return isinstance(fact.part if isinstance(fact, Not) else fact, Size | HasAttachment | MessageId)


_MOST_PLANS = 64


class ShardPlan:
    """How shards that look the same to a query answer it."""

    def __init__(self, selects: Sequence[Select]) -> None:
        self.selects = selects
        self._first = [select.newest() for select in selects]

    def newest(self, below: int | None) -> list[Statement]:
        return self._first if below is None else [select.newest(below) for select in self.selects]

    def oldest(self, at_least: int | None = None) -> list[Statement]:
        return self._all_upwards if at_least is None else [select.oldest(at_least) for select in self.selects]

    @cached_property
    def _all_upwards(self) -> list[Statement]:
        return [select.oldest() for select in self.selects]


class SearchPlans:
    """One plan serves all shards that look the same to a query, and most do; also for its count and its next page."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, ShardPlan] = {}

    def get(self, seen: Hashable, make: Callable[[], list[Select]]) -> ShardPlan:
        """By everything that a plan depends on."""
        plan = self._plans.get(seen)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[seen] = ShardPlan(make())
        return plan
