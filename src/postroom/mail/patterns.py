"""Patterns that people write, matched in linear time (RE2), so that no pattern can hang on any text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import filterfalse
from typing import Any

import re2  # type: ignore[import-untyped]

from postroom.domain.errors import BadInput

LONGEST_TEXT = 2_000
_MOST_MEMORY = 8 << 20
_MOST_MEMORY_OF_A_SET = 32 << 20


class Pattern:
    """One or more alternatives, looked for in texts that were folded, or in any text if made by `in_any_case`."""

    __slots__ = ("_regexp",)

    def __init__(self, regexp: Any) -> None:
        self._regexp = regexp

    def found_in(self, text: str) -> bool:
        # Half a character, which JSON can carry, is no UTF-8.
        return self.found_in_bytes(text.encode("utf-8", "replace"))

    def found_in_bytes(self, text: bytes) -> bool:
        """For a text that many patterns are looked for in: it is encoded once."""
        return self._regexp.search(text) is not None

    @property
    def size(self) -> int:
        """How many instructions it became."""
        return int(self._regexp.programsize)


class PatternSet:
    """Many patterns, looked for in one pass over a text; says which of them are there. By itself a pattern is only
    looked for where that pass ran out of memory: it is checked at once, and compiled to stay when that happens."""

    __slots__ = ("_alone", "_place", "_sets", "_takes_case", "_written")

    def __init__(self, patterns: Sequence[str], place: str, *, are_literal: bool = False) -> None:
        """Either patterns in any case, or literal texts, for texts that were folded as they were."""
        self._written = [re2.escape(pattern) if are_literal else pattern for pattern in patterns]
        self._place, self._takes_case = place, are_literal
        self._alone: dict[int, Pattern] = {}
        for each in self._written:
            _compiled(each, place, case_sensitive=are_literal)
        self._sets = _sets(self._written, 0, case_sensitive=are_literal)

    def found_in(self, text: bytes) -> list[int]:
        return [number for first, end, each in self._sets for number in self._found(first, end, each, text)]

    def _found(self, first: int, end: int, patterns: Any, text: bytes) -> list[int]:
        found = None if patterns is None else patterns.Match(text)
        if not found or 0 not in found:  # it ran out of memory
            return [number for number in range(first, end) if self._pattern(number).found_in_bytes(text)]
        return [first + number - 1 for number in found if number]

    def _pattern(self, number: int) -> Pattern:
        if number not in self._alone:
            compiled = _compiled(self._written[number], self._place, case_sensitive=self._takes_case)
            self._alone[number] = Pattern(compiled)
        return self._alone[number]


def _sets(patterns: Sequence[str], first: int, *, case_sensitive: bool) -> list[tuple[int, int, Any]]:
    """The patterns from the first to the last, in as few sets as their size allows."""
    made = re2.Set.SearchSet(_options(case_sensitive=case_sensitive, most_memory=_MOST_MEMORY_OF_A_SET))
    for each in ["", *patterns]:  # the first is found in every text: an answer without it is none
        made.Add(each.encode("utf-8", "replace"))
    try:
        made.Compile()
    except re2.error:
        if len(patterns) == 1:
            return [(first, first + 1, None)]
        half = len(patterns) // 2
        left = _sets(patterns[:half], first, case_sensitive=case_sensitive)
        return left + _sets(patterns[half:], first + half, case_sensitive=case_sensitive)
    return [(first, first + len(patterns), made)]


def fold(text: str) -> str:
    """One form for comparison: lowercase, compatible characters made one, accents gone."""
    lowered = text[:LONGEST_TEXT].casefold()
    if lowered.isascii():
        return lowered
    return "".join(filterfalse(unicodedata.combining, unicodedata.normalize("NFKD", lowered)))


def any_of(patterns: Sequence[str], place: str) -> Pattern:
    """Found where any of the patterns is found."""
    return Pattern(_compiled(either(patterns, place), place))


def any_words(patterns: Sequence[str], place: str) -> Pattern:
    """Found where any of the patterns is found as whole words: RE2's own word boundary knows only ASCII."""
    whole = either(patterns, place)
    return Pattern(_compiled(rf"(?:^|[^\pL\pN])(?:{whole})(?:$|[^\pL\pN])", place))


def in_any_case(pattern: str, place: str) -> Pattern:
    """Found in texts as they stand, whether in capitals or not."""
    return Pattern(_compiled(pattern, place, case_sensitive=False))


def either(patterns: Sequence[str], place: str) -> str:
    """The alternatives in one; each is tried alone first, so that a stray bracket cannot pair up with one of ours."""
    folded = [_folded(pattern) for pattern in patterns]
    for pattern in folded:
        _compiled(pattern, place)
    return "|".join(f"(?:{pattern})" for pattern in folded)


def _compiled(pattern: str, place: str, *, case_sensitive: bool = True) -> Any:
    try:
        return re2.compile(pattern.encode("utf-8", "replace"), _options(case_sensitive=case_sensitive))
    except re2.error as error:
        raise BadInput(place, f"is not a pattern that RE2 understands: {_reason(error)}") from None
    finally:
        re2.purge()  # it would keep the last 128, most of which were only checked


def _options(*, case_sensitive: bool, most_memory: int = _MOST_MEMORY) -> Any:
    options = re2.Options()
    options.case_sensitive = case_sensitive
    options.log_errors = False
    options.never_capture = True
    options.max_mem = most_memory
    return options


def _folded(pattern: str) -> str:
    """Accents may be written; the texts have none. ASCII stays as it is, because case means something in `\\S`."""
    return pattern if pattern.isascii() else "".join(char if char.isascii() else fold(char) for char in pattern)


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else ""
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
