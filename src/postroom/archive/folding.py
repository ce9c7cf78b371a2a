"""A query as one archive, or one shard of it, sees it: labels by their spelling there, everything that is always or
never true removed, and the bounds that dates and sizes come to.

Labels match as people type them: `my-bills` finds `My Bills`, `category:updates` finds Takeout's `Category Updates`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TypeAlias

from postroom.archive.messages import LARGEST_ID, first_id
from postroom.mail.query import nodes, opens_spam_and_trash, span
from postroom.mail.query.grammar import CATEGORIES

Fact: TypeAlias = nodes.Fact | nodes.Labelled
"""A leaf of a query that is not about text."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999  # the end of the year 9999
_SEPARATOR = re.compile(r"[\s/_-]+")
_PLACES = ("inbox", "sent", "draft", "drafts", "spam", "trash", "chat", "archived")
_STATES = ("unread", "opened", "starred", "important")
_SYSTEM = frozenset({*_PLACES, *_STATES, *(f"category-{name}" for name in (*CATEGORIES, "personal"))})


@lru_cache(4_096)
def normal(name: str) -> str:
    return _SEPARATOR.sub("-", unicodedata.normalize("NFC", name.strip().casefold()))


class LabelIndex:
    """The labels of one shard, by their normal form."""

    def __init__(self, labels: Iterable[tuple[int, str]], is_rare: Callable[[int], bool] = lambda label: False) -> None:
        self._is_rare = is_rare
        self._rare: dict[str, bool] = {}
        self._ids: dict[str, int] = {}
        self._spellings: Mapping[str, list[str]] = defaultdict(list)
        for label, name in labels:
            self._ids[name] = label
            self._spellings[normal(name)].append(name)

    def spellings(self, name: str) -> list[str]:
        """The labels of the shard that `name` may mean; empty if no message here has it."""
        return self._spellings.get(normal(name), [])

    def is_rare(self, exact_name: str) -> bool:
        """Whether so few messages have it that all of them can be examined."""
        if exact_name not in self._rare:
            self._rare[exact_name] = self._is_rare(self._ids[exact_name])
        return self._rare[exact_name]

    @cached_property
    def of_the_user(self) -> tuple[str, ...]:
        """The labels that the mailbox's owner made."""
        return tuple(sorted(name for name in self._ids if normal(name) not in _SYSTEM))

    def as_seen_by(self, names: Iterable[tuple[str, bool]], *, users: bool) -> Hashable:
        """What a query with these labels, and perhaps with `has:userlabels`, depends on in the shard: shards with equal
        values can share a plan."""
        known = [(each, wanted and self.is_rare(each)) for name, wanted in names for each in self.spellings(name)]
        return tuple(known), self.of_the_user if users else ()


NOTHING = nodes.Or(())
_HIDDEN = ("SPAM", "TRASH")


def without_spam_and_trash(node: nodes.Node) -> nodes.Node:
    """What the query means: spam and trash are left out unless it names them."""
    return (
        node
        if opens_spam_and_trash(node)
        else nodes.And((node, *(nodes.Not(nodes.Labelled(label)) for label in _HIDDEN)))
    )


_ABOUT_PEOPLE = frozenset({nodes.TextField.FROM, nodes.TextField.TO, nodes.TextField.CC, nodes.TextField.BCC})


def with_own_addresses(node: nodes.Node, addresses: Callable[[], Sequence[str]]) -> nodes.Node:
    """`from:me` and `to:me` as the addresses of the mailboxes, which are asked for only if the query means them."""
    match node:
        case nodes.And(parts):
            return nodes.And(tuple(with_own_addresses(part, addresses) for part in parts))
        case nodes.Or(parts):
            return nodes.Or(tuple(with_own_addresses(part, addresses) for part in parts))
        case nodes.Not(part):
            return nodes.Not(with_own_addresses(part, addresses))
        case nodes.Text(field, words) if field in _ABOUT_PEOPLE and words.casefold() == "me":
            mine = [nodes.Text(field, address) for address in addresses()]
            return mine[0] if len(mine) == 1 else nodes.Or(tuple(mine))
        case _:
            return node


def without_attachment_text(node: nodes.Node) -> nodes.Node:
    """The query for a shard in which no text of attachments can be."""
    return _with_texts(node, lambda text: NOTHING if text.field is nodes.TextField.ATTACHMENT else text)


def segmented(node: nodes.Node) -> nodes.Node:
    """The query for an index that has the words of languages without spaces."""
    return _with_texts(node, lambda text: text.segmented)


def with_both_forms(node: nodes.Node) -> nodes.Node:
    """For an index in which some messages have those words, and others are yet to be indexed anew."""

    def both(text: nodes.Text) -> nodes.Node:
        return text if text.segmented == text else nodes.Or((text.segmented, text))

    return _with_texts(node, both)


def _with_texts(node: nodes.Node, change: Callable[[nodes.Text], nodes.Node]) -> nodes.Node:
    match node:
        case nodes.And(parts):
            return nodes.And(tuple(_with_texts(part, change) for part in parts))
        case nodes.Or(parts):
            return nodes.Or(tuple(_with_texts(part, change) for part in parts))
        case nodes.Not(part):
            return nodes.Not(_with_texts(part, change))
        case nodes.Text():
            return change(node)
        case _:
            return node


def with_conversations(node: nodes.Node, resolve: Callable[[str], nodes.InConversation]) -> nodes.Node:
    """The query with every conversation by its name in the index, or by a thread."""
    match node:
        case nodes.And(parts):
            return nodes.And(tuple(with_conversations(part, resolve) for part in parts))
        case nodes.Or(parts):
            return nodes.Or(tuple(with_conversations(part, resolve) for part in parts))
        case nodes.Not(part):
            return nodes.Not(with_conversations(part, resolve))
        case nodes.InConversation(value, nodes.ConversationBy.ANY_NAME):
            return resolve(value)
        case _:
            return node


def without_conversations(node: nodes.Node) -> nodes.Node:
    """The query for an archive that has no index of conversations yet; threads of mailboxes are found without one."""
    match node:
        case nodes.And(parts):
            return nodes.And(tuple(map(without_conversations, parts)))
        case nodes.Or(parts):
            return nodes.Or(tuple(map(without_conversations, parts)))
        case nodes.Not(part):
            return nodes.Not(without_conversations(part))
        case nodes.InConversation(_, nodes.ConversationBy.ROOT) | nodes.HasConversation():
            return NOTHING
        case _:
            return node


def leaves_of(node: nodes.Node) -> Iterator[nodes.Node]:
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            for part in parts:
                yield from leaves_of(part)
        case nodes.Not(part):
            yield from leaves_of(part)
        case _:
            yield node


def labels_in(node: nodes.Node, *, wanted: bool = True) -> Iterator[tuple[str, bool]]:
    """The labels that a query names, and whether it wants them."""
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            for part in parts:
                yield from labels_in(part, wanted=wanted)
        case nodes.Not(part):
            yield from labels_in(part, wanted=not wanted)
        case nodes.Labelled(name):
            yield name, wanted


def fold(node: nodes.Node, labels: LabelIndex) -> nodes.Node:
    """The same query for one shard, in which every `Labelled` is the exact name of a label there."""
    match node:
        case nodes.And(parts):
            return _all([fold(part, labels) for part in parts])
        case nodes.Or(parts):
            return _any([fold(part, labels) for part in parts])
        case nodes.Not(part):
            return _not(fold(part, labels))
        case nodes.Labelled(name):
            return _any([nodes.Labelled(spelling) for spelling in labels.spellings(name)])
        case nodes.HasUserLabel():
            return node if labels.of_the_user else NOTHING
        case nodes.Anywhere():
            return nodes.EVERYTHING
        case _:
            return node


def _all(parts: list[nodes.Node]) -> nodes.Node:
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, nodes.And) else (part,))]
    if NOTHING in flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else nodes.And(tuple(flat))


def _any(parts: list[nodes.Node]) -> nodes.Node:
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, nodes.Or) else (part,))]
    if nodes.EVERYTHING in flat:
        return nodes.EVERYTHING
    return flat[0] if len(flat) == 1 else nodes.Or(tuple(flat))


def _not(part: nodes.Node) -> nodes.Node:
    if part == nodes.EVERYTHING:
        return NOTHING
    if part == NOTHING:
        return nodes.EVERYTHING
    return part.part if isinstance(part, nodes.Not) else nodes.Not(part)


def message_ids(value: str) -> tuple[str, str]:
    """As the archive keeps it, with or without its angle brackets."""
    return f"<{value}>", value


def id_bounds(received: nodes.Received) -> tuple[int, int]:
    """The first id of a time span, and the first one after it."""
    low = 0 if received.start is None else first_id(received.start)
    return low, LARGEST_ID if received.end is None else first_id(received.end)


def ids_of_years(node: nodes.Node) -> tuple[int, int]:
    """The first id of the years that a query's dates touch, and the first one after them."""
    start, end = span(node)
    low = 0 if start is None else first_id(_first_of_year(_year_at(start)))
    return low, LARGEST_ID if end is None else first_id(_first_of_year(_year_at(end - 1) + 1))


def _year_at(milliseconds: int) -> int:
    return (_EPOCH + timedelta(milliseconds=min(max(milliseconds, 0), _LAST_MS))).year


def _first_of_year(year: int) -> int:
    return round(datetime(min(year, 9999), 1, 1, tzinfo=UTC).timestamp() * 1_000)


def size_bounds(size: nodes.Size) -> list[tuple[str, int]]:
    """Comparisons that a size has to satisfy, with values that a database can hold."""
    bounds = ((">", size.over), ("<", size.under))
    return [(sign, min(value, LARGEST_ID)) for sign, value in bounds if value is not None]
