"""Who speaks to the Switchboard: three roles that share no tool, and the caller behind a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    DASHBOARD = "dashboard"
    """A person who steers: creates and controls backfill, reads the audit."""
    CONNECTOR = "connector"
    """A program that brings mail from a source."""
    AGENT = "agent"
    """A language model's client: reads, and asks for mail on demand."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The one that a request comes from."""

    role: Role
    name: str
    endpoint_identity: str | None = None
    """Set where the caller may speak for this mailbox only."""

    def __str__(self) -> str:
        return f"{self.role} {self.name}"
