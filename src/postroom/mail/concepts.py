"""What words of subjects and senders mean, in 36 languages: `Rechnung`, `factuur` and `invoice` are one concept. Pure.

`concepts.toml` has the words and says how they are written there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files

from postroom.mail.patterns import fold

_ANYWHERE = re.compile(r"[぀-ヿ㐀-鿿豈-﫿฀-๿ᄀ-ᇿऀ-ॿ]")
"""Scripts whose words are looked for anywhere in a text."""


class Concepts:
    """What words mean, from `concepts.toml`."""

    def __init__(self) -> None:
        self._begin: dict[str, list[str]] = {}
        self._whole: dict[str, list[str]] = {}
        self._within: list[tuple[str, str]] = []
        self._second: dict[str, list[tuple[str, str]]] = {}
        self._anywhere: dict[str, list[tuple[str, str]]] = {}
        for group in tomllib.loads(files("postroom.mail").joinpath("concepts.toml").read_text("utf-8")).values():
            for concept, text in group.items():
                for entry in text.split():
                    self._add(fold(entry), concept)

    def _add(self, entry: str, concept: str) -> None:
        first, _, second = entry.partition("_")
        if _ANYWHERE.search(entry):
            self._anywhere.setdefault(entry[0], []).append((entry, concept))
        elif second:
            self._second.setdefault(first, []).append((second, concept))
        elif entry[0] == "*":
            self._within.append((entry[1:], concept))
        elif entry[0] == "=":
            self._whole.setdefault(entry[1:], []).append(concept)
        else:
            self._begin.setdefault(entry, []).append(concept)

    @lru_cache(32_768)  # noqa: B019 (there is one object)
    def of_word(self, word: str) -> tuple[str, ...]:
        found = [*self._whole.get(word, ())]
        for end in range(3, len(word) + 1):
            found += self._begin.get(word[:end], ())
        found += [concept for part, concept in self._within if part in word]
        return tuple(found)

    def of(self, words: Sequence[str], text: str) -> dict[str, None]:
        """The concepts of a text that was folded and split, in the order of the words."""
        found: dict[str, None] = {}
        second = self._second
        for at, word in enumerate(words):
            for concept in self.of_word(word):
                found[concept] = None
            if word in second and at + 1 < len(words):
                for start, concept in second[word]:
                    if words[at + 1].startswith(start):
                        found[concept] = None
        if not text.isascii() and _ANYWHERE.search(text):
            for at, char in enumerate(text):
                for entry, concept in self._anywhere.get(char, ()):
                    if text.startswith(entry, at):
                        found[concept] = None
        return found


@cache
def concepts() -> Concepts:
    return Concepts()
