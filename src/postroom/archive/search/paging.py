"""Page tokens: where a page ended, so that the next one goes on there even if mail has come in between."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from postroom.archive.layout import ShardName, parse_filename
from postroom.archive.search.model import Sort
from postroom.domain.errors import BadInput

MOST_RANKED = 1_000
"""Ranked pages end here: every page ranks anew all that came before it."""


@dataclass(frozen=True, slots=True)
class AfterMessage:
    """Newest first: everything older, and of the same instant everything in later shards."""

    shard: ShardName
    row_id: int

    def encoded(self) -> str:
        return encoded([Sort.DATE, str(self.shard), self.row_id])

    def below(self, name: ShardName) -> int:
        """Ids in this shard of the same year that are still to come are below this one."""
        return self.row_id if name <= self.shard else self.row_id + 1


@dataclass(frozen=True, slots=True)
class AfterRank:
    rank: int

    def encoded(self) -> str:
        return encoded([Sort.RANK, self.rank])


def after_message(token: str) -> AfterMessage:
    match decoded(token):
        case [Sort.DATE, str(shard), int(row_id)] if (name := _shard(shard)) and 0 <= row_id < 1 << 63:
            return AfterMessage(name, row_id)
    raise refused()


def after_rank(token: str) -> AfterRank:
    match decoded(token):
        case [Sort.RANK, int(rank)] if 0 < rank <= MOST_RANKED:
            return AfterRank(rank)
    raise refused()


def encoded(value: list[object]) -> str:
    return urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def decoded(token: str) -> object:
    try:
        return json.loads(urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)))
    except (ValueError, RecursionError):
        raise refused() from None


def _shard(text: str) -> ShardName | None:
    account, _, filename = text.rpartition("/")
    return parse_filename(account, filename)


def refused() -> BadInput:
    return BadInput("after", "this is not a page of this search; begin again without it")
