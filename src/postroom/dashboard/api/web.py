"""`/api/web`: the same as the Web pages."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field, StrictBool
from starlette.responses import Response

from postroom.dashboard.api import api_router
from postroom.dashboard.api.files import file_answer
from postroom.dashboard.changing.web import end_of, start_of
from postroom.dashboard.paging import PAGE, After, AfterId, Limit, Paged
from postroom.dashboard.reading.web import WebOverview, read_file, web_overview
from postroom.dashboard.reading.web_evidence import (
    LONGEST_QUERY,
    Compared,
    EvidenceDetail,
    Of,
    evidence_detail,
    find_evidence,
    raw_of,
    two_versions,
)
from postroom.dashboard.reading.web_runs import RunDetail, RunRow, RunsWanted, list_runs, run_detail
from postroom.dashboard.security.permits import permits
from postroom.dashboard.showing.downloads import ANYTHING, download
from postroom.dashboard.visit import Here, Visit
from postroom.domain.roles import Permission
from postroom.websources.config import Mode
from postroom.websources.discovery import Retried
from postroom.websources.run_model import NewRun, Status
from postroom.websources.search import EvidenceHit

router = api_router("web")

Slug = Annotated[str, Field(max_length=100)]
Day = Annotated[date | None, Field(description="without it the run has no bound at this end")]
Cap = Annotated[int | None, Field(ge=1, le=1_000_000, description="at most what the settings allow; left out: that")]


class RunWanted(BaseModel, extra="forbid"):
    sources: list[Slug] = Field(min_length=1, max_length=1_000, description="slugs of `sources.toml`")
    mode: Mode
    max_urls: Cap = None
    max_urls_per_source: Cap = None
    date_from: Day = None
    date_to: Day = None
    dry_run: StrictBool = Field(False, description="look and count, and queue nothing")


class RetryWanted(BaseModel, extra="forbid"):
    sources: list[Slug] | None = Field(None, max_length=1_000, description="left out: all")
    dry_run: StrictBool = Field(False, description="only tell which pages failed, and why")


class LookQueued(BaseModel):
    job: str = Field(description="at /api/queue/jobs")


@router.get("")
@permits(Permission.READ)
async def overview(here: Here) -> WebOverview:
    """Sources with what each endpoint brought, the last and the next look, and pages that could not be had."""
    found = await asyncio.to_thread(read_file, here.app.web)
    return await here.read(lambda tx: web_overview(tx, here.app.settings, found))


@router.post("/look")
@permits(Permission.WEB)
async def look(here: Here) -> LookQueued:
    """Let a worker look at all sources for what is new. While one look waits or runs, there is no second."""
    return LookQueued(job=await here.app.web.look_later(here.actor))


@router.post("/retry")
@permits(Permission.WEB)
async def retry(here: Here, wanted: RetryWanted) -> list[Retried]:
    """Ask once more for pages that could not be had."""
    return await here.app.web.retry(here.actor, wanted.sources, dry_run=wanted.dry_run)


@router.get("/runs")
@permits(Permission.READ)
async def runs(here: Here, status: Status | None = None, after: AfterId = None, limit: Limit = PAGE) -> Paged[RunRow]:
    """Backfill runs, newest first."""
    wanted = RunsWanted(status, None if after is None else str(after), limit)
    return await here.read(lambda tx: list_runs(tx, wanted))


@router.post("/runs", status_code=201)
@permits(Permission.WEB)
async def begin(here: Here, wanted: RunWanted) -> RunDetail:
    """Make a run, for a worker to drive."""
    values = wanted.model_dump(exclude={"date_from", "date_to"})
    new = NewRun(**values, date_from=start_of(wanted.date_from), date_to=end_of(wanted.date_to, "date_to"))
    run = await here.app.web.hand_over(here.actor, new)
    return await _run(here, run.id)


@router.get("/runs/{run_id}")
@permits(Permission.READ)
async def run(here: Here, run_id: UUID) -> RunDetail:
    """One run: how far each endpoint is, what became of what it found, its errors."""
    return await _run(here, str(run_id))


@router.post("/runs/{run_id}/resume")
@permits(Permission.WEB)
async def resume(here: Here, run_id: UUID) -> RunDetail:
    """Let a worker go on with a failed run from the place where it was."""
    await here.app.web.resume_later(here.actor, str(run_id))
    return await _run(here, str(run_id))


@router.post("/runs/{run_id}/cancel")
@permits(Permission.WEB)
async def cancel(here: Here, run_id: UUID) -> RunDetail:
    """Give a run up for good. What it found stays."""
    await here.app.web.cancel(here.actor, str(run_id))
    return await _run(here, str(run_id))


@router.get("/evidence")
@permits(Permission.READ)
async def evidence(
    here: Here,
    query: Annotated[
        str,
        Query(
            max_length=LONGEST_QUERY,
            description="words, subject: (title), from: (address), label: (source), after:, before:, OR, -; empty: all",
        ),
    ] = "",
    after: After = None,
    limit: Limit = PAGE,
) -> Paged[EvidenceHit]:
    """Pages that were kept, the latest day first."""
    return await here.read(lambda tx: find_evidence(tx, query, here.now, after, limit))


@router.get("/evidence/{evidence_id}")
@permits(Permission.READ)
async def item(here: Here, evidence_id: UUID) -> EvidenceDetail:
    """One kept page: its text, its hash, its times, and all versions of its address."""
    return await here.read(lambda tx: evidence_detail(tx, str(evidence_id)))


@router.get(
    "/evidence/{evidence_id}/raw", response_class=Response, responses=file_answer(ANYTHING, "the bytes as fetched")
)
@permits(Permission.READ)
async def raw(here: Here, evidence_id: UUID) -> Response:
    """The bytes as they were fetched, checked against their hash, to be saved."""
    content = await here.read(lambda tx: raw_of(tx, str(evidence_id)))
    return download(content, f"evidence-{evidence_id}")


@router.get("/evidence/{evidence_id}/compare/{other_id}")
@permits(Permission.READ)
async def compare(here: Here, evidence_id: UUID, other_id: UUID, of: Of = Of.TEXT) -> Compared:
    """Two versions of one address side by side, line by line, the older at the left."""
    both = await here.read(lambda tx: two_versions(tx, str(evidence_id), str(other_id), of))
    return await asyncio.to_thread(both.compared)


async def _run(here: Visit, run_id: str) -> RunDetail:
    return await here.read(lambda tx: run_detail(tx, here.app.settings.backfill, run_id, here.now))
