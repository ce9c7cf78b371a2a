"""Cuts a query into tokens. Quotes are undone here; what a token means is the grammar's business."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    OPEN = "("
    CLOSE = ")"
    OPEN_ANY = "{"
    CLOSE_ANY = "}"
    MINUS = "-"
    OR = "OR"
    AND = "AND"
    OPERATOR = "operator"
    """`from:` and the like; its operand follows at once."""
    WORD = "word"
    PHRASE = "phrase"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    glued: bool
    """No space before it: an operand belongs to its operator only so."""

    @property
    def spelled(self) -> str:
        return f"{self.text}:" if self.kind is Kind.OPERATOR else self.text


_PATTERN = re.compile(
    r"""(?P<space>\s+)
      | (?P<bracket>[(){}])
      | "(?P<phrase>[^"]*)(?:"|$)
      | (?P<minus>-(?=[^\s-]))
      | (?P<operator>[A-Za-z][A-Za-z0-9_]*):
      | (?P<word>[^\s(){}"]+)
    """,
    re.VERBOSE,
)


_WORD = re.compile(r'(?P<word>[^\s(){}"]+)')


def tokens(query: str, operators: frozenset[str]) -> Iterator[Token]:
    """The tokens of a query, always ended by one END. A colon after an unknown word does not make an operator."""
    position, before = 0, "space"
    while found := _PATTERN.match(query, position):
        kind = str(found.lastgroup)
        is_unknown = kind == "operator" and found[kind].lower() not in operators
        is_hyphen = kind == "minus" and before not in ("space", "bracket", "minus")
        if (is_unknown or is_hyphen) and (word := _WORD.match(query, position)):
            found, kind = word, "word"
        position = found.end()
        if kind != "space":
            yield _token(kind, found[kind], glued=before != "space")
        before = kind
    yield Token(Kind.END, "", False)


def _token(group: str, text: str, glued: bool) -> Token:
    if group == "bracket":
        return Token(Kind(text), text, glued)
    if group == "word" and text in ("OR", "|"):
        return Token(Kind.OR, text, glued)
    if group == "word" and text == "AND":
        return Token(Kind.AND, text, glued)
    if group == "operator":
        return Token(Kind.OPERATOR, text.lower(), glued)
    return Token(Kind(group) if group != "minus" else Kind.MINUS, text, glued)
