"""A query seen from one shard: labels by their spelling there, what can never or always be true taken out."""

from __future__ import annotations

from collections.abc import Iterator

from postroom.archive.search.labels import LabelIndex
from postroom.mail.query import opens_spam_and_trash
from postroom.mail.query.nodes import (
    EVERYTHING,
    And,
    Anywhere,
    HasUserLabel,
    Labelled,
    Node,
    Not,
    Or,
)

NOTHING = Or(())
_HIDDEN = ("SPAM", "TRASH")


def without_spam_and_trash(node: Node) -> Node:
    """What the query means: spam and trash are left out unless it names them."""
    return node if opens_spam_and_trash(node) else And((node, *(Not(Labelled(label)) for label in _HIDDEN)))


def labels_in(node: Node, *, wanted: bool = True) -> Iterator[tuple[str, bool]]:
    """The labels that a query names, and whether it wants them."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from labels_in(part, wanted=wanted)
        case Not(part):
            yield from labels_in(part, wanted=not wanted)
        case Labelled(name):
            yield name, wanted


def fold(node: Node, labels: LabelIndex) -> Node:
    """The same query for one shard, in which every `Labelled` is the exact name of a label there."""
    match node:
        case And(parts):
            return _all([fold(part, labels) for part in parts])
        case Or(parts):
            return _any([fold(part, labels) for part in parts])
        case Not(part):
            return _not(fold(part, labels))
        case Labelled(name):
            return _any([Labelled(spelling) for spelling in labels.spellings(name)])
        case HasUserLabel():
            return node if labels.of_the_user else NOTHING
        case Anywhere():
            return EVERYTHING
        case _:
            return node


def _all(parts: list[Node]) -> Node:
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, And) else (part,))]
    if NOTHING in flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def _any(parts: list[Node]) -> Node:
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Or) else (part,))]
    if EVERYTHING in flat:
        return EVERYTHING
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def _not(part: Node) -> Node:
    if part == EVERYTHING:
        return NOTHING
    if part == NOTHING:
        return EVERYTHING
    return part.part if isinstance(part, Not) else Not(part)
