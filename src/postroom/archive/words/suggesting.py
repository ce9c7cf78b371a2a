"""Which word may be meant by one that the archive does not have, or hardly: the most frequent that is near to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from postroom.archive.words.tokens import words_of
from postroom.mail.query import nodes
from postroom.mail.query.nodes import Text
from postroom.mail.query.segmenting import needs_segmenting

SHORTEST = 4
"""A shorter word is near to too many others."""
_SHORTEST_FAR = 6  # for two mistakes
_BEGINNING = 3  # letters that are right where there are two mistakes
_LONGEST = 30
_MOST_WORDS = 4
_MOST = 5
_FEW = 2
_MUCH_MORE = 10
_ALPHABETS = tuple("".join(map(chr, range(ord(first), ord(last) + 1))) for first, last in ("az", "αω", "ая", "את"))
_WORD = re.compile(r"[^\W\d_]+")


def doubtful_words(node: nodes.Node) -> list[str]:
    """Words that a query wants, which could be misspelled: long enough, and all letters."""
    found = chain.from_iterable(words_of(text.words) for text in _wanted(node))
    return list(dict.fromkeys(word for word in found if _can_be_wrong(word)))[:_MOST_WORDS]


def _can_be_wrong(word: str) -> bool:
    return SHORTEST <= len(word) <= _LONGEST and word.isalpha() and not needs_segmenting(word)


def _wanted(node: nodes.Node) -> Iterator[Text]:
    match node:
        case nodes.And(parts) | nodes.Or(parts):
            for part in parts:
                yield from _wanted(part)
        case Text() if not node.is_prefix:
            yield node
        case _:
            return


def near_words(word: str) -> list[str]:
    """All words that one mistake leads to: a letter too many, too few, another one, or two exchanged."""
    alphabet = next((letters for letters in _ALPHABETS if word[0] in letters), "")
    letters = dict.fromkeys((*alphabet, *word))
    cuts = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    found = [
        *(left + right[1:] for left, right in cuts if right),
        *(left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1),
        *(left + letter + right[1:] for left, right in cuts if right for letter in letters),
        *(left + letter + right for left, right in cuts for letter in letters),
    ]
    return [near for near in dict.fromkeys(found) if near != word]


def far_beginning(word: str) -> str | None:
    """How words begin that two mistakes may lead to; None if the word is too short for so many."""
    return word[:_BEGINNING] if len(word) >= _SHORTEST_FAR else None


def is_known(messages: int) -> bool:
    """Whether a word that so many messages have is taken as it is written."""
    return messages > _FEW


def likely(word: str, counts: Mapping[str, int], most: int) -> list[str]:
    """The most frequent of these words that at most so many mistakes lead to, if they are much more frequent."""
    own = counts.get(word, 0)
    if is_known(own):
        return []
    near = [each for each, count in counts.items() if count > own * _MUCH_MORE and 0 < distance(word, each) <= most]
    return sorted(near, key=lambda each: (-counts[each], each))[:_MOST]


def distance(left: str, right: str) -> int:
    """How many mistakes lead from one word to the other; two neighbours exchanged are one."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for place, letter in enumerate(left, 1):
        current = [place]
        for other, wanted in enumerate(right, 1):
            steps = min(row[other] + 1, current[-1] + 1, row[other - 1] + (letter != wanted))
            if other > 1 and before and letter == right[other - 2] and left[place - 2] == wanted:
                steps = min(steps, before[other - 2] + 1)
            current.append(steps)
        before, row = row, current
    return row[-1]


def corrected(query: str, word: str, better: str) -> str:
    """The query as it was written, with the better word; operators stay."""

    def replaced(found: re.Match[str]) -> str:
        is_operator = query[found.end() : found.end() + 1] == ":"
        return better if words_of(found[0]) == [word] and not is_operator else found[0]

    return _WORD.sub(replaced, query)
