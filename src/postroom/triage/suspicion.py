"""Whether a message seems to talk to a model instead of to a person. Pure, in linear time, and a guess.

It does not keep anybody from being misled: that is what approval is for. It sees to it that where somebody seems to
try, nothing that hides mail is done unasked either.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from urllib.parse import unquote

from postroom.mail.patterns import Pattern, any_of
from postroom.triage.phrases import GROUPS, MARKS, STRONG, WEAK, Group

_MORE = "(?:[^ .!?]{1,30} ){0,4}?"
_NO_WORD = re.compile(r"[^\w.!?:@]+|_")
_END = re.compile(r"\s*([.!?:@])\s*")
_TAGS = re.compile("[\U000e0020-\U000e007f]+")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007f]{2,8}\U000e007f")
"""Flags of parts of a country are the honest use of tag characters."""
_REVERSED = re.compile("\u202e([^\u202c\n]{1,500})")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}[ :]?){16,}")
_PERCENT = re.compile(r"(?:[\w.-]{0,20}%[0-9a-fA-F]{2}){6,}[\w.-]{0,20}")
_APART = re.compile(r"(?<![\w'])(\w) (?=\w(?![\w']))")
_WORD = re.compile(r"[^\W_]+")
_MOST_ENCODED = 20
_LOOK_ALIKES = str.maketrans("аеорсухіјѕԁһгкмтвнԛԝαεορχυικντ", "aeopcyxijsdhrkmtbhqwaeopxyiknt")
_NUMBERS = str.maketrans("013457@$", "oieastas")


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What makes a message suspicious, in words of ours; false where nothing does."""

    signs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.signs)

    def __str__(self) -> str:
        return ", ".join(self.signs)


NOTHING_SUSPICIOUS = Suspicion()


def suspicion_of(texts: Iterable[str]) -> Suspicion:
    """What all texts that one model reads at once give away together."""
    text = "\n".join(texts)
    hidden = list(_hidden(text))
    found = {sign: weight for sign, weight in (*_signs(text), *hidden)}
    if sum(found.values()) < STRONG:
        return NOTHING_SUSPICIOUS
    return Suspicion(tuple(found))


def _signs(text: str) -> Iterator[tuple[str, int]]:
    forms = list(dict.fromkeys(_forms(text)))
    groups, marks = _compiled()
    if any(marks.found_in(form) for form in forms):
        yield MARKS.sign, MARKS.weight
    words = [_in_words(form) for form in forms]
    for group, pattern in groups:
        if any(pattern.found_in(form) for form in words):
            yield group.sign, group.weight


def _hidden(text: str) -> Iterator[tuple[str, int]]:
    """What cannot be read as it stands is a sign by itself, or where an order comes out of it."""
    if _TAGS.search(_FLAG.sub("", text)):
        yield "it holds characters that nobody can see", STRONG
    if _REVERSED.search(text):
        yield "it turns the direction of writing around", WEAK
    if any(sum(weight for _, weight in _signs(piece)) >= STRONG for piece in _decoded(text)):
        yield "it holds encoded orders", STRONG


def _forms(text: str) -> Iterator[str]:
    """The text as a reader would take it, whatever it is dressed up as."""
    visible = _TAGS.sub(lambda tags: "".join(chr(ord(char) - 0xE0000) for char in tags[0]), text)
    visible = _REVERSED.sub(lambda turned: turned[1][::-1], visible)
    visible = "".join(char for char in visible if unicodedata.category(char) != "Cf")
    plain = _folded(_APART.sub(r"\1", visible))
    yield plain
    if not plain.isascii():
        yield _WORD.sub(_one_script, plain)
    if any(char.isdigit() for char in plain):
        yield _WORD.sub(_letters_for_digits, plain)


def _one_script(word: re.Match[str]) -> str:
    """Letters that look like Latin ones, in a word that has Latin ones too."""
    return word[0].translate(_LOOK_ALIKES) if re.search("[a-z]", word[0]) else word[0]


def _letters_for_digits(word: re.Match[str]) -> str:
    return word[0].translate(_NUMBERS) if re.search("[a-z]", word[0]) else word[0]


def _folded(text: str) -> str:
    lowered = text.casefold()
    if lowered.isascii():
        return lowered
    return "".join(char for char in unicodedata.normalize("NFKD", lowered) if not unicodedata.combining(char))


def _decoded(text: str) -> Iterator[str]:
    for pattern, decode in ((_BASE64, _from_base64), (_HEX, _from_hex), (_PERCENT, unquote)):
        for number, match in enumerate(pattern.finditer(text)):
            if number == _MOST_ENCODED:
                break
            if (piece := decode(match[0])) and piece.isprintable():
                yield piece


def _from_base64(text: str) -> str:
    digits = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _from_hex(text: str) -> str:
    return bytes.fromhex(text.replace(":", " ")).decode("utf-8", "replace")


def _in_words(text: str) -> str:
    """Words and the ends of sentences, with a blank between each and around them all."""
    words = _END.sub(r" \1 ", _NO_WORD.sub(" ", text))
    return f" {' '.join(words.split())} "


@cache
def _compiled() -> tuple[tuple[tuple[Group, Pattern], ...], Pattern]:
    groups = tuple((group, any_of([_pattern(each) for each in group.phrases], group.sign)) for group in GROUPS)
    return groups, any_of(MARKS.phrases, MARKS.sign)


def _pattern(phrase: str) -> str:
    """Phrases in Latin letters begin a word; other scripts do without blanks."""
    pattern = phrase.replace("~", _MORE)
    return f" (?:{pattern})" if re.match(r"(?:\(\?:)*[a-z]", phrase) else pattern
