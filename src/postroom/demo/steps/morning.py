"""Eight in the morning: newsletters, a choir, a shop and a doctor write at once. The doctor is served first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import decisions
from postroom.demo.post import CONFIRMATION, MORNING
from postroom.demo.scene import Scene
from postroom.domain.jobs import CLASSIFY
from postroom.domain.tiers import TIERS, Tier


@dataclass(frozen=True)
class Served:
    tier: Tier
    subject: str
    is_full: bool
    """The model was shown its text."""
    waited: float
    started_at: datetime


@dataclass(frozen=True)
class Morning:
    served: tuple[Served, ...]
    """In the order in which their turn came."""

    @property
    def by_tier(self) -> Mapping[Tier, int]:
        return Counter(each.tier for each in self.served)

    @property
    def doctors_place(self) -> int:
        """1 is first; those whose turn came in the same instant are behind nobody."""
        [doctor] = [each for each in self.served if each.subject == CONFIRMATION.subject]
        return 1 + sum(each.started_at < doctor.started_at for each in self.served)

    @property
    def lines(self) -> tuple[str, ...]:
        spared = sum(not each.is_full for each in self.served)
        return (
            *(f"{tier:<14} {self.by_tier[tier]:>3}, {self._longest(tier)}" for tier in TIERS),
            f"the doctor's came last of {len(self.served)}, and its turn was number {self.doctors_place}",
            f"{spared} newsletters were kept as metadata: no model, no cost",
        )

    def _longest(self, tier: Tier) -> str:
        return f"the longest waited {max((each.waited for each in self.served if each.tier is tier), default=0):.2f} s"


async def a_burst_in_the_morning(scene: Scene) -> Morning:
    ids = scene.deliver(*MORNING)

    async def all_decided() -> Morning | None:
        served = await scene.read(lambda tx: _served(tx, ids))
        return Morning(tuple(served)) if len(served) == len(ids) else None

    return await scene.until(all_decided, "the morning's mail to be decided")


def _served(tx: Tx, ids: Sequence[str]) -> list[Served]:
    """Those of the messages that are decided, by when their turn came."""
    query = select(messages).join(decisions, decisions.c.message_id == messages.c.id)
    mail = {_key(row): row for row in tx.execute(query.where(messages.c.external_event_id.in_(ids)))}
    turns = select(jobs).where(jobs.c.idempotency_key.in_(mail)).order_by(jobs.c.started_at, jobs.c.id)
    return [_one(mail[row.idempotency_key], row) for row in tx.execute(turns)]


def _key(message: Any) -> str:
    return f"{CLASSIFY}:{message.account_id}:{message.id}"


def _one(message: Any, job: Any) -> Served:
    waited = (job.started_at - job.queued_at).total_seconds()
    is_full = message.ingestion_tier == "full"
    return Served(Tier(message.policy_tier), message.subject, is_full, waited, job.started_at)
