"""Backfill: jobs and how they stand, a new one in three steps, the kill switch. What changes goes through tools."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from postroom.dashboard import charts
from postroom.dashboard.changing.backfill import (
    CONSENT,
    HOLDS,
    Offer,
    Stale,
    accept,
    form_of,
    make_offer,
    on_the_form,
    open_offer,
    require_cap_proof,
    seal_offer,
    wanted_of,
)
from postroom.dashboard.choosing import Choice, chosen, query_of
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.paging import After
from postroom.dashboard.reading.backfill import (
    BackfillsWanted,
    Detail,
    backfill_detail,
    choices,
    list_backfills,
    mailboxes,
    overview,
    switch,
)
from postroom.dashboard.security.proof import ProofNeeded
from postroom.dashboard.visit import Here, Visit
from postroom.dashboard.wording import money
from postroom.domain.errors import BadInput, PostroomError
from postroom.switchboard.backfill.model import Include
from postroom.switchboard.backfill.transitions import Status

router = pages_router()

SECTION = "backfill"

_FORM_FIELDS = frozenset(
    [
        "endpoint_identity",
        "target_categories",
        "all_mail",
        "date_from",
        "date_to",
        "rate_limit_per_hour",
        "daily_cost_cap",
        "background",
        "includes",
        "auto_resume",
    ]
)
_BINDS = {
    "rate_limit_per_hour": "the limit of messages an hour",
    "daily_cost_cap_cents": "the most that may be spent a day",
    "source_quota": "the quota of the source",
    "nothing": "nothing: there is nothing to do",
}
_DONE = {
    "pause": "The job is paused, and keeps its place. Its connector stops with its next report.",
    "resume": "The job waits for its connector, and goes on from its place.",
    "cancel": "The job is cancelled. What it brought stays.",
}


@router.get("/backfill")
async def backfill(here: Here, status: Choice = "", account: Choice = "", after: After = None) -> Response:
    wanted = BackfillsWanted(chosen(Status, status, "status"), account or None, after or None)
    settings = here.app.settings.backfill
    return await here.page(
        "backfill/list.html",
        SECTION,
        overview=await here.read(lambda tx: overview(tx, settings, here.now)),
        jobs=await here.read(lambda tx: list_backfills(tx, settings, wanted, here.now)),
        accounts=await here.read(mailboxes),
        statuses=list(Status),
        wanted=wanted,
        filter=query_of(status=wanted.status, account=wanted.account),
    )


@router.get("/backfill/new")
async def new(here: Here) -> Response:
    """Filled in with what the address says, so that a job can be made like another."""
    sent = {name: tuple(here.request.query_params.getlist(name)) for name in here.request.query_params}
    form = Form({name: values for name, values in sent.items() if name in _FORM_FIELDS})
    fresh = Form.filled(auto_resume="yes" if here.app.settings.backfill.auto_resume else None)
    return await _what(here, form if form.values else fresh)


@router.post("/backfill/new/estimate")
async def estimate(here: Here) -> Response:
    form = await here.form()
    try:
        offer = await make_offer(here, wanted_of(form, here.now.date()))
    except PostroomError as error:
        return await _refused(here, form, error)
    return await _offered(here, "backfill/estimate.html", offer, seal_offer(here, offer))


@router.post("/backfill/new/consent")
async def consent(here: Here) -> Response:
    sealed = (await here.form())["offer"]
    try:
        offer = open_offer(here, sealed)
    except Stale as stale:
        return await _again(here, stale)
    return await _offered(here, "backfill/consent.html", offer, sealed)


@router.post("/backfill")
async def create(here: Here) -> Response:
    form = await here.form()
    try:
        offer = open_offer(here, form["offer"])
    except Stale as stale:
        return await _again(here, stale)
    try:
        if not form.checked(CONSENT):
            raise BadInput(CONSENT, "tick this if you agree; nothing is begun without it")
        await require_cap_proof(here, offer, form)
        job_id = await accept(here, offer)
    except ProofNeeded:
        raise
    except PostroomError as error:
        shown = _beside_its_field(form, error, frozenset({CONSENT}))
        return await _offered(here, "backfill/consent.html", offer, form["offer"], 422, **shown)
    return await here.go(f"/backfill/{job_id}", "The job is made. It waits for its connector.")


@router.post("/backfill/switch")
async def turn(here: Here) -> Response:
    on = (await here.form()).one_of("turn", ("on", "off")) == "on"
    state = await here.call("backfill.switch", {"enabled": on})
    said = (
        "Backfill is on." if state["backfill_enabled"] else "Backfill is off. Running jobs stop and keep their place."
    )
    return await here.go("/backfill", said, "done" if state["backfill_enabled"] == on else "warn")


@router.get("/backfill/{job_id}")
async def job(here: Here, job_id: str) -> Response:
    settings = here.app.settings.backfill
    detail = await here.read(lambda tx: backfill_detail(tx, settings, job_id, here.now))
    return await here.page(
        "backfill/job.html",
        SECTION,
        detail=detail,
        switch=await here.read(lambda tx: switch(tx, settings)),
        spending=_spending(detail),
        like_this=_query_of_job(detail),
        zone=settings.day_zone,
    )


@router.post("/backfill/{job_id}/pause")
async def pause(here: Here, job_id: str) -> Response:
    return await _steer(here, job_id, "pause")


@router.post("/backfill/{job_id}/resume")
async def resume(here: Here, job_id: str) -> Response:
    return await _steer(here, job_id, "resume")


@router.post("/backfill/{job_id}/cancel")
async def cancel(here: Here, job_id: str) -> Response:
    return await _steer(here, job_id, "cancel")


async def _steer(here: Visit, job_id: str, what: str) -> Response:
    """A refusal is said on the job's page: somebody else, or the connector, was quicker."""
    try:
        await here.call(f"backfill.{what}", {"job_id": job_id})
    except BadInput as error:
        if error.field != "status":
            raise
        return await here.go(f"/backfill/{job_id}", f"Not done: {error.problem}.", "warn")
    return await here.go(f"/backfill/{job_id}", _DONE[what])


async def _what(here: Visit, form: Form, trouble: str | None = None, status: int = 200) -> Response:
    """The first step."""
    settings = here.app.settings.backfill
    return await here.page(
        "backfill/new.html",
        SECTION,
        status,
        form=form,
        trouble=trouble,
        accounts=await here.read(mailboxes),
        choices=choices(),
        includes=list(Include),
        switch=await here.read(lambda tx: switch(tx, settings)),
        settings=settings,
    )


async def _offered(here: Visit, template: str, offer: Offer, sealed: str, status: int = 200, **values: Any) -> Response:
    """The second and the third step: both show the estimate, and carry it on with the time at which it was made."""
    shown = {"form": Form(), "trouble": None, "is_new": False, **values}
    return await here.page(
        template,
        SECTION,
        status,
        offer=offer,
        sealed=sealed,
        binds=_BINDS.get(offer.estimate["binds"], offer.estimate["binds"]),
        holds=HOLDS,
        change=_query_of_form(form_of(offer.wanted)),
        switch=await here.read(lambda tx: switch(tx, here.app.settings.backfill)),
        **shown,
    )


async def _again(here: Visit, stale: Stale) -> Response:
    """A new estimate in place of one that no longer holds; nothing was agreed to."""
    if stale.wanted is None:
        return await _what(here, Form(), "That form cannot be read any more. Please fill it in again.", 422)
    try:
        offer = await make_offer(here, stale.wanted)
    except PostroomError as error:
        return await _refused(here, form_of(stale.wanted), error)
    return await _offered(here, "backfill/estimate.html", offer, seal_offer(here, offer), 422, is_new=True)


async def _refused(here: Visit, form: Form, error: PostroomError) -> Response:
    """The first step again, with what was written in it."""
    named = on_the_form(error) if isinstance(error, BadInput) else error
    return await _what(here, status=422, **_beside_its_field(form, named, _FORM_FIELDS))


def _beside_its_field(form: Form, error: PostroomError, fields: frozenset[str]) -> dict[str, Any]:
    """What is wrong stands beside the field that it names; what names none stands above all of them."""
    if isinstance(error, BadInput) and error.field in fields:
        return {"form": form.refused(error), "trouble": None}
    return {"form": form, "trouble": error.message}


def _query_of_form(form: Form) -> str:
    return urlencode([(name, value) for name, values in form.values.items() for value in values])


def _query_of_job(detail: Detail) -> str:
    job = detail.standing.job
    names = (
        "endpoint_identity",
        "target_categories",
        "rate_limit_per_hour",
        "daily_cost_cap_cents",
        "mode",
        "includes",
    )
    wanted = {name: getattr(job, name) for name in names}
    days = {"date_from": job.date_from.isoformat(), "date_to": job.date_to.isoformat()}
    return _query_of_form(form_of({**wanted, **days, "auto_resume": job.auto_resume}))


def _spending(detail: Detail) -> charts.Chart:
    recent = detail.days[-14:]
    return charts.bars(
        "Spent a day", [charts.Part(day.day.isoformat(), day.settled, money(day.settled)) for day in recent]
    )
