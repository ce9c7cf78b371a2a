"""Signs in a message's text that call for a person: it concerns account security or money, or it addresses a model.

Pure and linear in the length of the text. Both are guesses that lean towards asking; approval is the protection.
Text is folded first: invisible characters removed, look-alike letters replaced.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote

from postroom.mail.patterns import Pattern, PatternSet, any_of, either
from postroom.triage.injection_phrases import GROUPS, MARKS, STRONG, WEAK

TAGS = re.compile("[\U000e0020-\U000e007f]+")
REVERSED = re.compile("\u202e([^\u202c\n]{1,500})")
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_APART = re.compile(r"(?<![\w'])(\w) (?=\w(?![\w']))")
_WORD = re.compile(r"[^\W_]+")
_NO_WORD = re.compile(r"[\W_]+")
_LATIN = re.compile("[a-z]")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_SMALL_CAPITALS = dict(zip("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘǫꞯʀꜱᴛᴜᴠᴡʏᴢıłøđ", "abcdefghijklmnopqqrstuvwyzilod", strict=True))
_EMBLEMS = {
    chr(first + number): letter
    for first in (0x1F150, 0x1F170, 0x1F1E6)  # white on black in circles and in squares, and the letters of flags
    for number, letter in enumerate(_ALPHABET)
}
_FEW = 10
"""Characters: to take out each of so many by itself is quicker than to look up every character of a text."""
_LETTERS = str.maketrans(_SMALL_CAPITALS | _EMBLEMS | {"æ": "ae", "œ": "oe"})
_LOOK_ALIKES = str.maketrans("аеорсухіјѕԁһгкмтвнԛԝαεορχυικντ", "aeopcyxijsdhrkmtbhqwaeopxyiknt")
_NUMBERS = str.maketrans("013457", "oieast")
_WORD_WITH_NUMBERS = re.compile(r"(?<![^\W_])[^\W_013457]*+[013457][^\W_]*+")
"""Each word is looked at once, so that the work stays linear."""
_LETTER_BESIDE_DIGIT = re.compile(r"[0-9](?:[a-z]|(?<=[a-z].))")
"""Every word of ASCII with both has such a place. Most texts have none, and are looked through several times."""


def visible(text: str) -> str:
    """The text with what is hidden in it shown, and without characters that take no room."""
    if text.isascii():
        return text
    shown = TAGS.sub(lambda tags: "".join(chr(ord(char) - 0xE0000) for char in tags[0]), text)
    shown = REVERSED.sub(lambda turned: turned[1][::-1], shown)
    shown = _UNSEEN.sub("", shown)
    return _without(shown, (char for char in set(shown) if unicodedata.category(char) == "Cf"))


def _without(text: str, characters: Iterable[str]) -> str:
    """A text has few different characters, so it is quicker to look at each of these once than at all of the text."""
    unwanted = list(characters)
    if len(unwanted) > _FEW:
        return text.translate(dict.fromkeys(map(ord, unwanted)))
    for character in unwanted:
        text = text.replace(character, "")
    return text


def folded(text: str) -> str:
    """In small plain letters without accents; letters that were set apart are joined."""
    lowered = text.casefold()
    if not lowered.isascii():
        parts = unicodedata.normalize("NFKD", _translated(lowered, _LETTERS))
        # Once more: bold and other letters of mathematics are capitals until they were taken apart.
        lowered = _without(parts, filter(unicodedata.combining, set(parts))).casefold()
    return _APART.sub(r"\1", lowered)


def _translated(text: str, table: Mapping[int, str]) -> str:
    return text if table.keys().isdisjoint(map(ord, set(text))) else text.translate(table)


def one_alphabet(text: str) -> str:
    """A folded text in which look-alikes within Latin words are Latin."""
    return text if _LOOK_ALIKES.keys().isdisjoint(map(ord, set(text))) else _WORD.sub(_latin, text)


def forms(text: str) -> Iterator[str]:
    """Every way in which a reader may take it: as it stands, in one alphabet, with letters for digits."""
    plain = folded(visible(text))
    yield plain
    yield one_alphabet(plain)
    yield _with_letters(plain)


def _with_letters(text: str) -> str:
    if text.isascii() and not _LETTER_BESIDE_DIGIT.search(text):
        return text
    return _WORD_WITH_NUMBERS.sub(_letters_for_digits, text)


def words(text: str) -> str:
    """A folded text as words with one blank between each and around them all."""
    return f" {_NO_WORD.sub(' ', text).strip()} "


def _latin(word: re.Match[str]) -> str:
    return word[0].translate(_LOOK_ALIKES) if _LATIN.search(word[0]) else word[0]


def _letters_for_digits(word: re.Match[str]) -> str:
    return word[0].translate(_NUMBERS) if _LATIN.search(word[0]) else word[0]


_TEXT_READ = 20_000
_RAW_READ = 100_000
"""Preview padding of characters that cannot be seen may stand before the text."""
_HEADER_READ = 4_000
_SKIPPED_HEADERS = frozenset({"to", "cc", "from", "subject", "message-id", "in-reply-to", "references", "date"})


def security_sign(
    sender: str, sender_name: str | None, subject: str | None, text: str, headers: Mapping[str, Any] | None = None
) -> str | None:
    """What makes it security mail, in words for the person who is asked; None where nothing does."""
    about = _plain(subject or "", _HEADER_READ)
    if _found(about, in_subject=True):
        return "its subject is that of a code, a log-in, a reset or an alert"
    if _speaks_of_security(sender, sender_name):
        return "its sender deals with security or money"
    if _found(_plain(text[:_RAW_READ], _TEXT_READ), in_subject=False):
        return "it speaks of a code, a log-in, a reset or an alert"
    tagged = " ".join(_values(headers or {}))
    return "a header calls it security mail" if _found(_plain(tagged, _HEADER_READ), in_subject=True) else None


def _plain(text: str, longest: int) -> str:
    return words(one_alphabet(folded(visible(text)[:longest])))


def _found(text: str, *, in_subject: bool) -> bool:
    spaced, joined = _compiled_phrases(in_subject)
    if spaced.found_in(text.encode("utf-8", "replace")) or _code().search(text):
        return True
    return not text.isascii() and bool(joined.found_in(text.replace(" ", "").encode("utf-8", "replace")))


@cache
def _phrases() -> dict[str, Any]:
    return tomllib.loads(files("postroom.triage").joinpath("security_phrases.toml").read_text("utf-8"))


@cache
def _compiled_phrases(in_subject: bool) -> tuple[PatternSet, PatternSet]:
    listed = _phrases()
    anywhere = [*chain.from_iterable(listed["anywhere"].values()), *(listed["in_subject"] if in_subject else ())]
    spaced = [words(folded(phrase))[:-1] for phrase in anywhere]
    joined = [
        words(folded(phrase)).replace(" ", "") for phrase in chain.from_iterable(listed["without_blanks"].values())
    ]
    return PatternSet(spaced, "security", are_literal=True), PatternSet(joined, "security", are_literal=True)


@cache
def _code() -> re.Pattern[str]:
    """A word for a code with its digits within four words of it, before or after; or the form of Google's codes."""
    named = "|".join(words(folded(word)).strip() for word in _phrases()["code_words"])
    digits, near = r"(?:\d{4,8}|\d{3} \d{3}) ", r"(?:\w{1,20} ){0,4}"
    return re.compile(rf" (?:{named}) {near}{digits}| {digits}{near}(?:{named}) | g \d{{5,8}} ")


def _speaks_of_security(sender: str, name: str | None) -> bool:
    """By the parts of the address and the name: `alerts@`, `accountprotection.example`, `My Bank`."""
    text = words(one_alphabet(folded(visible(f"{sender[:400]} {(name or '')[:400]}"))))
    begins = tuple(_phrases()["senders"])
    parts = text.split()
    return any(part.startswith(begins) or part.endswith(("bank", "banka", "banque", "banco")) for part in parts)


def _values(headers: Mapping[str, Any]) -> Iterable[str]:
    for name, value in headers.items():
        if name.lower() not in _SKIPPED_HEADERS and "list" not in name.lower():
            yield str(value)[:300]


_COMPILING = threading.Lock()
"""Threads that need the patterns at the same time compile them once: that takes 20 MB, most of it for a moment."""
_MORE = "(?:[^ .!?]{1,30} ){0,4}?"
_ENDS = ".!?:@"
_BETWEEN_WORDS = re.compile(rf"[^\w{_ENDS}]+|_")
_BETWEEN_WORDS_OF_ASCII = {code: " " for code in range(128) if not chr(code).isalnum() and chr(code) not in _ENDS}
"""For most mail, and several times as quick."""
_END = re.compile(rf"\s*([{_ENDS}])\s*")
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


@dataclass(frozen=True, slots=True)
class TextSigns:
    """What in a message's texts calls for a person."""

    suspicion: Suspicion = NOTHING_SUSPICIOUS
    security: str | None = None
    """What makes it security mail."""


def suspicion_of(texts: Iterable[str]) -> Suspicion:
    """What all texts that one model reads at once give away together."""
    text = "\n".join(texts)
    read, in_words = _read(text)
    hidden = _hidden(text, read[0], in_words[0])
    found = {sign: weight for sign, weight in (*_signs_in(read, in_words), *hidden)}
    if sum(found.values()) < STRONG:
        return NOTHING_SUSPICIOUS
    return Suspicion(tuple(found))


def _read(text: str) -> tuple[list[str], list[str]]:
    """The forms of a text, as they are and in words; the plain one first."""
    found = list(dict.fromkeys(forms(text)))
    return found, [*map(_in_words, found)]


def _signs_in(found: Iterable[str], in_words: Iterable[str]) -> Iterator[tuple[str, int]]:
    groups, marks = _compiled_groups()
    if any(marks.found_in(form) for form in found):
        yield MARKS.sign, MARKS.weight
    encoded = [form.encode("utf-8", "replace") for form in in_words]
    for number in sorted({number for form in encoded for number in groups.found_in(form)}):
        yield GROUPS[number].sign, GROUPS[number].weight


def _hidden(text: str, plain: str, in_words: str) -> Iterator[tuple[str, int]]:
    """What cannot be read as it stands is a sign by itself, or where an order comes out of it. `plain` is the text in
    its plain form, and `in_words` that in words."""
    if TAGS.search(_FLAG.sub("", text)):
        yield "it holds invisible characters", STRONG
    if REVERSED.search(text):
        yield "it turns the direction of writing around", WEAK
    if any(_is_order(piece) for piece in _decoded(text)):
        yield "it holds encoded orders", STRONG
    elif _is_turned_order(text, plain, in_words):
        yield "it holds orders written backwards or in a cipher", STRONG


def _is_order(text: str) -> bool:
    return _are_an_order(_signs_in(*_read(text)))


def _is_turned_order(text: str, plain: str, in_words: str) -> bool:
    """Of ASCII, letters that are exchanged or read backwards fold and fall into words as the text itself does, so that
    this is done once."""
    if not text.isascii() or len(text) > _TEXT_TURNED:
        return any(_is_order(piece) for piece in _turned(visible(text[:_TEXT_TURNED])))
    return any(
        _are_an_order(_signs_in(_read_twice(turned), _read_twice(turned_words)))
        for turned, turned_words in zip(_turned(plain), _turned(in_words), strict=True)
    )


def _read_twice(text: str) -> tuple[str, ...]:
    """A folded text in ASCII, and with letters for digits."""
    return tuple(dict.fromkeys((text, _with_letters(text))))


def _are_an_order(signs: Iterable[tuple[str, int]]) -> bool:
    return sum(weight for _, weight in signs) >= STRONG


def _turned(shown: str) -> Iterator[str]:
    """The text as it was before letters were exchanged, or before it was written from the end."""
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
        islice((unquote(match[0]) for match in _PERCENT.finditer(text if "%" in text else "")), _MOST_ENCODED),
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
        if run:
            tail = [token] if len(token) <= _LONGEST_WORD and _BASE64.fullmatch(token) else []
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
    if text.isascii():
        words = text.translate(_BETWEEN_WORDS_OF_ASCII)
        for end in _ENDS:
            words = words.replace(end, f" {end} ")
    else:
        words = _END.sub(r" \1 ", _BETWEEN_WORDS.sub(" ", text))
    return f" {' '.join(words.split())} "


def _compiled_groups() -> tuple[PatternSet, Pattern]:
    with _COMPILING:
        return _groups_and_marks()


@cache
def _groups_and_marks() -> tuple[PatternSet, Pattern]:
    """The groups in one set, because a text is read once for all of them; and the marks."""
    groups = [either([_pattern(each) for each in group.phrases], group.sign) for group in GROUPS]
    return PatternSet(groups, "suspicion"), any_of(MARKS.phrases, MARKS.sign)


def _pattern(phrase: str) -> str:
    """Phrases in Latin letters begin a word; other scripts do without blanks."""
    pattern = phrase.replace("~", _MORE)
    return f" (?:{pattern})" if re.match(r"(?:\(\?:)*[a-z]", phrase) else pattern
