"""Pages and API of web sources: the sources, the runs that recover their history, and the kept pages.

A kept page was written by a stranger: its markup is shown like mail, in a frame without script or origin.
"""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query
from pydantic import BaseModel, Field, StrictBool
from starlette.responses import HTMLResponse, Response

from postroom import kill_switch
from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.display.foreign_content import (
    FRAME_POLICY,
    OCTET_STREAM,
    SANDBOX,
    download,
    frame_document,
    linked,
    safe_html,
)
from postroom.dashboard.display.formatting import clean, plural
from postroom.dashboard.forms import FilterChoice, Form, chosen, mistake_in, query_of
from postroom.dashboard.paging import PAGE, After, AfterId, Limit, Paged
from postroom.dashboard.routing import api_router, file_reply, pages_router, permits
from postroom.dashboard.web.evidence import (
    LONGEST_QUERY,
    LONGEST_TEXT,
    ComparedText,
    EvidenceDetail,
    PageKind,
    VersionComparison,
    evidence_detail,
    find_evidence,
    page_of,
    raw_of,
    two_versions,
)
from postroom.dashboard.web.queries import (
    MODES,
    RunDetail,
    RunRow,
    RunsWanted,
    SourcesFile,
    WebOverview,
    end_of,
    list_runs,
    new_run_of,
    read_sources_file,
    run_detail,
    start_of,
    web_overview,
)
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission
from postroom.web.discovery import RetriedItems
from postroom.web.evidence_search import EvidenceHit
from postroom.web.run_record import NewRun, RunStatus
from postroom.web.sources import EndpointMode
from postroom.web.web_service import missing_extra

pages = pages_router()

SECTION = "web"
RUN = "/web/runs/{run_id}"
ITEM = "/web/evidence/{evidence_id}"
EvidenceQuery = Annotated[str, Query(max_length=LONGEST_QUERY)]
Id = Annotated[str, Path(max_length=100)]


@pages.get("/web")
async def sources_page(here: Here) -> Response:
    found = await _file(here)
    overview = await here.read(lambda tx: web_overview(tx, here.app.settings, found))
    return await here.page("web/sources.html", SECTION, overview=overview, missing=missing_extra())


@pages.post("/web/look")
async def submit_look(here: Here) -> Response:
    await here.app.web.look_later(here.actor)
    return await here.go("/web", "A worker looks at all sources now.")


@pages.post("/web/retry")
async def submit_retry(here: Here) -> Response:
    source = (await here.form()).optional("source")
    retried = await here.app.web.retry(here.actor, None if source is None else [source])
    return await here.go("/web", f"{plural(len(retried), 'page')} asked for once more.")


@pages.get("/web/runs")
async def runs_page(here: Here, status: FilterChoice = "", after: After = None) -> Response:
    wanted = RunsWanted(chosen(RunStatus, status, "status"), parse_id(after, "after") if after else None)
    found = await here.read(lambda tx: list_runs(tx, wanted))
    return await here.page(
        "web/runs.html",
        SECTION,
        runs=found,
        wanted=wanted,
        filter=query_of(status=wanted.status),
        statuses=list(RunStatus),
    )


@pages.get("/web/runs/new")
async def new_run_page(here: Here) -> Response:
    return await _new_run_page(here, Form())


@pages.post("/web/runs")
async def submit_run(here: Here) -> Response:
    form = await here.form()
    try:
        run = await here.app.web.hand_over(here.actor, new_run_of(form))
    except BadInput as error:
        field = {"source": "sources", "from": "date_from", "to": "date_to"}.get(error.field, error.field)
        return await _new_run_page(here, form.refused(BadInput(field.replace("-", "_"), error.problem)), 422)
    return await here.go(f"/web/runs/{run.id}", "The run is made. It waits for a worker.")


@pages.get(RUN)
async def run_page(here: Here, run_id: Id) -> Response:
    detail = await here.read(lambda tx: run_detail(tx, here.app.settings.backfill, run_id, here.now))
    return await here.page("web/run.html", SECTION, detail=detail)


@pages.post(f"{RUN}/resume")
async def submit_resume(here: Here, run_id: Id) -> Response:
    run = await here.app.web.resume_later(here.actor, run_id)
    return await here.go(f"/web/runs/{run.id}", "A worker goes on with it from the place where it was.")


@pages.post(f"{RUN}/cancel")
async def submit_cancel(here: Here, run_id: Id) -> Response:
    run = await here.app.web.cancel(here.actor, run_id)
    return await here.go(f"/web/runs/{run.id}", "The run is cancelled. What it found stays.")


@pages.get("/web/evidence")
async def evidence_page(here: Here, query: EvidenceQuery = "", after: After = None) -> Response:
    query = clean(query).replace("\N{REPLACEMENT CHARACTER}", "")
    asked, mistake, status = Form.filled(query=query), None, 200
    found: Paged[EvidenceHit] = Paged([], None)
    try:
        found = await here.read(lambda tx: find_evidence(tx, query, here.now, after or None))
    except BadInput as error:
        if error.field != "query":
            raise
        asked, mistake, status = asked.refused(error), mistake_in(query, error), 422
    return await here.page(
        "web/evidence.html",
        SECTION,
        status,
        asked=asked,
        query=query,
        found=found,
        mistake=mistake,
        after=after or None,
        filter=query_of(query=query),
    )


@pages.get(ITEM)
async def evidence_item_page(here: Here, evidence_id: Id, view: FilterChoice = "") -> Response:
    detail = await here.read(lambda tx: evidence_detail(tx, evidence_id))
    shown = await here.read(lambda tx: page_of(tx, evidence_id))
    text = detail.text.text if detail.text else ""
    if view == "source":
        text = shown.text[:LONGEST_TEXT]
    is_cut = detail.is_text_cut if view != "source" else shown.is_cut or len(shown.text) > LONGEST_TEXT
    return await here.page(
        "web/item.html",
        SECTION,
        detail=detail,
        view=view if view in ("page", "source") and shown.kind is not PageKind.BYTES else "text",
        kind=shown.kind,
        text=linked(text) if view != "source" else clean(text),
        is_cut=is_cut,
        sandbox=SANDBOX,
    )


@pages.get(f"{ITEM}/body")
async def evidence_body_page(here: Here, evidence_id: Id) -> Response:
    """The document in the frame."""
    shown = await here.read(lambda tx: page_of(tx, evidence_id))
    if shown.kind is not PageKind.MARKUP:
        raise NotFound("body", "this page has no markup")
    safe = await asyncio.to_thread(safe_html, shown.text)
    return HTMLResponse(frame_document(safe), headers={"content-security-policy": FRAME_POLICY})


@pages.get(f"{ITEM}/raw")
async def raw_evidence_page(here: Here, evidence_id: Id) -> Response:
    content = await here.read(lambda tx: raw_of(tx, evidence_id))
    return download(content, f"evidence-{evidence_id}")


@pages.get(f"{ITEM}/compare/{{other_id}}")
async def compare_page(here: Here, evidence_id: Id, other_id: Id, of: FilterChoice = "") -> Response:
    wanted = chosen(ComparedText, of, "of") or ComparedText.TEXT
    both = await here.read(lambda tx: two_versions(tx, evidence_id, other_id, wanted))
    compared = await asyncio.to_thread(both.compared)
    return await here.page("web/compare.html", SECTION, compared=compared)


async def _file(here: Here) -> SourcesFile:
    return await asyncio.to_thread(read_sources_file, here.app.web)


async def _new_run_page(here: Here, form: Form, status: int = 200) -> Response:
    found = await _file(here)
    switch = await here.read(lambda tx: kill_switch.state(tx, here.app.settings.backfill))
    caps = here.app.settings.web
    shown = {"form": form, "found": found, "switch": switch, "modes": MODES, "caps": caps, "missing": missing_extra()}
    return await here.page("web/new.html", SECTION, status, **shown)


api = api_router("web")

Slug = Annotated[str, Field(max_length=100)]
Day = Annotated[date | None, Field(description="without it the run has no bound at this end")]
Cap = Annotated[int | None, Field(ge=1, le=1_000_000, description="at most what the settings allow; left out: that")]


class RunWanted(BaseModel, extra="forbid"):
    sources: list[Slug] = Field(min_length=1, max_length=1_000, description="slugs of `sources.toml`")
    mode: EndpointMode
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


@api.get("")
@permits(Permission.READ)
async def overview(here: Here) -> WebOverview:
    """Sources with what each endpoint brought, the last and the next look, and pages that could not be had."""
    found = await asyncio.to_thread(read_sources_file, here.app.web)
    return await here.read(lambda tx: web_overview(tx, here.app.settings, found))


@api.post("/look")
@permits(Permission.WEB)
async def look(here: Here) -> LookQueued:
    """Let a worker look at all sources for what is new. While one look waits or runs, there is no second."""
    return LookQueued(job=await here.app.web.look_later(here.actor))


@api.post("/retry")
@permits(Permission.WEB)
async def retry(here: Here, wanted: RetryWanted) -> list[RetriedItems]:
    """Ask once more for pages that could not be had."""
    return await here.app.web.retry(here.actor, wanted.sources, dry_run=wanted.dry_run)


@api.get("/runs")
@permits(Permission.READ)
async def runs(
    here: Here, status: RunStatus | None = None, after: AfterId = None, limit: Limit = PAGE
) -> Paged[RunRow]:
    """Backfill runs, newest first."""
    wanted = RunsWanted(status, None if after is None else str(after), limit)
    return await here.read(lambda tx: list_runs(tx, wanted))


@api.post("/runs", status_code=201)
@permits(Permission.WEB)
async def begin(here: Here, wanted: RunWanted) -> RunDetail:
    """Make a run, for a worker to drive."""
    values = wanted.model_dump(exclude={"date_from", "date_to"})
    new = NewRun(**values, date_from=start_of(wanted.date_from), date_to=end_of(wanted.date_to, "date_to"))
    run = await here.app.web.hand_over(here.actor, new)
    return await _run(here, run.id)


@api.get("/runs/{run_id}")
@permits(Permission.READ)
async def run(here: Here, run_id: UUID) -> RunDetail:
    """One run: how far each endpoint is, what became of what it found, its errors."""
    return await _run(here, str(run_id))


@api.post("/runs/{run_id}/resume")
@permits(Permission.WEB)
async def resume(here: Here, run_id: UUID) -> RunDetail:
    """Let a worker go on with a failed run from the place where it was."""
    await here.app.web.resume_later(here.actor, str(run_id))
    return await _run(here, str(run_id))


@api.post("/runs/{run_id}/cancel")
@permits(Permission.WEB)
async def cancel(here: Here, run_id: UUID) -> RunDetail:
    """Give a run up for good. What it found stays."""
    await here.app.web.cancel(here.actor, str(run_id))
    return await _run(here, str(run_id))


@api.get("/evidence")
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


@api.get("/evidence/{evidence_id}")
@permits(Permission.READ)
async def item(here: Here, evidence_id: UUID) -> EvidenceDetail:
    """One kept page: its text, its hash, its times, and all versions of its address."""
    return await here.read(lambda tx: evidence_detail(tx, str(evidence_id)))


@api.get(
    "/evidence/{evidence_id}/raw", response_class=Response, responses=file_reply(OCTET_STREAM, "the bytes as fetched")
)
@permits(Permission.READ)
async def raw(here: Here, evidence_id: UUID) -> Response:
    """The bytes as they were fetched, checked against their hash, to be saved."""
    content = await here.read(lambda tx: raw_of(tx, str(evidence_id)))
    return download(content, f"evidence-{evidence_id}")


@api.get("/evidence/{evidence_id}/compare/{other_id}")
@permits(Permission.READ)
async def compare(
    here: Here, evidence_id: UUID, other_id: UUID, of: ComparedText = ComparedText.TEXT
) -> VersionComparison:
    """Two versions of one address side by side, line by line, the older at the left."""
    both = await here.read(lambda tx: two_versions(tx, str(evidence_id), str(other_id), of))
    return await asyncio.to_thread(both.compared)


async def _run(here: RequestContext, run_id: str) -> RunDetail:
    return await here.read(lambda tx: run_detail(tx, here.app.settings.backfill, run_id, here.now))
