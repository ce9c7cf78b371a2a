"""The words of a search's answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from postroom.archive.model import ArchivedMessage


class Sort(StrEnum):
    DATE = "date"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Snippet:
    """A short piece of the message's text, plain; `marks` are the places (start, end) of what was searched for."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    message: ArchivedMessage
    snippet: Snippet


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """A shard that could not be asked: the answer is complete but for what it holds."""

    shard: str
    problem: str


@dataclass(frozen=True, slots=True)
class Page:
    hits: tuple[Hit, ...]
    next: str | None
    """Asks for what follows; None on the last page."""
    problems: tuple[ShardProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class Count:
    messages: int
    is_exact: bool
    """False: there are at least so many."""
    problems: tuple[ShardProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class Thread:
    """All messages of a conversation, oldest first."""

    messages: tuple[ArchivedMessage, ...]
    problems: tuple[ShardProblem, ...] = ()
