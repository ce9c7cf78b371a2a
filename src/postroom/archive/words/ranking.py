"""How well a message matches: BM25 over the words of its columns, computed alike for both archives.

An archive picks up to a thousand candidates by whatever its index can tell fast; these are put in order here. Nothing
depends on where a message is stored: how rare a phrase is counts over everything searched, and a message is long or
short compared with a usual one, not with the others of its shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple, TypeVar

from postroom.archive.preparing import Texts
from postroom.archive.words.tokens import words_of
from postroom.mail.query import nodes
from postroom.mail.query.nodes import Text, TextField

ATTACHMENTS = "attachments"
COLUMNS = (*Texts._fields, ATTACHMENTS)
WEIGHTS = {
    "subject": 5.0,
    "sender": 3.0,
    "recipients": 2.0,
    "cc": 1.0,
    "bcc": 1.0,
    "body": 1.0,
    "filenames": 2.0,
    "list": 1.0,
    ATTACHMENTS: 0.5,
}
"""A subject says more than a body. Attachments count once, however often they have a phrase."""
COLUMNS_OF = {
    TextField.ANY: tuple(column for column in COLUMNS if column != "list"),
    TextField.FROM: ("sender",),
    TextField.TO: ("recipients", "bcc"),
    TextField.CC: ("cc",),
    TextField.BCC: ("bcc",),
    TextField.SUBJECT: ("subject",),
    TextField.LIST: ("list",),
    TextField.FILENAME: ("filenames",),
    TextField.ATTACHMENT: (ATTACHMENTS,),
}
_K1 = 1.2
_B = 0.75
_USUAL_LENGTH = 200.0  # words, without those of attachments
_LEAST = 1e-6  # what more than half of all messages have says little, but no less than nothing
_MOST_PHRASES = 16
MOST_CHARACTERS = 100_000
"""Of a column in which phrases are counted: a thousand candidates of megabytes each would take minutes."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class RankedPhrase:
    text: Text
    """As the query has it."""
    words: tuple[str, ...]
    is_prefix: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return COLUMNS_OF[self.text.field]

    def count_in(self, words: Sequence[str]) -> int:
        first, *others = self.words
        if not others:
            return sum(word.startswith(first) for word in words) if self.is_prefix else words.count(first)
        found, place, end = 0, -1, len(words) - len(others)
        for _ in range(words.count(first)):
            place = words.index(first, place + 1)
            found += place < end and self._goes_on(words[place + 1 : place + len(self.words)])
        return found

    def may_be_in(self, folded: str) -> bool:
        """False: a text, folded, does not have it. A shortened word cannot be looked for in this way."""
        return all("." in word or word in folded for word in self.words)

    def _goes_on(self, words: Sequence[str]) -> bool:
        """Whether these words stand after the first one, as many as there are."""
        return tuple(words[:-1]) == self.words[1:-1] and self.ends_with(words[-1])

    def ends_with(self, word: str) -> bool:
        return word.startswith(self.words[-1]) if self.is_prefix else word == self.words[-1]


def count_at(places: Sequence[Iterable[int]]) -> int:
    """How often words stand side by side, by the places of each."""
    starts = set(places[0])
    for distance, of_word in enumerate(places[1:], 1):
        starts &= {place - distance for place in of_word}
    return len(starts)


def phrases_of(node: nodes.Node) -> list[RankedPhrase]:
    """What makes a message a better match, as far as it has words."""
    found = dict.fromkeys(_wanted(node))
    cut = [(text, text.segmented) for text in found]
    phrases = [RankedPhrase(text, tuple(words_of(each.words)), each.is_prefix) for text, each in cut]
    return [phrase for phrase in phrases if phrase.words][:_MOST_PHRASES]


def _wanted(node: nodes.Node) -> Iterator[Text]:
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            for part in parts:
                yield from _wanted(part)
        case Text():
            yield node
        case _:
            return


class PhraseCounts(NamedTuple):
    """Of everything that is searched: how many messages there are, and how many have each phrase."""

    messages: int
    with_phrase: tuple[int, ...]


class MatchedWords(NamedTuple):
    """What a score is made from."""

    frequencies: tuple[float, ...]
    """Of each phrase in the message, by the weights of the columns."""
    length: int
    """Words of the message, without those of its attachments."""


def weighed(phrase: RankedPhrase, counts: Mapping[str, int]) -> float:
    """The frequency of a phrase, by how often each column has it."""
    return sum(
        WEIGHTS[column] * (min(counts[column], 1) if column == ATTACHMENTS else counts[column])
        for column in phrase.columns
        if column in counts
    )


def rarities(counts: PhraseCounts) -> tuple[float, ...]:
    """How much each phrase says, by how many of all messages have it."""
    messages = max(counts.messages, *counts.with_phrase)
    return tuple(max(log((messages - some + 0.5) / (some + 0.5)), _LEAST) for some in counts.with_phrase)


def best_first(matched: Mapping[K, MatchedWords], counts: PhraseCounts, candidates: Sequence[K]) -> list[K]:
    """The candidates by their scores; equals, and those of which nothing is known, in the order in which they come."""
    rarity = rarities(counts)
    scores = {key: score(each, rarity) for key, each in matched.items()}
    return sorted(candidates, key=lambda key: -scores.get(key, 0.0))


def score(matched: MatchedWords, rarity: Sequence[float]) -> float:
    """The larger the better."""
    usual = _K1 * (1 - _B + _B * matched.length / _USUAL_LENGTH)
    return sum(
        each * frequency * (_K1 + 1) / (frequency + usual)
        for each, frequency in zip(rarity, matched.frequencies, strict=True)
    )
