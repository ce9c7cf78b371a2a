"""What the Gmail client asks of others: a token to show, and units to spend. Small, so that anyone can provide it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Lane(IntEnum):
    """Who is asking, most urgent first. A share of the quota is kept free for the first two."""

    USER_ACTION = 0
    LIVE = 1
    BACKFILL = 2
    SYNC = 3

    @property
    def may_use_reserve(self) -> bool:
        return self <= Lane.LIVE


class Credentials(Protocol):
    async def access_token(self, *, rejected: str | None = None) -> str:
        """A token to present; many callers at once cause one refresh.

        `rejected` is one that the server just refused: a different one is returned, or Fatal is raised with what the
        person has to do.
        """


@dataclass(frozen=True, slots=True)
class Grant:
    """Units that may be spent now, and how long to wait before asking again if they are too few."""

    units: int
    retry_after_s: float = 0.0


class UnitBudget(Protocol):
    async def lease(self, units: int, lane: Lane) -> Grant:
        """Up to so many units of the account's allowance, which all processes share.

        Granted units count as spent from now on; what is not used is given up, never saved.
        """
