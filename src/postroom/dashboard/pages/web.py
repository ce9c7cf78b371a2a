"""Web: the sources that are followed, the runs that recover what they had, and the pages that were kept.

What a page holds was written by a stranger. Its markup is shown only as mail is: in a frame without script and origin.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Path, Query
from starlette.responses import HTMLResponse, Response

from postroom import kill_switch
from postroom.dashboard.changing.web import MODES, new_run_of
from postroom.dashboard.choosing import Choice, chosen, query_of
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.paging import After, Paged
from postroom.dashboard.reading.web import Found, read_file, web_overview
from postroom.dashboard.reading.web_evidence import (
    LONGEST_QUERY,
    LONGEST_TEXT,
    Of,
    evidence_detail,
    find_evidence,
    page_of,
    raw_of,
    two_versions,
)
from postroom.dashboard.reading.web_runs import RunsWanted, list_runs, run_detail
from postroom.dashboard.showing.downloads import download
from postroom.dashboard.showing.html import FRAME_POLICY, SANDBOX, frame_document, safe_html
from postroom.dashboard.showing.mistakes import mistake_in
from postroom.dashboard.showing.text import linked
from postroom.dashboard.showing.web_pages import Kind
from postroom.dashboard.visit import Here
from postroom.dashboard.wording import clean, plural
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.websources.run_model import Status
from postroom.websources.search import EvidenceHit
from postroom.websources.service import missing_extra

router = pages_router()

SECTION = "web"
RUN = "/web/runs/{run_id}"
ITEM = "/web/evidence/{evidence_id}"
Asked = Annotated[str, Query(max_length=LONGEST_QUERY)]
Id = Annotated[str, Path(max_length=100)]


@router.get("/web")
async def sources(here: Here) -> Response:
    found = await _file(here)
    overview = await here.read(lambda tx: web_overview(tx, here.app.settings, found))
    return await here.page("web/sources.html", SECTION, overview=overview, missing=missing_extra())


@router.post("/web/look")
async def look(here: Here) -> Response:
    await here.app.web.look_later(here.actor)
    return await here.go("/web", "A worker looks at all sources now.")


@router.post("/web/retry")
async def retry(here: Here) -> Response:
    source = (await here.form()).optional("source")
    retried = await here.app.web.retry(here.actor, None if source is None else [source])
    return await here.go("/web", f"{plural(len(retried), 'page')} asked for once more.")


@router.get("/web/runs")
async def runs(here: Here, status: Choice = "", after: After = None) -> Response:
    wanted = RunsWanted(chosen(Status, status, "status"), parse_id(after, "after") if after else None)
    found = await here.read(lambda tx: list_runs(tx, wanted))
    return await here.page(
        "web/runs.html",
        SECTION,
        runs=found,
        wanted=wanted,
        filter=query_of(status=wanted.status),
        statuses=list(Status),
    )


@router.get("/web/runs/new")
async def new_run(here: Here) -> Response:
    return await _new(here, Form())


@router.post("/web/runs")
async def begin(here: Here) -> Response:
    form = await here.form()
    try:
        run = await here.app.web.hand_over(here.actor, new_run_of(form))
    except BadInput as error:
        field = {"source": "sources", "from": "date_from", "to": "date_to"}.get(error.field, error.field)
        return await _new(here, form.refused(BadInput(field.replace("-", "_"), error.problem)), 422)
    return await here.go(f"/web/runs/{run.id}", "The run is made. It waits for a worker.")


@router.get(RUN)
async def run(here: Here, run_id: Id) -> Response:
    detail = await here.read(lambda tx: run_detail(tx, here.app.settings.backfill, run_id, here.now))
    return await here.page("web/run.html", SECTION, detail=detail)


@router.post(f"{RUN}/resume")
async def resume(here: Here, run_id: Id) -> Response:
    run = await here.app.web.resume_later(here.actor, run_id)
    return await here.go(f"/web/runs/{run.id}", "A worker goes on with it from the place where it was.")


@router.post(f"{RUN}/cancel")
async def cancel(here: Here, run_id: Id) -> Response:
    run = await here.app.web.cancel(here.actor, run_id)
    return await here.go(f"/web/runs/{run.id}", "The run is cancelled. What it found stays.")


@router.get("/web/evidence")
async def evidence(here: Here, query: Asked = "", after: After = None) -> Response:
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


@router.get(ITEM)
async def item(here: Here, evidence_id: Id, view: Choice = "") -> Response:
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
        view=view if view in ("page", "source") and shown.kind is not Kind.BYTES else "text",
        kind=shown.kind,
        text=linked(text) if view != "source" else clean(text),
        is_cut=is_cut,
        sandbox=SANDBOX,
    )


@router.get(f"{ITEM}/body")
async def body(here: Here, evidence_id: Id) -> Response:
    """The document in the frame."""
    shown = await here.read(lambda tx: page_of(tx, evidence_id))
    if shown.kind is not Kind.MARKUP:
        raise NotFound("body", "this page has no markup")
    safe = await asyncio.to_thread(safe_html, shown.text)
    return HTMLResponse(frame_document(safe), headers={"content-security-policy": FRAME_POLICY})


@router.get(f"{ITEM}/raw")
async def raw(here: Here, evidence_id: Id) -> Response:
    content = await here.read(lambda tx: raw_of(tx, evidence_id))
    return download(content, f"evidence-{evidence_id}")


@router.get(f"{ITEM}/compare/{{other_id}}")
async def compare(here: Here, evidence_id: Id, other_id: Id, of: Choice = "") -> Response:
    wanted = chosen(Of, of, "of") or Of.TEXT
    both = await here.read(lambda tx: two_versions(tx, evidence_id, other_id, wanted))
    compared = await asyncio.to_thread(both.compared)
    return await here.page("web/compare.html", SECTION, compared=compared)


async def _file(here: Here) -> Found:
    return await asyncio.to_thread(read_file, here.app.web)


async def _new(here: Here, form: Form, status: int = 200) -> Response:
    found = await _file(here)
    switch = await here.read(lambda tx: kill_switch.state(tx, here.app.settings.backfill))
    caps = here.app.settings.web
    shown = {"form": form, "found": found, "switch": switch, "modes": MODES, "caps": caps, "missing": missing_extra()}
    return await here.page("web/new.html", SECTION, status, **shown)
