"""How many tokens a model counts in the text of a mail, estimated without its tokenizer. Pure.

A token is about four letters of English, half as many of Russian, and a single character of Chinese, so characters
are counted by their script. The ratios lie between those of the tokenizers in use; what calls have really taken
corrects them for the configured model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from postroom.domain.model_costs import MOST_TEXT_BYTES, cut_to_bytes

_ASCII_LETTER, _DIGIT, _MARK, _LINE_BREAK, _SPACE = 0.245, 0.42, 0.75, 0.5, 0.03
_OTHER = 2.0
"""Emoji, rare scripts and ornaments: several bytes, and seldom a token of their own."""
_SCRIPTS = (
    (0x0080, 0x00BF, 0.9),  # Latin punctuation and signs
    (0x00C0, 0x024F, 0.85),  # Latin letters with marks, which split the words that they stand in
    (0x0250, 0x036F, 1.0),
    (0x0370, 0x03FF, 0.55),  # Greek
    (0x0400, 0x052F, 0.40),  # Cyrillic
    (0x0530, 0x058F, 0.9),  # Armenian
    (0x0590, 0x05FF, 0.60),  # Hebrew
    (0x0600, 0x08FF, 0.50),  # Arabic
    (0x0900, 0x0DFF, 0.60),  # scripts of India
    (0x0E00, 0x0EFF, 0.65),  # Thai and Lao
    (0x1100, 0x11FF, 0.9),
    (0x1E00, 0x1EFF, 0.95),  # Vietnamese
    (0x2000, 0x206F, 0.9),  # dashes and quotation marks
    (0x3000, 0x303F, 0.9),
    (0x3040, 0x30FF, 0.85),  # Japanese syllables
    (0x3400, 0x9FFF, 1.0),  # Chinese characters
    (0xAC00, 0xD7AF, 0.85),  # Korean
    (0xFF00, 0xFFEF, 1.0),
)


def text_tokens(text: str) -> float:
    """About how many tokens this text has."""
    return sum(count * _weight(char) for char, count in Counter(text).items())


@lru_cache(maxsize=4_096)
def _weight(char: str) -> float:
    if char >= "\x80":
        return next((weight for first, last, weight in _SCRIPTS if first <= ord(char) <= last), _OTHER)
    if char.isalpha():
        return _ASCII_LETTER
    if char.isdigit():
        return _DIGIT
    return _LINE_BREAK if char == "\n" else _SPACE if char.isspace() else _MARK


@dataclass(frozen=True, slots=True)
class TextSize:
    """The text of a message, as much of it as a prompt has."""

    tokens: float
    bytes: int

    @classmethod
    def of(cls, text: str) -> TextSize:
        shown = cut_to_bytes(text[:MOST_TEXT_BYTES], MOST_TEXT_BYTES)
        return cls(text_tokens(shown), len(shown.encode()))


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """A call that was made: our estimate of the mail's text, and what the provider counted."""

    text_tokens: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TokenModel:
    """What a call takes: so much besides the text, and so much for each token that we estimate in it."""

    beside_text: float
    factor: float
    output: float
    typical_text: float
    """Where no text can be measured."""

    def input_tokens(self, text: float) -> float:
        return self.beside_text + self.factor * text


UNMEASURED = TokenModel(beside_text=1_500, factor=1.0, output=80, typical_text=900)
"""About what a prompt has besides the mail: instructions, tools, headers, some guidance."""
ENOUGH_CALLS = 20
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.5


def fitted(calls: Sequence[MeasuredCall]) -> TokenModel:
    """The straight line through what calls have taken; too few of them say nothing."""
    if len(calls) < ENOUGH_CALLS:
        return UNMEASURED
    texts, taken = [call.text_tokens for call in calls], [float(call.input_tokens) for call in calls]
    text, total = fmean(texts), fmean(taken)
    spread = sum((each - text) ** 2 for each in texts)
    slope = sum((x - text) * (y - total) for x, y in zip(texts, taken, strict=True)) / spread if spread else 1.0
    most = min(_MOST_FACTOR, total / text) if text else _MOST_FACTOR
    factor = max(min(_LEAST_FACTOR, most), min(most, slope))
    output = fmean(call.output_tokens for call in calls)
    return TokenModel(total - factor * text, factor, output, text)
