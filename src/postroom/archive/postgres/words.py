"""A message's words for PostgreSQL: with their positions (`tsvector`), each also under the field that it stands in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroom.archive.preparing import Texts
from postroom.archive.words.tokens import indexed_words
from postroom.mail.query.nodes import Text, TextField

_MOST_POSITIONS = 255
_LAST_POSITION = 16_383
_MOST_BYTES = 1 << 20  # as PostgreSQL counts them; only a message made for it comes near
_OVERHEAD_BYTES = 3  # of a word: how many positions it has, and where they begin
_POSITION_BYTES = 2
_GAP = 2  # between two fields, so that no phrase reaches from one into the next

TAGS = {
    TextField.ANY: "",
    TextField.FROM: "f:",
    TextField.TO: "t:",
    TextField.CC: "c:",
    TextField.BCC: "b:",
    TextField.SUBJECT: "s:",
    TextField.LIST: "l:",
    TextField.FILENAME: "n:",
    TextField.ATTACHMENT: "a:",
}
"""What stands before a word in the index; no word has a colon."""

FOLDED_IN = {
    TextField.ANY: (1, 2, 3, 4, 5, 6, 7, 9),
    TextField.FROM: (2,),
    TextField.TO: (3, 5),
    TextField.CC: (4,),
    TextField.BCC: (5,),
    TextField.SUBJECT: (1,),
    TextField.LIST: (8,),
    TextField.FILENAME: (7,),
    TextField.ATTACHMENT: (9,),
}
"""Which of a message's folded texts belong to a field: as `Texts` has them, counted from one, then the attachments."""

_ATTACHMENTS = "attachments"
# The field of `Texts`, the tags under which its words are found, and their weight when mail is ranked. The long
# ones come last: positions are numbered up to a limit.
_FIELDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("subject", ("", "s:"), "A"),
    ("sender", ("", "f:"), "B"),
    ("recipients", ("", "t:"), "C"),
    ("cc", ("", "c:"), ""),
    ("bcc", ("", "t:", "b:"), ""),
    ("filenames", ("", "n:"), "C"),
    ("list", ("l:",), ""),
    ("body", ("",), ""),
    (_ATTACHMENTS, ("", "a:"), ""),
)


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the index holds of a message."""

    tokens: str
    """As PostgreSQL reads a tsvector."""
    folded: list[str] | None
    """All words of each field in their order, where there are more positions than a tsvector can hold."""
    has_room: bool = True
    """False: the index has no room for some words of attachments."""

    @property
    def lexemes(self) -> set[str]:
        return {token.split("'")[1] for token in self.tokens.split()}


def indexed(texts: Texts, attachments: str = "") -> Indexed:
    """`attachments` is the text of all of them."""
    positions: dict[str, list[str]] = {}
    folded = {name: indexed_words(text) for name, text in (*texts._asdict().items(), (_ATTACHMENTS, attachments))}
    position, size, is_whole, has_room = 0, 0, True, True
    for name, tags, weight in _FIELDS:
        for word in folded[name]:
            position += 1
            is_whole = is_whole and position <= _LAST_POSITION
            for tag in tags:
                lexeme = tag + word
                known = positions.get(lexeme)
                if known is None:
                    needed = len(lexeme.encode()) + _OVERHEAD_BYTES
                    if size + needed + _POSITION_BYTES > _MOST_BYTES:
                        is_whole = False
                        has_room = has_room and name != _ATTACHMENTS
                        continue
                    size += needed
                    known = positions[lexeme] = []
                if len(known) >= _MOST_POSITIONS or size + _POSITION_BYTES > _MOST_BYTES:
                    is_whole = False
                elif position <= _LAST_POSITION:
                    size += _POSITION_BYTES
                    known.append(f"{position}{weight}")
        position += _GAP
    tokens = " ".join(
        f"'{lexeme}':{','.join(found)}" if found else f"'{lexeme}'" for lexeme, found in positions.items()
    )
    return Indexed(tokens, None if is_whole else [around(words) for words in folded.values()], has_room)


def around(words: Iterable[str]) -> str:
    """With a space on both sides of every word."""
    return f" {' '.join(words)} "


def all_of(text: Text, words: Sequence[str]) -> str:
    """A tsquery: every one of these words, wherever it stands in the field."""
    return " & ".join(_lexemes(text, words))


def phrase(text: Text, words: Sequence[str]) -> str:
    """A tsquery: these words next to each other."""
    return " <-> ".join(_lexemes(text, words))


def _lexemes(text: Text, words: Sequence[str]) -> list[str]:
    tag = TAGS[text.field]
    return [*(f"'{tag}{word}'" for word in words[:-1]), f"'{tag}{words[-1]}'{':*' if text.is_prefix else ''}"]
