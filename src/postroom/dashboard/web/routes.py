"""Pages and API of web sources: the sources, the runs that recover their history, and the kept pages.

A kept page was written by a stranger: its markup is shown like mail, in a frame without script or origin.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query
from starlette.responses import HTMLResponse, Response

from postroom import kill_switch
from postroom.contract.fields import Id
from postroom.contract.web import (
    ADD_SOURCE,
    CANCEL_RUN,
    CREATE_RUN,
    LOOK,
    PAUSE_SOURCE,
    REMOVE_SOURCE,
    RESUME_RUN,
    RETRY_PAGES,
    SET_NOTIFY,
    AddedSourceReply,
    AddSourceArguments,
    LookReply,
    NewRunArguments,
    Notice,
    RetriedPage,
    RetryPagesArguments,
    Slug,
    SourceReply,
)
from postroom.dashboard.context import Here, RequestContext, api_router, file_reply, pages_router, permits
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
from postroom.dashboard.forms import FilterChoice, Form, mistake_in
from postroom.dashboard.paging import Paged
from postroom.dashboard.web.evidence import (
    LONGEST_TEXT,
    ComparedText,
    EvidenceDetail,
    EvidenceQuery,
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
    NOTICE_WAYS,
    RunDetail,
    RunRow,
    RunsQuery,
    WebOverview,
    list_runs,
    new_run_of,
    new_source_of,
    read_sources,
    run_detail,
    web_overview,
)
from postroom.domain.errors import BadInput, Fatal, NotFound, Retryable
from postroom.domain.roles import Permission
from postroom.web.evidence import EvidenceHit
from postroom.web.fetching.interface import Astray, Disallowed, ForbiddenAddress
from postroom.web.runs import RunStatus
from postroom.web.web_service import missing_extra

pages = pages_router()
api = api_router("web")

SECTION = "web"
SOURCE_PAGE = "/web/sources/{slug}"
RUN_PAGE = "/web/runs/{run_id}"
ITEM_PAGE = "/web/evidence/{evidence_id}"
RunsWanted = Annotated[RunsQuery, Query()]
EvidenceWanted = Annotated[EvidenceQuery, Query()]


@pages.get("/web")
async def sources_page(here: Here) -> Response:
    return await _sources_page(here, Form.filled(notify=["overview"]))


@api.get("")
@permits(Permission.READ)
async def show_overview(here: Here) -> WebOverview:
    """Sources with the pages of each endpoint, the last and the next check, and pages that could not be fetched."""
    found = await read_sources(here.app.web)
    return await here.read(lambda tx: web_overview(tx, here.app.settings, found))


@pages.post("/web/sources")
async def submit_source(here: Here) -> Response:
    """A preview says what following would bring, and changes nothing."""
    form = await here.form()
    is_preview = form["intent"] == "preview"
    try:
        added = await here.call(ADD_SOURCE, {**new_source_of(form), "dry_run": is_preview})
    except (BadInput, Retryable, Fatal, ForbiddenAddress, Astray, Disallowed) as error:
        refused = error if isinstance(error, BadInput) else BadInput("url", error.message)
        return await _sources_page(here, form.refused(refused), 422)
    if is_preview:
        return await _sources_page(here, form, preview=added)
    return await here.go("/web", f"Now following {added.source.slug}. {' '.join(added.findings)}")


@api.post("/sources", status_code=201)
@permits(Permission.WEB)
async def add_source(here: Here, wanted: AddSourceArguments) -> AddedSourceReply:
    """Follow a web site; says how it was recognised."""
    return await here.call(ADD_SOURCE, wanted)


@pages.post(f"{SOURCE_PAGE}/remove")
async def submit_remove(here: Here, slug: Slug) -> Response:
    await remove_source(here, slug)
    return await here.go("/web", f"Stopped following {slug}. Its pages are kept.")


@api.post("/sources/{slug}/remove")
@permits(Permission.WEB)
async def remove_source(here: Here, slug: Slug) -> SourceReply:
    """Stop following a source that was added. Its pages are kept."""
    return await here.call(REMOVE_SOURCE, {"source": slug})


@pages.post(f"{SOURCE_PAGE}/pause")
async def submit_pause(here: Here, slug: Slug) -> Response:
    await pause_source(here, slug)
    return await here.go("/web", f"{slug} is paused.")


@api.post("/sources/{slug}/pause")
@permits(Permission.WEB)
async def pause_source(here: Here, slug: Slug) -> SourceReply:
    """Look for no new pages of a source, and fetch none of those that wait."""
    return await here.call(PAUSE_SOURCE, {"source": slug, "paused": True})


@pages.post(f"{SOURCE_PAGE}/unpause")
async def submit_unpause(here: Here, slug: Slug) -> Response:
    await unpause_source(here, slug)
    return await here.go("/web", f"{slug} is followed again. The next check finds what it published meanwhile.")


@api.post("/sources/{slug}/unpause")
@permits(Permission.WEB)
async def unpause_source(here: Here, slug: Slug) -> SourceReply:
    """Follow a paused source again."""
    return await here.call(PAUSE_SOURCE, {"source": slug, "paused": False})


@pages.post(f"{SOURCE_PAGE}/notify")
async def submit_notify(here: Here, slug: Slug) -> Response:
    await here.call(SET_NOTIFY, {"source": slug, "notify": list((await here.form()).all("notify"))})
    return await here.go("/web", f"Saved where news of {slug} is reported.")


@api.post("/sources/{slug}/notify")
@permits(Permission.WEB)
async def set_notify(here: Here, slug: Slug, notify: list[Notice]) -> SourceReply:
    """Choose where news of a source is reported; an empty list: nowhere."""
    return await here.call(SET_NOTIFY, {"source": slug, "notify": notify})


@pages.post("/web/look")
async def submit_look(here: Here) -> Response:
    await look(here)
    return await here.go("/web", "A worker checks all sources now.")


@api.post("/look")
@permits(Permission.WEB)
async def look(here: Here) -> LookReply:
    """Let a worker check all sources for new pages. While one check waits or runs, no second is queued."""
    return await here.call(LOOK, {})


@pages.post("/web/retry")
async def submit_retry(here: Here) -> Response:
    source = (await here.form()).optional("source")
    retried = await retry(here, RetryPagesArguments(sources=None if source is None else [source]))
    return await here.go("/web", f"{plural(len(retried), 'page')} queued again.")


@api.post("/retry")
@permits(Permission.WEB)
async def retry(here: Here, wanted: RetryPagesArguments) -> list[RetriedPage]:
    """Fetch pages again that could not be fetched."""
    return (await here.call(RETRY_PAGES, wanted)).pages


@pages.get("/web/runs")
async def runs_page(here: Here, wanted: RunsWanted) -> Response:
    return await here.page(
        "web/runs.html", SECTION, runs=await show_runs(here, wanted), wanted=wanted, statuses=list(RunStatus)
    )


@api.get("/runs")
@permits(Permission.READ)
async def show_runs(here: Here, wanted: RunsWanted) -> Paged[RunRow]:
    """Backfill runs, newest first."""
    return await here.read(lambda tx: list_runs(tx, wanted))


@pages.get("/web/runs/new")
async def new_run_page(here: Here) -> Response:
    return await _new_run_page(here, Form())


@pages.post("/web/runs")
async def submit_run(here: Here) -> Response:
    form = await here.form()
    try:
        made = await here.call(CREATE_RUN, new_run_of(form))
    except BadInput as error:
        return await _new_run_page(here, form.refused(error), 422)
    return await here.go(f"/web/runs/{made.run}", "The run is created. It starts as soon as a worker is free.")


@api.post("/runs", status_code=201)
@permits(Permission.WEB)
async def create_run(here: Here, wanted: NewRunArguments) -> RunDetail:
    """Create a run for a worker."""
    return await show_run(here, (await here.call(CREATE_RUN, wanted)).run)


@pages.get(RUN_PAGE)
async def run_page(here: Here, run_id: Id) -> Response:
    return await here.page("web/run.html", SECTION, detail=await show_run(here, run_id))


@api.get("/runs/{run_id}")
@permits(Permission.READ)
async def show_run(here: Here, run_id: Id) -> RunDetail:
    """One run: the progress of each endpoint, the pages that it found by status, and its errors."""
    return await here.read(lambda tx: run_detail(tx, here.app.settings.backfill, run_id, here.now))


@pages.post(f"{RUN_PAGE}/resume")
async def submit_resume(here: Here, run_id: Id) -> Response:
    await resume(here, run_id)
    return await here.go(f"/web/runs/{run_id}", "A worker continues the run where it stopped.")


@api.post("/runs/{run_id}/resume")
@permits(Permission.WEB)
async def resume(here: Here, run_id: Id) -> RunDetail:
    """Let a worker continue a failed run where it stopped."""
    await here.call(RESUME_RUN, {"run": run_id})
    return await show_run(here, run_id)


@pages.post(f"{RUN_PAGE}/cancel")
async def submit_cancel(here: Here, run_id: Id) -> Response:
    await cancel(here, run_id)
    return await here.go(f"/web/runs/{run_id}", "The run is cancelled. What it found stays.")


@api.post("/runs/{run_id}/cancel")
@permits(Permission.WEB)
async def cancel(here: Here, run_id: Id) -> RunDetail:
    """Cancel a run for good. What it found stays."""
    await here.call(CANCEL_RUN, {"run": run_id})
    return await show_run(here, run_id)


@pages.get("/web/evidence")
async def evidence_page(here: Here, wanted: EvidenceWanted) -> Response:
    wanted = wanted.model_copy(update={"query": clean(wanted.query).replace("\N{REPLACEMENT CHARACTER}", "")})
    asked, mistake, status = Form.filled(query=wanted.query), None, 200
    found: Paged[EvidenceHit] = Paged([], None)
    try:
        found = await show_evidence(here, wanted)
    except BadInput as error:
        if error.field != "query":
            raise
        asked, mistake, status = asked.refused(error), mistake_in(wanted.query, error), 422
    return await here.page(
        "web/evidence.html", SECTION, status, asked=asked, wanted=wanted, found=found, mistake=mistake
    )


@api.get("/evidence")
@permits(Permission.READ)
async def show_evidence(here: Here, wanted: EvidenceWanted) -> Paged[EvidenceHit]:
    """Kept pages, the latest day first."""
    return await here.read(lambda tx: find_evidence(tx, wanted, here.now))


@pages.get(ITEM_PAGE)
async def evidence_item_page(here: Here, evidence_id: Id, view: FilterChoice = "") -> Response:
    detail = await show_item(here, evidence_id)
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


@api.get("/evidence/{evidence_id}")
@permits(Permission.READ)
async def show_item(here: Here, evidence_id: Id) -> EvidenceDetail:
    """One kept page: its text, its hash, its times, and all versions of its address."""
    return await here.read(lambda tx: evidence_detail(tx, evidence_id))


@pages.get(f"{ITEM_PAGE}/body")
async def evidence_body_page(here: Here, evidence_id: Id) -> Response:
    """The document in the frame."""
    shown = await here.read(lambda tx: page_of(tx, evidence_id))
    if shown.kind is not PageKind.MARKUP:
        raise NotFound("body", "this page has no markup")
    safe = await asyncio.to_thread(safe_html, shown.text)
    return HTMLResponse(frame_document(safe), headers={"content-security-policy": FRAME_POLICY})


@pages.get(f"{ITEM_PAGE}/raw")
@api.get(
    "/evidence/{evidence_id}/raw", response_class=Response, responses=file_reply(OCTET_STREAM, "the bytes as fetched")
)
@permits(Permission.READ)
async def raw(here: Here, evidence_id: Id) -> Response:
    """The bytes as they were fetched, checked against their hash, as a download."""
    content = await here.read(lambda tx: raw_of(tx, evidence_id))
    return download(content, f"evidence-{evidence_id}")


@pages.get(f"{ITEM_PAGE}/compare/{{other_id}}")
async def compare_page(here: Here, evidence_id: Id, other_id: Id, of: ComparedText = ComparedText.TEXT) -> Response:
    return await here.page("web/compare.html", SECTION, compared=await compare(here, evidence_id, other_id, of))


@api.get("/evidence/{evidence_id}/compare/{other_id}")
@permits(Permission.READ)
async def compare(here: Here, evidence_id: Id, other_id: Id, of: ComparedText = ComparedText.TEXT) -> VersionComparison:
    """Two versions of one address side by side, line by line, the older first."""
    both = await here.read(lambda tx: two_versions(tx, evidence_id, other_id, of))
    return await asyncio.to_thread(both.compared)


async def _sources_page(
    here: RequestContext, form: Form, status: int = 200, preview: AddedSourceReply | None = None
) -> Response:
    shown = {"form": form, "modes": MODES, "ways": NOTICE_WAYS, "missing": missing_extra(), "preview": preview}
    shown["schedule"] = here.app.settings.recurring.sentinel
    return await here.page("web/sources.html", SECTION, status, overview=await show_overview(here), **shown)


async def _new_run_page(here: RequestContext, form: Form, status: int = 200) -> Response:
    found = await read_sources(here.app.web)
    switch = await here.read(lambda tx: kill_switch.state(tx, here.app.settings.backfill))
    caps = here.app.settings.web
    shown = {"form": form, "found": found, "switch": switch, "modes": MODES, "caps": caps, "missing": missing_extra()}
    return await here.page("web/new.html", SECTION, status, **shown)
