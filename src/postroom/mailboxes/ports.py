"""What a mailbox client needs from its caller: a lane that says how urgent a call is, credentials, and a budget of
quota units.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class PriorityLane(IntEnum):
    """Who is asking, most urgent first. A share of the quota is kept free for the first two."""

    USER_ACTION = 0
    LIVE = 1
    BACKFILL = 2
    SYNC = 3

    @property
    def may_use_reserve(self) -> bool:
        return self <= PriorityLane.LIVE


class Credentials(Protocol):
    async def access_token(self, *, rejected: str | None = None) -> str:
        """A token to present; many callers at once cause one refresh.

        `rejected` is one that the server just refused: a different one is returned, or Fatal is raised with what the
        person has to do.
        """


@dataclass(frozen=True, slots=True)
class UnitGrant:
    """Units that may be spent now, and how long to wait before asking again if they are too few."""

    units: int
    retry_after_s: float = 0.0


class UnitBudget(Protocol):
    async def lease(self, units: int, lane: PriorityLane) -> UnitGrant:
        """Up to so many units of the account's allowance, which all processes share.

        Granted units count as spent from now on; what is not used is given up, never saved.
        """
