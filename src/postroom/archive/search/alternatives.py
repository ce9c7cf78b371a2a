"""A query as alternatives, each a plain list of what must and must not be: such a list has a natural driver in a shard.

`invoice (from:ann OR label:work)` is `invoice from:ann`, or else `invoice label:work`. Each alternative yields its
messages newest first without a sort, and merging them keeps that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from postroom.archive.search.matching import is_text
from postroom.mail.query.nodes import And, Node, Not, Or

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
