"""What a parsed query is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TextField(StrEnum):
    """Where a word is looked for."""

    ANY = "any"
    FROM = "from"
    TO = "to"
    CC = "cc"
    SUBJECT = "subject"
    LIST = "list"
    FILENAME = "filename"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


@dataclass(frozen=True, slots=True)
class Received:
    """Received in `[start, end)`, in milliseconds; None is open."""

    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """Strictly larger or strictly smaller than so many bytes."""

    over: int | None = None
    under: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """The words, next to each other and in this order."""

    field: TextField
    words: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """Has the label of this id or name."""

    label: str


@dataclass(frozen=True, slots=True)
class MessageId:
    value: str


@dataclass(frozen=True, slots=True)
class HasAttachment:
    pass


@dataclass(frozen=True, slots=True)
class HasUserLabel:
    pass


@dataclass(frozen=True, slots=True)
class Anywhere:
    """True of every message, and opens spam and trash to the search."""


Node = And | Or | Not | Received | Size | Text | Labelled | MessageId | HasAttachment | HasUserLabel | Anywhere

EVERYTHING = And(())
