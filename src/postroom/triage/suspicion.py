"""Whether a message seems to talk to a model instead of to a person. Pure, in linear time, and a guess.

It does not keep anybody from being misled: that is what approval is for. It sees to it that where somebody seems to
try, nothing that hides mail is done unasked either.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from urllib.parse import unquote

from postroom.mail.patterns import Pattern, any_of
from postroom.triage.folding import REVERSED, TAGS, forms, visible
from postroom.triage.phrases import GROUPS, MARKS, STRONG, WEAK, Group

_MORE = "(?:[^ .!?]{1,30} ){0,4}?"
_NO_WORD = re.compile(r"[^\w.!?:@]+|_")
_END = re.compile(r"\s*([.!?:@])\s*")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007f]{2,8}\U000e007f")
"""Flags of parts of a country are the honest use of tag characters."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_LONG, _LONGEST_WORD = 16, 12
_MIXED = re.compile(r"[a-z][A-Z]|[A-Za-z][0-9]|[0-9][A-Za-z]|=$")
"""How a piece of base64 looks, and few words do."""
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}[\s:,]{0,2}){16,}")
_PERCENT = re.compile(r"(?:[\w.-]{0,20}%[0-9a-fA-F]{2}){6,}[\w.-]{0,20}")
_MOST_ENCODED = 20
_DEEPEST = 2
"""What was encoded twice is decoded twice, and no further."""
_TEXT_TURNED = 50_000
_ROT13 = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "nopqrstuvwxyzabcdefghijklmNOPQRSTUVWXYZABCDEFGHIJKLM"
)
_APART_IN_HEX = str.maketrans(":,", "  ")
_UPSIDE_DOWN = str.maketrans("ɐqɔpǝɟƃɥᴉɾʞןɯuodbɹsʇnʌʍxʎz", "abcdefghijklmnopqrstuvwxyz")  # noqa: RUF001


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
    found = list(dict.fromkeys(forms(text)))
    groups, marks = _compiled()
    if any(marks.found_in(form) for form in found):
        yield MARKS.sign, MARKS.weight
    words = [_in_words(form) for form in found]
    for group, pattern in groups:
        if any(pattern.found_in(form) for form in words):
            yield group.sign, group.weight


def _hidden(text: str) -> Iterator[tuple[str, int]]:
    """What cannot be read as it stands is a sign by itself, or where an order comes out of it."""
    if TAGS.search(_FLAG.sub("", text)):
        yield "it holds characters that nobody can see", STRONG
    if REVERSED.search(text):
        yield "it turns the direction of writing around", WEAK
    if any(_is_order(piece) for piece in _decoded(text)):
        yield "it holds encoded orders", STRONG
    elif any(_is_order(piece) for piece in _turned(text)):
        yield "it holds orders written backwards or in a cipher", STRONG


def _is_order(text: str) -> bool:
    return sum(weight for _, weight in _signs(text)) >= STRONG


def _turned(text: str) -> Iterator[str]:
    """The text as it was before letters were exchanged, or before it was written from the end."""
    shown = visible(text[:_TEXT_TURNED])
    yield shown.translate(_ROT13)
    yield shown[::-1]
    if "ǝ" in shown:
        yield shown.casefold().translate(_UPSIDE_DOWN)[::-1]


def _decoded(text: str, depth: int = 1) -> Iterator[str]:
    for piece in _pieces(text):
        yield piece
        if depth < _DEEPEST:
            yield from _decoded(piece, depth + 1)


def _pieces(text: str) -> Iterator[str]:
    """What comes out of everything that looks encoded; few candidates of each kind, so that the work stays bounded."""
    found = [
        islice((_from_base64(run) for run in _base64_runs(text)), 3 * _MOST_ENCODED),
        islice((_from_hex(match[0]) for match in _HEX.finditer(text)), _MOST_ENCODED),
        islice((unquote(match[0]) for match in _PERCENT.finditer(text)), _MOST_ENCODED),
    ]
    for piece in chain.from_iterable(found):
        if piece and "".join(piece.split()).isprintable():
            yield piece


def _base64_runs(text: str) -> Iterator[str]:
    """Base64 as it stands in mail: in one piece, or broken over lines. A long word before it may not be part of it."""
    run: list[str] = []
    for token in [*text.replace(">", " ").split(), ""]:
        if _BASE64.fullmatch(token) and (len(token) >= _LONGEST_WORD or _MIXED.search(token)):
            run.append(token)
            continue
        tail = [token] if run and len(token) <= _LONGEST_WORD and _BASE64.fullmatch(token) else []
        yield from _readings(run, tail)
        run = []


def _readings(run: list[str], tail: list[str]) -> Iterator[str]:
    for pieces in (run, [*run, *tail], run[1:]):
        if sum(map(len, pieces)) >= _LONG:
            yield "".join(pieces)


def _from_base64(text: str) -> str:
    digits = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _from_hex(text: str) -> str:
    return bytes.fromhex(text.translate(_APART_IN_HEX)).decode("utf-8", "replace")


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
