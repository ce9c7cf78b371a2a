"""Old mail worth having is recovered under a budget: told before what it costs, and never more than its cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from postroom.demo.scene import TELLER, Scene
from postroom.domain.money import Micros, format_dollars
from postroom.gmail.sim.mailbox.rhythm import END
from postroom.switchboard.backfill.jobs import JobView, NewBackfill
from postroom.switchboard.backfill.model import BackfillJob
from postroom.switchboard.backfill.transitions import Status

_CAP_CENTS = 5
_ENDED = (Status.COMPLETED, Status.COST_CAPPED, Status.ERROR, Status.CANCELLED)


@dataclass(frozen=True)
class Recovered:
    """One backfill, from its estimate to its end."""

    wanted: str
    estimate: Mapping[str, Any]
    job: BackfillJob
    spent: Micros
    most: Micros
    """That was ever spent and set aside together: a message is set aside at the most that it can cost."""

    @property
    def lines(self) -> tuple[str, ...]:
        estimated, job = self.estimate, self.job
        cost = format_dollars(Micros(estimated["cost_microdollars"] or 0))
        return (
            f"{self.wanted}, at most {format_dollars(job.cap)} a day",
            f"  estimated  {estimated['messages']:,} messages for {cost}",
            f"  {_word(job.status):<9}  {job.rows_processed:,} messages for {format_dollars(self.spent)}",
        )


@dataclass(frozen=True)
class Recovery:
    selective: Recovered
    capped: Recovered

    @property
    def lines(self) -> tuple[str, ...]:
        most = format_dollars(self.capped.most)
        end = f"  with {most} spent or set aside, one more might have passed the cap"
        return (*self.selective.lines, *self.capped.lines, end)


async def recover_old_mail(scene: Scene) -> Recovery:
    finance = _wanted(scene, 365, 500, "finance")
    all_mail = replace(_wanted(scene, 120, _CAP_CENTS), auto_resume=False)
    selective = await _recovered(scene, "money matters of the last year", finance)
    capped = await _recovered(scene, "all mail of four months", all_mail)
    return Recovery(selective, capped)


def _wanted(scene: Scene, days: int, cap_cents: int, *categories: str) -> NewBackfill:
    last = END.date()
    return NewBackfill(
        connector_type="gmail",
        endpoint_identity=scene.email,
        date_from=last - timedelta(days=days),
        date_to=last,
        target_categories=categories,
        rate_limit_per_hour=100_000,
        daily_cost_cap_cents=cap_cents,
    )


async def _recovered(scene: Scene, said: str, new: NewBackfill) -> Recovered:
    """The person is shown the estimate, agrees, and the job runs until it is over and every message is paid for."""
    estimate = await scene.app.estimator().estimate(new)
    created = await scene.app.backfill.create(TELLER, replace(new, estimate=estimate))
    most = [Micros(0)]

    async def has_ended() -> JobView | None:
        view = await scene.app.backfill.show(created.id)
        most.append(view.today.total)
        return view if view.job.status in _ENDED and not view.today.reserved else None

    view = await scene.until(has_ended, f"the backfill of {said}")
    return Recovered(said, estimate, view.job, view.today.settled, max(most))


def _word(status: Status) -> str:
    return {Status.COMPLETED: "brought", Status.COST_CAPPED: "stopped"}.get(status, str(status))
