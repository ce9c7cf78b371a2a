"""Pages and API of web sources: the sources, the runs that recover their history, and the kept pages.

A kept page was written by a stranger: its markup is shown like mail, in a frame without script or origin.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import HTMLResponse, Response

from postroom import kill_switch
from postroom.contract import web as contract
from postroom.contract.tool import Id, ToolSignature
from postroom.dashboard.context import Here, RequestContext, api_router, file_reply, pages_router, permits
from postroom.dashboard.display import foreign_content
from postroom.dashboard.display.formatting import clean, plural
from postroom.dashboard.forms import FilterChoice, Form, mistake_in
from postroom.dashboard.paging import Paged
from postroom.dashboard.web import evidence, queries
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
RunsWanted = Annotated[queries.RunsQuery, Query()]
EvidenceWanted = Annotated[evidence.EvidenceQuery, Query()]


PauseTurn = Literal["pause", "unpause"]
RunTurn = Literal["resume", "cancel"]


@pages.get("/web")
async def sources_page(here: Here) -> Response:
    return await _sources_page(here, Form.filled(notify=["overview"]))


@api.get("")
@permits(Permission.READ)
async def show_overview(here: Here) -> queries.WebOverview:
    """Sources with the pages of each endpoint, the last and the next check, and pages that could not be fetched."""
    found = await queries.read_sources(here.app.web)
    return await here.read(lambda tx: queries.web_overview(tx, here.app.settings, found, here.now))


@pages.post("/web/sources")
async def submit_source(here: Here) -> Response:
    """A preview says what following would bring, and changes nothing."""
    form = await here.form()
    is_preview = form["intent"] == "preview"
    try:
        added = await here.call(contract.ADD_SOURCE, {**queries.new_source_of(form), "dry_run": is_preview})
    except (BadInput, Retryable, Fatal, ForbiddenAddress, Astray, Disallowed) as error:
        refused = error if isinstance(error, BadInput) else BadInput("url", error.message)
        return await _sources_page(here, form.refused(refused), 422)
    if is_preview:
        return await _sources_page(here, form, preview=added)
    return await here.go("/web", f"Now following {added.source.slug}. {' '.join(added.findings)}")


@api.post("/sources", status_code=201)
@permits(Permission.WEB)
async def add_source(here: Here, wanted: contract.AddSourceArguments) -> contract.AddedSourceReply:
    """Follow a web site; says how it was recognised."""
    return await here.call(contract.ADD_SOURCE, wanted)


@pages.post(f"{SOURCE_PAGE}/remove")
async def submit_remove(here: Here, slug: contract.Slug) -> Response:
    await remove_source(here, slug)
    return await here.go("/web", f"Stopped following {slug}. Its pages are kept.")


@api.post("/sources/{slug}/remove")
@permits(Permission.WEB)
async def remove_source(here: Here, slug: contract.Slug) -> contract.SourceReply:
    """Stop following a source that was added. Its pages are kept."""
    return await here.call(contract.REMOVE_SOURCE, {"source": slug})


@pages.post(f"{SOURCE_PAGE}/notify")
async def submit_notify(here: Here, slug: contract.Slug) -> Response:
    await here.call(contract.SET_NOTIFY, {"source": slug, "notify": list((await here.form()).all("notify"))})
    return await here.go("/web", f"Saved where news of {slug} is reported.")


@api.post("/sources/{slug}/notify")
@permits(Permission.WEB)
async def set_notify(here: Here, slug: contract.Slug, notify: list[contract.Notice]) -> contract.SourceReply:
    """Choose where news of a source is reported; an empty list: nowhere."""
    return await here.call(contract.SET_NOTIFY, {"source": slug, "notify": notify})


@pages.post(f"{SOURCE_PAGE}/schedule")
async def submit_schedule(here: Here, slug: contract.Slug) -> Response:
    await here.call(
        contract.SET_SCHEDULE, {"source": slug, "every": (await here.form()).one_of("every", queries.CADENCES)}
    )
    return await here.go("/web", f"Saved how often {slug} is checked.")


@api.post("/sources/{slug}/schedule")
@permits(Permission.WEB)
async def set_schedule(here: Here, slug: contract.Slug, every: contract.Every) -> contract.SourceReply:
    """Choose how often a source is checked for new pages."""
    return await here.call(contract.SET_SCHEDULE, {"source": slug, "every": every})


@pages.post(f"{SOURCE_PAGE}/{{turn}}")
async def submit_pause(here: Here, slug: contract.Slug, turn: PauseTurn) -> Response:
    await pause_source(here, slug, turn)
    again = f"{slug} is followed again. The next check finds what it published meanwhile."
    return await here.go("/web", f"{slug} is paused." if turn == "pause" else again)


@api.post("/sources/{slug}/{turn}")
@permits(Permission.WEB)
async def pause_source(here: Here, slug: contract.Slug, turn: PauseTurn) -> contract.SourceReply:
    """`pause`: look for no new pages of a source, and fetch none of those that wait; `unpause`: follow it again."""
    return await here.call(contract.PAUSE_SOURCE, {"source": slug, "paused": turn == "pause"})


@pages.post("/web/look")
async def submit_look(here: Here) -> Response:
    await look(here)
    return await here.go("/web", "A worker checks all sources now.")


@api.post("/look")
@permits(Permission.WEB)
async def look(here: Here) -> contract.LookReply:
    """Let a worker check all sources for new pages. While one check waits or runs, no second is queued."""
    return await here.call(contract.LOOK, {})


@pages.post("/web/retry")
async def submit_retry(here: Here) -> Response:
    source = (await here.form()).optional("source")
    retried = await retry(here, contract.RetryPagesArguments(sources=None if source is None else [source]))
    return await here.go("/web", f"{plural(len(retried), 'page')} queued again.")


@api.post("/retry")
@permits(Permission.WEB)
async def retry(here: Here, wanted: contract.RetryPagesArguments) -> list[contract.RetriedPage]:
    """Fetch pages again that could not be fetched."""
    return (await here.call(contract.RETRY_PAGES, wanted)).pages


@pages.get("/web/runs")
async def runs_page(here: Here, wanted: RunsWanted) -> Response:
    return await here.page(
        "web/runs.html", SECTION, runs=await show_runs(here, wanted), wanted=wanted, statuses=list(RunStatus)
    )


@api.get("/runs")
@permits(Permission.READ)
async def show_runs(here: Here, wanted: RunsWanted) -> Paged[queries.RunRow]:
    """Backfill runs, newest first."""
    return await here.read(lambda tx: queries.list_runs(tx, wanted))


@pages.get("/web/runs/new")
async def new_run_page(here: Here) -> Response:
    return await _new_run_page(here, Form())


@pages.post("/web/runs")
async def submit_run(here: Here) -> Response:
    form = await here.form()
    try:
        made = await here.call(contract.CREATE_RUN, queries.new_run_of(form))
    except BadInput as error:
        return await _new_run_page(here, form.refused(error), 422)
    return await here.go(f"/web/runs/{made.run}", "The run is created. It starts as soon as a worker is free.")


@api.post("/runs", status_code=201)
@permits(Permission.WEB)
async def create_run(here: Here, wanted: contract.NewRunArguments) -> queries.RunDetail:
    """Create a run for a worker."""
    return await show_run(here, (await here.call(contract.CREATE_RUN, wanted)).run)


@pages.get(RUN_PAGE)
async def run_page(here: Here, run_id: Id) -> Response:
    return await here.page("web/run.html", SECTION, detail=await show_run(here, run_id))


@api.get("/runs/{run_id}")
@permits(Permission.READ)
async def show_run(here: Here, run_id: Id) -> queries.RunDetail:
    """One run: the progress of each endpoint, the pages that it found by status, and its errors."""
    return await here.read(lambda tx: queries.run_detail(tx, here.app.settings.backfill, run_id, here.now))


_RUN_TURNS: dict[str, tuple[ToolSignature[Any, Any], str]] = {
    "resume": (contract.RESUME_RUN, "A worker continues the run where it stopped."),
    "cancel": (contract.CANCEL_RUN, "The run is cancelled. What it found stays."),
}


@pages.post(f"{RUN_PAGE}/{{turn}}")
async def submit_turn(here: Here, run_id: Id, turn: RunTurn) -> Response:
    await turn_run(here, run_id, turn)
    return await here.go(f"/web/runs/{run_id}", _RUN_TURNS[turn][1])


@api.post("/runs/{run_id}/{turn}")
@permits(Permission.WEB)
async def turn_run(here: Here, run_id: Id, turn: RunTurn) -> queries.RunDetail:
    """`resume`: let a worker continue a failed run where it stopped; `cancel`: end it for good. What it found stays."""
    await here.call(_RUN_TURNS[turn][0], {"run": run_id})
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
    return await here.read(lambda tx: evidence.find_evidence(tx, wanted, here.now))


@pages.get(ITEM_PAGE)
async def evidence_item_page(here: Here, evidence_id: Id, view: FilterChoice = "") -> Response:
    detail = await show_item(here, evidence_id)
    shown = await here.read(lambda tx: evidence.page_of(tx, evidence_id))
    text = detail.text.text if detail.text else ""
    if view == "source":
        text = shown.text[: evidence.LONGEST_TEXT]
    is_cut = detail.is_text_cut if view != "source" else shown.is_cut or len(shown.text) > evidence.LONGEST_TEXT
    return await here.page(
        "web/item.html",
        SECTION,
        detail=detail,
        view=view if view in ("page", "source") and shown.kind is not evidence.PageKind.BYTES else "text",
        kind=shown.kind,
        text=foreign_content.linked(text) if view != "source" else clean(text),
        is_cut=is_cut,
        sandbox=foreign_content.SANDBOX,
    )


@api.get("/evidence/{evidence_id}")
@permits(Permission.READ)
async def show_item(here: Here, evidence_id: Id) -> evidence.EvidenceDetail:
    """One kept page: its text, its hash, its times, and all versions of its address."""
    return await here.read(lambda tx: evidence.evidence_detail(tx, evidence_id))


@pages.get(f"{ITEM_PAGE}/body")
async def evidence_body_page(here: Here, evidence_id: Id) -> Response:
    """The document in the frame."""
    shown = await here.read(lambda tx: evidence.page_of(tx, evidence_id))
    if shown.kind is not evidence.PageKind.MARKUP:
        raise NotFound("body", "this page has no markup")
    safe = await asyncio.to_thread(foreign_content.safe_html, shown.text)
    return HTMLResponse(
        foreign_content.frame_document(safe), headers={"content-security-policy": foreign_content.FRAME_POLICY}
    )


@pages.get(f"{ITEM_PAGE}/raw")
@api.get(
    "/evidence/{evidence_id}/raw",
    response_class=Response,
    responses=file_reply(foreign_content.OCTET_STREAM, "the bytes as fetched"),
)
@permits(Permission.READ)
async def raw(here: Here, evidence_id: Id) -> Response:
    """The bytes as they were fetched, checked against their hash, as a download."""
    content = await here.read(lambda tx: evidence.raw_of(tx, evidence_id))
    return foreign_content.download(content, f"evidence-{evidence_id}")


@pages.get(f"{ITEM_PAGE}/compare/{{other_id}}")
async def compare_page(
    here: Here, evidence_id: Id, other_id: Id, of: evidence.ComparedText = evidence.ComparedText.TEXT
) -> Response:
    return await here.page("web/compare.html", SECTION, compared=await compare(here, evidence_id, other_id, of))


@api.get("/evidence/{evidence_id}/compare/{other_id}")
@permits(Permission.READ)
async def compare(
    here: Here, evidence_id: Id, other_id: Id, of: evidence.ComparedText = evidence.ComparedText.TEXT
) -> evidence.VersionComparison:
    """Two versions of one address side by side, line by line, the older first."""
    both = await here.read(lambda tx: evidence.two_versions(tx, evidence_id, other_id, of))
    return await asyncio.to_thread(both.compared)


async def _sources_page(
    here: RequestContext, form: Form, status: int = 200, preview: contract.AddedSourceReply | None = None
) -> Response:
    shown = {
        "form": form,
        "modes": queries.MODES,
        "ways": queries.NOTICE_WAYS,
        "cadences": queries.CADENCES,
        "missing": missing_extra(),
        "preview": preview,
    }
    shown["schedule"] = here.app.settings.recurring.sentinel
    return await here.page("web/sources.html", SECTION, status, overview=await show_overview(here), **shown)


async def _new_run_page(here: RequestContext, form: Form, status: int = 200) -> Response:
    found = await queries.read_sources(here.app.web)
    switch = await here.read(lambda tx: kill_switch.state(tx, here.app.settings.backfill))
    caps = here.app.settings.web
    shown = {
        "form": form,
        "found": found,
        "switch": switch,
        "modes": queries.MODES,
        "caps": caps,
        "missing": missing_extra(),
    }
    return await here.page("web/new.html", SECTION, status, **shown)
