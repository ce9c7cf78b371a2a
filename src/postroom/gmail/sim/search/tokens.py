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


def tokens(query: str, operators: frozenset[str]) -> Iterator[Token]:
    """The tokens of a query, always ended by one END. A colon after an unknown word does not make an operator."""
    position, glued = 0, False
    while found := _PATTERN.match(query, position):
        kind = found.lastgroup
        if (kind == "operator" and found["operator"].lower() not in operators) or (kind == "minus" and glued):
            found = _WORD.match(query, position)
            kind = "word"
        if found is None:
            break
        position = found.end()
        if kind != "space":
            yield _token(str(kind), found[str(kind)], glued)
        glued = kind != "space"
    yield Token(Kind.END, "", False)


_WORD = re.compile(r'(?P<word>[^\s(){}"]+)')


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
