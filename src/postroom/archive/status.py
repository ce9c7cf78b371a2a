"""What an archive says of itself: who writes to it, its parts, what a verification found and what a repair did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from postroom.domain.errors import Retryable

SWITCHBOARD = "postroom switchboard"
"""As an owner's purpose: it owns the files as long as it runs, and runs no jobs."""
UP = "postroom up"
SERVING = frozenset({UP, SWITCHBOARD})
"""The owners that take work which others hand to them."""


class OwnedElsewhere(Retryable):
    """Another process writes to the archive."""

    def __init__(self, message: str, owner: Owner | None = None) -> None:
        super().__init__(message)
        self.owner = owner
        self.writer = str(owner or "another process")


@dataclass(frozen=True, slots=True)
class Owner:
    pid: int
    host: str
    purpose: str
    since: str

    def __str__(self) -> str:
        return f"`{self.purpose}` (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class SyncMark:
    """Says that this archive is the one that the account's sync fills, up to this walk."""

    account_id: str
    walk: int


@dataclass(frozen=True, slots=True)
class ShardInfo:
    name: str
    year: int
    messages: int
    lost: int
    """Messages that it is known to have had and that were not recovered."""
    bytes: int | None
    """On disk, with its journal; null: it is not there."""
    problem: str | None
    """Why it cannot be read."""


Progress = Callable[[int], None]


class ArchiveFlaw(StrEnum):
    SHARD_MISSING = "shard missing"
    SHARD_DAMAGED = "shard damaged"
    SHARD_SHORT = "messages missing"
    LOST_BEFORE = "lost before"
    BYTES_WRONG = "bytes wrong"
    INDEX_WRONG = "index wrong"


@dataclass(frozen=True, slots=True)
class ArchiveFinding:
    """A problem that verification found, and where."""

    flaw: ArchiveFlaw
    shard: str
    detail: str
    key: str | None = None


@dataclass(slots=True)
class VerifyReport:
    shards: int = 0
    messages: int = 0
    bytes: int = 0
    findings: list[ArchiveFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Salvaged:
    shard: str
    recovered: int
    lost: int
    quarantine: str
    """Where damaged data are kept."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did."""

    rebuilt: list[Salvaged]
    to_sync: list[str]
    """Accounts that lost mail: their next sync lists everything again, and fetches what is missing."""
