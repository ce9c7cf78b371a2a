"""SQL over one shard: a query becomes alternatives, each with a statement that meets its messages newest first without
a sort.

`invoice (from:ann OR label:work)` is `invoice from:ann`, or else `invoice label:work`. Text drives a statement where
there is some, else a label (also if it is rare), else size, else the messages themselves. Everything else is looked up
on the way, so a page stops as soon as it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from postroom.archive.folding import LabelIndex, message_ids
from postroom.archive.layout import first_id
from postroom.archive.shards.conditions import (
    BY_FACTS,
    LABEL,
    ShardCondition,
    ShardConditions,
    any_of,
    is_text,
    these_but_not,
)
from postroom.archive.shards.shard_file import LARGE_MESSAGE_BYTES
from postroom.mail.query import span
from postroom.mail.query.nodes import And, Labelled, MessageId, Node, Not, Or, Received, Size

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


_WEIGHTS = "5.0, 3.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0"  # as the index's columns stand: a subject says more than a body


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

    def newest(self, limit: int, below: int | None = None) -> Statement:
        """The newest ones, only those with an id below the given one."""
        found = self.all(below)
        return Statement(f"{found.sql} ORDER BY 1 DESC LIMIT ?", (*found.values, limit))

    def oldest(self, limit: int, at_least: int) -> Statement:
        """The oldest ones, only those with at least the given id."""
        found = self.all(at_least=at_least)
        return Statement(f"{found.sql} ORDER BY 1 LIMIT ?", (*found.values, limit))

    def best(self, limit: int) -> Statement:
        """Ids and scores, the smaller the better; without text to score, the newest are as good as any."""
        if self.table != "search":
            newest = self.newest(limit)
            return Statement(f"SELECT *, 0.0 FROM ({newest.sql})", newest.values)
        where = _all([*self.where, *self.ids.conditions(self.id)])
        sql = f"SELECT {self.id}, bm25(search, {_WEIGHTS}) FROM search AS driver WHERE {where.sql}"
        return Statement(f"{sql} ORDER BY 2, 1 DESC LIMIT ?", (*where.values, limit))

    def all(self, below: int | None = None, at_least: int | None = None) -> Statement:
        ids = self.ids.below(below).at_least(at_least)
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


def selects(node: Node, labels: LabelIndex, *, by_text: bool = False, most: int = MOST) -> list[Select]:
    """The statements that together find what a folded query means in its shard.

    `by_text`: text drives wherever there is some, because only the index can tell how well a message matches.
    """
    found = alternatives(node, most)
    if found is not None:
        return [_select(alternative, labels, by_text=by_text) for alternative in found]
    whole = ShardConditions("driver.id", labels, has_message_row=True)
    return [Select("messages", "driver.id", (whole.of(node),), Ids.of(node))]


def count(parts: Sequence[Select], limit: int | None) -> Statement:
    """How many different messages; no more than `limit` are counted."""
    ids = [part.all() for part in parts]
    sql = " UNION ".join(f"SELECT * FROM ({one.sql})" for one in ids)
    values = tuple(value for one in ids for value in one.values)
    return Statement(f"SELECT count(*) FROM (SELECT * FROM ({sql}) LIMIT ?)", (*values, -1 if limit is None else limit))


def _select(alternative: Alternative, labels: LabelIndex, *, by_text: bool) -> Select:
    """With the driver that meets the fewest messages in vain, as far as that can be known beforehand."""
    if alternative.wanted and by_text:
        return _by_text(alternative, labels)
    named = next((fact for fact in alternative.facts if isinstance(fact, MessageId)), None)
    label = _narrowest([fact for fact in alternative.facts if isinstance(fact, Labelled)], labels)
    if named is not None:
        return _by_message_id(alternative, named, labels)
    if label is not None and labels.is_rare(label.label):
        return _by_label(alternative, label, labels)
    if any(isinstance(fact, Size) and (fact.over or 0) >= LARGE_MESSAGE_BYTES for fact in alternative.facts):
        return _of_the_large(alternative, labels)
    if label is not None and not alternative.wanted:
        return _by_label(alternative, label, labels)
    if alternative.wanted:
        return _by_text(alternative, labels)
    conditions = ShardConditions("driver.id", labels, has_message_row=True)
    return _driven("messages", conditions, alternative, (), text=_text(alternative), index=BY_FACTS)


def _narrowest(facts: Sequence[Labelled], labels: LabelIndex) -> Labelled | None:
    return next((fact for fact in facts if labels.is_rare(fact.label)), facts[0] if facts else None)


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


def _of_the_large(alternative: Alternative, labels: LabelIndex) -> Select:
    conditions = ShardConditions("driver.id", labels, has_message_row=True)
    driver = ShardCondition(f"driver.size >= {LARGE_MESSAGE_BYTES}")
    index = "INDEXED BY messages_large"
    return _driven("messages", conditions, alternative, (driver,), text=_text(alternative), index=index)


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
    facts = [fact for fact in alternative.facts if fact is not done and not isinstance(fact, Received)]
    checked = tuple(fact for fact in facts if _label_left_out(fact) not in merged)
    where = (*driver, conditions.of(And(checked))) if checked else driver
    return Select(table, conditions.id, where, Ids.of(And(alternative.facts)), text, index)
