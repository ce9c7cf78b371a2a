"""The words of an import: where mail is read from, what was found, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from postroom.archive.model import IncomingMail

LARGEST_MESSAGE = 128 << 20  # larger than any mail service takes; what is larger is a damaged file


class FoundMail(NamedTuple):
    """A message in a file. `end` is where the file goes on after it."""

    raw: bytes
    end: int
    from_line: bytes = b""
    labels: frozenset[str] | None = None
    delivered: datetime | None = None  # what the container says; counts only where the message itself has no date


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that cannot be taken, while those after it can."""

    where: str
    problem: str
    end: int


def readable(name: str) -> str:
    """A file name is bytes; those that are no text get a form that can be stored and shown."""
    return name.encode("utf-8", "backslashreplace").decode()


Finding = FoundMail | Refused
Interpretation = Callable[[FoundMail], IncomingMail]


@dataclass(frozen=True, slots=True)
class MailFile:
    """One file of a source. `identity` changes when what stands in it may have changed."""

    name: str
    size: int | None
    identity: Callable[[], str]
    read: Callable[[int], Iterator[Finding]]  # the messages from this offset on


@dataclass(frozen=True, slots=True)
class MailSource:
    """What a person asked to import. `interpret` is a function of a module: it also runs in other processes."""

    format: str
    path: Path
    files: Callable[[], Iterator[MailFile]]
    interpret: Interpretation
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    where: str
    problem: str
    kept: bool  # its bytes are in the archive all the same


@dataclass(slots=True)
class ImportReport:
    found: int = 0
    stored: int = 0
    duplicates: int = 0
    with_problems: int = 0  # stored, though something in them could not be read
    bytes: int = 0
    seconds: float = 0.0
    resumed_from: str | None = None
    stopped: bool = False
    unreadable_count: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)  # the first of them
    troubled: dict[str, str] = field(default_factory=dict)  # of those that are kept: by archive key, why

    @property
    def rate(self) -> float:
        return self.found / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is: what it counts is on disk."""

    bytes_done: int
    bytes_total: int | None
    report: ImportReport

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None where nobody knows how much there is."""
        if self.bytes_total is None or not self.report.bytes:
            return None
        return max(0, self.bytes_total - self.bytes_done) * self.report.seconds / self.report.bytes


ShowProgress = Callable[[ImportProgress], None]
