"""A short piece of text around what was searched for, plain, with the places of the words as offsets.

The index has a function for this, but its time grows with the square of a word's occurrences in a message.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

from postroom.archive.search import Snippet
from postroom.mail.query.nodes import And, Node, Or, Text, TextField
from postroom.mail.query.segmenting import BETWEEN, SPACELESS, ends_without_space, usual_forms, written_units

_LONGEST = 240
_BEFORE = 60
_BEGINNING = 1_000
_MOST_PHRASES = 32
_MOST_PLACES = 64
_EARLY = 4_000
_MOST_WORDS = 12  # of a phrase; so that looking for it takes no longer than reading
_LETTER = rf"[^\W_{SPACELESS}]"  # of a word between spaces
_STAND_IN = "À"
"""For a character of a script without spaces, where it only matters that it ends a word; folded text has none."""
_USUAL_LETTER = rf"[^\W_{_STAND_IN}]"
"""The same in a text with such stand-ins; its patterns are made in a fiftieth of the time."""
_RUN = re.compile(rf"[{SPACELESS}]+")
_PIECE = re.compile(rf"{_RUN.pattern}|{_LETTER}+")
_LIGATURES = {"ffi": "\ufb03", "ffl": "\ufb04", "ff": "\ufb00", "fi": "\ufb01", "fl": "\ufb02", "ss": "\u00df"}
_JOINED = re.compile("|".join(_LIGATURES))
_ASCII = bytes(range(128))
_FEW = 0.2
"""Of a text are not ASCII."""
_MOST_REPLACED = 64
"""Different letters that are replaced faster one by one than by looking up every character."""

Mark = tuple[int, int]
K = TypeVar("K")


class Phrase(NamedTuple):
    """What to look for in folded text."""

    pieces: tuple[str, ...]
    is_prefix: bool
    has_runs: bool
    """Of a script without spaces."""


Phrases = tuple[Phrase, ...]
"""Each has a pattern of its own: one pattern of alternatives takes many times as long."""


class _Place(NamedTuple):
    """Where a phrase, by its number, was found."""

    start: int
    phrase: int
    end: int


def shown(node: Node) -> tuple[Phrases, str]:
    """What to look for in a body, and how much of the body that takes, as SQL."""
    phrases = _phrases(list(dict.fromkeys(wanted_in_body(node)))[:_MOST_PHRASES])
    return phrases, "body" if phrases else f"substr(body, 1, {_BEGINNING})"


def snippet(body: str, phrases: Phrases) -> Snippet:
    return _around(body, phrases) or Snippet(" ".join(body[:_BEGINNING].split())[:_LONGEST].rstrip())


def _around(body: str, phrases: Phrases) -> Snippet | None:
    found = _found_early(body, phrases) or _found(body, phrases) if phrases else []
    if not found:
        return None
    start = _word_start(body, max(_best(found).start - _BEFORE, 0))
    end = start + _LONGEST
    marks = [(place.start - start, place.end - start) for place in found if start <= place.start < end]
    return _closed_up(body[start:end], marks)


@dataclass(frozen=True, slots=True)
class AttachmentPhrases:
    """What to look for in the texts of attachments."""

    phrases: Phrases
    is_asked: bool
    """The query names attachments; else they are looked at only where the message itself has nothing to show."""

    def ids(self, found: Mapping[K, Snippet]) -> list[K]:
        """The messages whose attachments are looked at, of those with these snippets."""
        return [message for message, each in found.items() if self.is_asked or not each.marks]


def shown_of_attachments(node: Node) -> AttachmentPhrases | None:
    wanted = list(dict.fromkeys(_wanted(node, (TextField.ANY, TextField.ATTACHMENT))))[:_MOST_PHRASES]
    phrases = _phrases(wanted)
    is_asked = any(text.field is TextField.ATTACHMENT for text in wanted)
    return AttachmentPhrases(phrases, is_asked) if phrases else None


def attachment_snippets(
    texts: Mapping[K, Iterable[tuple[str, str]]], wanted: AttachmentPhrases | None
) -> dict[K, Snippet]:
    """For each message the first of its attachments, given by name and text, that has what was searched for."""
    if wanted is None:
        return {}
    found = {
        message: next(_of_attachments(attachments, wanted.phrases), None) for message, attachments in texts.items()
    }
    return {message: each for message, each in found.items() if each is not None}


def _of_attachments(attachments: Iterable[tuple[str, str]], phrases: Phrases) -> Iterator[Snippet]:
    for name, text in attachments:
        found = _around(text, phrases)
        if found is not None and found.marks:
            yield replace(found, attachment=name or "attachment")


def _found(body: str, phrases: Phrases) -> list[_Place]:
    """In the order of the text; where two overlap, the one that begins first."""
    folded = _folded(body)
    words = _without_runs(folded)
    places = [
        _Place(match.start(), number, match.end())
        for number, phrase in enumerate(phrases)
        for match in islice(_pattern(phrase).finditer(folded if phrase.has_runs else words), _MOST_PLACES)
    ]
    return _apart(sorted(places))[:_MOST_PLACES] if len(phrases) > 1 else places


def _apart(places: Iterable[_Place]) -> list[_Place]:
    kept: list[_Place] = []
    for place in places:
        if not kept or place.start >= kept[-1].end:
            kept.append(place)
    return kept


def _found_early(body: str, phrases: Phrases) -> list[_Place]:
    """What is found of a single phrase in the beginning of a long body, if all that is shown lies there."""
    if len(body) <= _EARLY or len(phrases) > 1:
        return []
    found = _found(body[:_EARLY], phrases)
    return found if found and found[0].start + _LONGEST < _EARLY - _LONGEST else []


def _phrases(phrases: Sequence[Text]) -> Phrases:
    pieces = [(_PIECE.findall(_folded(usual_forms(phrase.words))), phrase.is_prefix) for phrase in phrases]
    return tuple(_phrase(some[:_MOST_WORDS], is_prefix) for some, is_prefix in pieces if some)


def _phrase(pieces: Sequence[str], is_prefix: bool) -> Phrase:
    return Phrase(tuple(pieces), is_prefix, any(map(_is_run, pieces)))


def _without_runs(folded: str) -> str:
    """With stand-ins for the characters of scripts without spaces."""
    if folded.isascii() or _RUN.search("".join(set(_not_ascii(folded)))) is None:
        return folded
    return _RUN.sub(lambda run: _STAND_IN * len(run[0]), folded)


@lru_cache(1_024)
def _pattern(phrase: Phrase) -> re.Pattern[str]:
    return re.compile(_spelled(phrase.pieces, phrase.is_prefix, _LETTER if phrase.has_runs else _USUAL_LETTER))


def _spelled(pieces: Sequence[str], is_prefix: bool, letter: str) -> str:
    """Begins with letters, which are found faster than word boundaries; those are checked afterwards. Runs of a script
    without spaces have no boundaries."""
    first, last = pieces[0], pieces[-1]
    start = _spelled_piece(first)
    if not _is_run(first):
        start = rf"(?<!{letter}){start}" if _JOINED.search(first) else rf"{start}(?<!{letter}{start})"
    rest = "".join(
        rf"[\W_]{'*' if _is_run(before) or _is_run(piece) else '+'}{_spelled_piece(piece)}"
        for before, piece in pairwise(pieces)
    )
    if _is_run(last):
        return f"{start}{rest}"
    return rf"{start}{rest}{f'{letter}*+' if is_prefix else ''}(?!{letter})"


def _is_run(piece: str) -> bool:
    return ends_without_space(piece)


def _spelled_piece(piece: str) -> str:
    if not _is_run(piece):
        return _JOINED.sub(lambda found: f"(?:{found[0]}|{_LIGATURES[found[0]]})", re.escape(piece))
    return BETWEEN.join(map(_spelled_unit, written_units(piece)))


def _spelled_unit(unit: str) -> str:
    """Composed or decomposed."""
    apart = unicodedata.normalize("NFD", unit)
    return re.escape(unit) if apart == unit else f"(?:{re.escape(unit)}|{re.escape(apart)})"


def _best(found: Sequence[_Place]) -> _Place:
    """The place to begin with, so that the snippet shows most different phrases; the first of equals."""
    starts = [place.start for place in found]

    def shown(number: int) -> int:
        end = bisect_left(starts, starts[number] + _LONGEST - _BEFORE)
        return len({place.phrase for place in found[number:end]})

    return found[0] if len({place.phrase for place in found}) == 1 else found[max(range(len(found)), key=shown)]


def _word_start(body: str, position: int) -> int:
    """Slightly later, at the beginning of a word."""
    space = body.find(" ", position, position + _BEFORE // 2)
    return space + 1 if position and space >= 0 else position


def _closed_up(text: str, marks: Sequence[Mark]) -> Snippet:
    """White space as single spaces, and the marks moved accordingly."""
    written, places, done = "", list[Mark](), 0
    for start, end in marks:
        written += _spaced(text[done:start])
        marked = _spaced(text[start:end])
        places.append((len(written), len(written) + len(marked)))
        written += marked
        done = end
    written += _spaced(text[done:])
    blank = len(written) - len(written.lstrip())
    shown = written.strip()
    return Snippet(shown, tuple((start - blank, min(end - blank, len(shown))) for start, end in places))


def _spaced(text: str) -> str:
    """With a single space for each run of white space, also at the ends."""
    words = " ".join(text.split())
    if not words:
        return " " if text else ""
    return f"{' ' if text[0].isspace() else ''}{words}{' ' if text[-1].isspace() else ''}"


class _Fold(dict[int, str]):
    """Lower case without accents, always one character for one, so that offsets stay the same."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        usual = usual_forms(character)
        if len(usual) == 1 and ends_without_space(usual):
            base = usual
        else:
            lowered = (usual if len(usual) == 1 else character).lower()[:1]
            base = unicodedata.normalize("NFD", lowered)[:1]
        self[code] = base
        return base


_FOLD = _Fold()


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    with suppress(UnicodeEncodeError):
        return text.encode("latin-1").translate(_latin_fold()).decode("latin-1")
    foreign = _not_ascii(text)
    characters = set(foreign)
    if len(foreign) > _FEW * len(text) or len(characters) > _MOST_REPLACED:
        return text.translate(_FOLD)
    text = text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")  # ASCII alone
    for character in characters:  # one after the other, since folding what is folded changes nothing
        if (base := _FOLD[ord(character)]) != character:
            text = text.replace(character, base)
    return text


@cache
def _latin_fold() -> bytes:
    """For the characters of Latin-1, which all become characters of Latin-1."""
    return "".join(_FOLD[code] for code in range(256)).encode("latin-1")


def _not_ascii(text: str) -> str:
    """These characters of a text; as bytes, because nothing else leaves the others out as fast."""
    return text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")


def wanted_in_body(node: Node) -> Iterator[Text]:
    """The words that a snippet of the body should show."""
    return _wanted(node, (TextField.ANY,))


def _wanted(node: Node, fields: Sequence[TextField]) -> Iterator[Text]:
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _wanted(part, fields)
        case Text(field) if field in fields:
            yield node
        case _:
            return
