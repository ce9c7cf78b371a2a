"""`/api/backfill`: the same as the Backfill pages. What changes something goes through the Switchboard's tools."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.requests import Request

from postroom.dashboard.api import api_router
from postroom.dashboard.changing.backfill import (
    CONNECTOR_TYPE,
    HOLDS,
    accept,
    make_offer,
    open_offer,
    require_cap_proof,
    seal_offer,
)
from postroom.dashboard.paging import PAGE, After, Limit, Paged
from postroom.dashboard.reading.backfill import (
    BackfillsWanted,
    Choice,
    Detail,
    Overview,
    Standing,
    Switch,
    backfill_detail,
    choices,
    list_backfills,
    mailbox_of_job,
    overview,
    switch,
)
from postroom.dashboard.security.permits import named_by, permits
from postroom.dashboard.visit import Here, Visit
from postroom.db import Tx
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission
from postroom.mail.categories import shipped
from postroom.switchboard.backfill.model import Include, Mode
from postroom.switchboard.backfill.transitions import Status

router = api_router("backfill")


def _mailbox_of_job(tx: Tx, request: Request) -> str | None:
    return mailbox_of_job(tx, parse_id(request.path_params["job_id"], "job_id"))


class Wanted(BaseModel, extra="forbid"):
    """What a job is to recover. Limits that are left out are those of the settings."""

    endpoint_identity: str = Field(max_length=320, description="the mailbox, by its address")
    target_categories: list[str] = Field(default_factory=list, max_length=20, description="none: all mail of the days")
    date_from: date | None = Field(None, description="the first day; default: as far back as the categories go")
    date_to: date | None = Field(None, description="the last day, included; default: today")
    rate_limit_per_hour: int | None = Field(None, description="messages in any hour")
    daily_cost_cap_cents: int | None = Field(None, description="spend a day")
    mode: Mode = Mode.SELECTIVE
    includes: list[Include] = Field(default_factory=list, max_length=4)
    auto_resume: bool | None = Field(None, description="go on by itself when a new day brings a new budget")

    def arguments(self, today: date) -> dict[str, Any]:
        early, late = shipped().window(self.target_categories, today)
        days = {"date_from": self.date_from or early, "date_to": self.date_to or late}
        given = self.model_dump(mode="json", exclude_none=True)
        return {"connector_type": CONNECTOR_TYPE, **given, **{name: day.isoformat() for name, day in days.items()}}


class Offered(BaseModel):
    """What such a job would bring, cost and take, and the `offer` to agree to."""

    offer: str = Field(description="send it back to agree; it says what was estimated, and when")
    holds_until: datetime
    estimate: dict[str, Any]


class Agreement(BaseModel, extra="forbid"):
    offer: str = Field(max_length=50_000, description="as the estimate gave it; an old one is refused")
    consent: Literal[True] = Field(description="the owner has seen the estimate and agrees")


class Turn(BaseModel, extra="forbid"):
    enabled: bool


@router.get("")
@permits(Permission.READ)
async def standing(here: Here) -> Overview:
    """The kill switch, how many jobs stand how, and what was spent today."""
    return await here.read(lambda tx: overview(tx, here.app.settings.backfill, here.now))


@router.get("/categories")
@permits(Permission.READ, keeps_to_mailbox=True)
async def categories(here: Here) -> list[Choice]:
    """What a job may ask for, with how far back each goes by default."""
    return choices()


@router.get("/jobs")
@permits(Permission.READ, named_by("account"))
async def jobs(
    here: Here,
    status: Status | None = None,
    account: Annotated[str | None, Query(max_length=320)] = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Paged[Standing]:
    """Jobs, newest first."""
    wanted = BackfillsWanted(status, account, after, limit)
    return await here.read(lambda tx: list_backfills(tx, here.app.settings.backfill, wanted, here.now))


@router.get("/jobs/{job_id}")
@permits(Permission.READ, _mailbox_of_job)
async def job(here: Here, job_id: UUID) -> Detail:
    """One job with its money by day, its estimate beside the actual figures, and its audit."""
    return await _detail(here, str(job_id))


@router.post("/estimate")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def estimate(here: Here, wanted: Wanted) -> Offered:
    """What a job would bring, cost and take. Creates nothing."""
    offer = await make_offer(here, wanted.arguments(here.now.date()))
    sealed = seal_offer(here, offer)
    return Offered(offer=sealed, holds_until=here.now + HOLDS, estimate=dict(offer.estimate))


@router.post("/jobs")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def create(here: Here, agreed: Agreement) -> Detail:
    """Make the job that was estimated, with the owner's consent."""
    offer = open_offer(here, agreed.offer)
    await require_cap_proof(here, offer)
    return await _detail(here, await accept(here, offer))


@router.post("/jobs/{job_id}/pause")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def pause(here: Here, job_id: UUID) -> Detail:
    """Stop a job and keep its place."""
    return await _steered(here, job_id, "pause")


@router.post("/jobs/{job_id}/resume")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def resume(here: Here, job_id: UUID) -> Detail:
    """Let a paused, capped or failed job go on from its place."""
    return await _steered(here, job_id, "resume")


@router.post("/jobs/{job_id}/cancel")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def cancel(here: Here, job_id: UUID) -> Detail:
    """Stop a job for good; what it brought stays."""
    return await _steered(here, job_id, "cancel")


@router.post("/switch")
@permits(Permission.BACKFILL)
async def turn(here: Here, how: Turn) -> Switch:
    """Switch all backfill off or on. Off stops every running job; live mail goes on."""
    await here.call("backfill.switch", {"enabled": how.enabled})
    return await here.read(lambda tx: switch(tx, here.app.settings.backfill))


async def _steered(here: Visit, job_id: UUID, what: str) -> Detail:
    await here.call(f"backfill.{what}", {"job_id": str(job_id)})
    return await _detail(here, str(job_id))


async def _detail(here: Visit, job_id: str) -> Detail:
    return await here.read(lambda tx: backfill_detail(tx, here.app.settings.backfill, job_id, here.now))
