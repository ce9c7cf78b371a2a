"""Pages and API of backfill: the jobs, a new one in three steps, the kill switch. Changes go through the
Switchboard's tools.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from postroom.contract.backfill import CHANGE, JUDGE_AGAIN, STEERING, SWITCH
from postroom.contract.tool import Id
from postroom.dashboard.backfill import offers, queries
from postroom.dashboard.context import Here, RequestContext, api_router, named_by, pages_router, permits
from postroom.dashboard.display import charts
from postroom.dashboard.display.formatting import money
from postroom.dashboard.forms import Form
from postroom.dashboard.paging import Paged
from postroom.dashboard.security.login import call_with_proof
from postroom.db import Tx
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission, ProofNeeded
from postroom.domain.terms import BackfillMode, BackfillStatus, Include
from postroom.mail.categories import Categories
from postroom.switchboard.backfill.job import BackfillEvent

pages = pages_router()
api = api_router("backfill")

SECTION = "backfill"
BackfillsWanted = Annotated[queries.BackfillsQuery, Query()]

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
        "rules_only",
    ]
)


def _form_fields(here: RequestContext) -> frozenset[str]:
    return _FORM_FIELDS.union(map(offers.first_day_field, here.app.categories.defined.selectable))


_BINDS = {
    "rate_limit_per_hour": "the hourly message limit",
    "daily_cost_cap_cents": "the daily cost cap",
    "daily_ceiling": "the share of the model's ceiling that all backfill has",
    "source_quota": "the quota of the mail provider",
    "nothing": "nothing, because there is nothing to do",
}
_DONE = {
    BackfillEvent.PAUSE: "The job is paused and keeps its place. Its connector stops at its next report.",
    BackfillEvent.RESUME: "The job continues where it stopped as soon as its connector asks for work.",
    BackfillEvent.CANCEL: "The job is cancelled. Mail that it already fetched stays.",
}


@pages.get("/backfill")
async def backfill_page(here: Here, wanted: BackfillsWanted) -> Response:
    settings = here.app.settings.backfill
    overview, jobs, accounts = await here.read(
        lambda tx: (
            queries.overview(tx, settings, here.now),
            queries.list_backfills(tx, settings, wanted, here.now),
            queries.mailboxes(tx),
        )
    )
    return await here.page(
        "backfill/list.html",
        SECTION,
        overview=overview,
        jobs=jobs,
        accounts=accounts,
        statuses=list(BackfillStatus),
        wanted=wanted,
    )


@api.get("")
@permits(Permission.READ)
async def show_overview(here: Here) -> queries.BackfillOverview:
    """The kill switch, how many jobs have each status, and what was spent today."""
    return await here.read(lambda tx: queries.overview(tx, here.app.settings.backfill, here.now))


@api.get("/jobs")
@permits(Permission.READ, named_by("account"))
async def show_jobs(here: Here, wanted: BackfillsWanted) -> Paged[queries.BackfillRow]:
    """Jobs, newest first."""
    return await here.read(lambda tx: queries.list_backfills(tx, here.app.settings.backfill, wanted, here.now))


@api.get("/categories")
@permits(Permission.READ, keeps_to_mailbox=True)
async def categories(here: Here) -> list[queries.CategoryChoice]:
    """What a job may ask for, with how far back each category goes by default."""
    return queries.choices(here.app.categories.defined)


@pages.get("/backfill/new")
async def new_job_page(here: Here) -> Response:
    """Filled in from the query string, so that a job can be created like another."""
    sent = {name: tuple(here.request.query_params.getlist(name)) for name in here.request.query_params}
    form = Form({name: values for name, values in sent.items() if name in _form_fields(here)})
    fresh = Form.filled(auto_resume="yes" if here.app.settings.backfill.auto_resume else None)
    return await _what(here, form if form.values else fresh)


@pages.post("/backfill/new/estimate")
async def submit_estimate(here: Here) -> Response:
    form = await here.form()
    try:
        offer = await offers.make_offer(here, offers.wanted_of(form, here.now.date(), here.app.categories.defined))
    except PostroomError as error:
        return await _refused(here, form, error)
    return await _offered(here, "backfill/estimate.html", offer, offers.seal_offer(here, offer))


@pages.post("/backfill/new/consent")
async def submit_consent(here: Here) -> Response:
    sealed = (await here.form())["offer"]
    try:
        offer = offers.open_offer(here, sealed)
    except offers.StaleOffer as stale:
        return await _again(here, stale)
    return await _offered(here, "backfill/consent.html", offer, sealed)


@pages.post("/backfill")
async def submit_job(here: Here) -> Response:
    form = await here.form()
    try:
        offer = offers.open_offer(here, form["offer"])
    except offers.StaleOffer as stale:
        return await _again(here, stale)
    try:
        if not form.checked(offers.CONSENT):
            raise BadInput(offers.CONSENT, "tick this box to agree; nothing starts without it")
        job_id = await offers.accept(here, offer, form)
    except ProofNeeded:
        raise
    except PostroomError as error:
        shown = _beside_its_field(form, error, frozenset({offers.CONSENT}))
        return await _offered(here, "backfill/consent.html", offer, form["offer"], 422, **shown)
    return await here.go(f"/backfill/{job_id}", "The job is created. It starts when its connector asks for work.")


class BackfillSwitchWanted(BaseModel, extra="forbid"):
    enabled: bool


async def turn_switch(here: RequestContext, on: bool) -> queries.BackfillSwitch:
    await here.call(SWITCH, {"enabled": on})
    return await here.read(lambda tx: queries.switch(tx, here.app.settings.backfill))


@pages.post("/backfill/switch")
async def submit_switch(here: Here) -> Response:
    on = (await here.form()).one_of("turn", ("on", "off")) == "on"
    state = await turn_switch(here, on)
    message = "Backfill is on." if state.is_on else "Backfill is off. Running jobs stop and keep their place."
    return await here.go("/backfill", message, "done" if state.is_on == on else "warn")


@api.post("/switch")
@permits(Permission.BACKFILL)
async def turn(here: Here, wanted: BackfillSwitchWanted) -> queries.BackfillSwitch:
    """Switch all backfill off or on. Off stops every running job; live mail continues."""
    return await turn_switch(here, wanted.enabled)


def _mailbox_of_job(tx: Tx, request: Request) -> str | None:
    return queries.mailbox_of_job(tx, parse_id(request.path_params["job_id"], "job_id"))


@pages.get("/backfill/{job_id}")
async def job_page(here: Here, job_id: Id) -> Response:
    return await _job(here, job_id, Form())


async def _job(here: RequestContext, job_id: str, form: Form, status: int = 200) -> Response:
    settings = here.app.settings.backfill
    detail, switch = await here.read(
        lambda tx: (queries.backfill_detail(tx, settings, job_id, here.now), queries.switch(tx, settings))
    )
    return await here.page(
        "backfill/job.html",
        SECTION,
        status,
        detail=detail,
        form=form,
        switch=switch,
        spending=_spending(detail),
        like_this=_query_of_job(detail),
        zone=settings.day_zone,
    )


@api.get("/jobs/{job_id}")
@permits(Permission.READ, _mailbox_of_job)
async def show_job(here: Here, job_id: Id) -> queries.BackfillDetail:
    """One job with its money by day, its estimate beside the actual figures, and its audit."""
    return await here.read(lambda tx: queries.backfill_detail(tx, here.app.settings.backfill, job_id, here.now))


@api.post("/jobs/{job_id}/pause")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def pause(here: Here, job_id: Id) -> queries.BackfillDetail:
    """Stop a job and keep its place."""
    return await steer(here, job_id, BackfillEvent.PAUSE)


@api.post("/jobs/{job_id}/resume")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def resume(here: Here, job_id: Id) -> queries.BackfillDetail:
    """Let a paused, capped or failed job continue where it stopped."""
    return await steer(here, job_id, BackfillEvent.RESUME)


@api.post("/jobs/{job_id}/cancel")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def cancel(here: Here, job_id: Id) -> queries.BackfillDetail:
    """Stop a job for good; mail that it already fetched stays."""
    return await steer(here, job_id, BackfillEvent.CANCEL)


class BackfillLimits(BaseModel, extra="forbid"):
    """What is left out stays as it is."""

    rate_limit_per_hour: int | None = Field(None, description="messages an hour")
    daily_cost_cap_cents: int | None = Field(None, description="spending a day")


@api.post("/jobs/{job_id}/change")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def change(here: Here, job_id: Id, limits: BackfillLimits) -> queries.BackfillDetail:
    """Give a job another speed or daily cap."""
    await call_with_proof(here, CHANGE, {"job_id": job_id, **limits.model_dump(exclude_none=True)}, None)
    return await show_job(here, job_id)


@api.post("/jobs/{job_id}/judge_again")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def judge_again(here: Here, job_id: Id) -> queries.BackfillDetail:
    """Try again to judge those of its messages for which that failed."""
    await here.call(JUDGE_AGAIN, {"job_id": job_id})
    return await show_job(here, job_id)


@pages.post("/backfill/{job_id}/change")
async def submit_change(here: Here, job_id: Id) -> Response:
    form = await here.form()
    try:
        await call_with_proof(here, CHANGE, {"job_id": job_id, **offers.limits_of(form)}, form)
    except BadInput as error:
        return await _job(here, job_id, form.refused(offers.on_the_form(error)), 422)
    return await here.go(f"/backfill/{job_id}", "The new limits hold from now on.")


@pages.post("/backfill/{job_id}/judge-again")
async def submit_judge_again(here: Here, job_id: Id) -> Response:
    judged = await here.call(JUDGE_AGAIN, {"job_id": job_id})
    message = (
        "Nothing to judge again: no attempt has failed."
        if not judged.messages
        else (f"Judging {judged.messages:,} messages again.")
    )
    return await here.go(f"/backfill/{job_id}", message)


@pages.post("/backfill/{job_id}/{event}")
async def submit_steering(here: Here, job_id: Id, event: Literal["pause", "resume", "cancel"]) -> Response:
    """A refusal is shown on the job's page: another person or the connector was first."""
    try:
        await steer(here, job_id, BackfillEvent(event))
    except BadInput as error:
        if error.field != "status":
            raise
        return await here.go(f"/backfill/{job_id}", f"Not possible: {error.problem}.", "warn")
    return await here.go(f"/backfill/{job_id}", _DONE[BackfillEvent(event)])


async def steer(here: RequestContext, job_id: str, event: BackfillEvent) -> queries.BackfillDetail:
    await here.call(STEERING[event], {"job_id": job_id})
    return await show_job(here, job_id)


async def _what(here: RequestContext, form: Form, trouble: str | None = None, status: int = 200) -> Response:
    """The first step."""
    settings, known = here.app.settings.backfill, here.app.categories.defined
    return await here.page(
        "backfill/new.html",
        SECTION,
        status,
        form=form,
        first_days=any(form[name] or form.error(name) for name in map(offers.first_day_field, known.selectable)),
        trouble=trouble,
        accounts=await here.read(queries.mailboxes),
        choices=queries.choices(known),
        includes=list(Include),
        switch=await here.read(lambda tx: queries.switch(tx, settings)),
        settings=settings,
    )


async def _offered(
    here: RequestContext, template: str, offer: offers.BackfillOffer, sealed: str, status: int = 200, **values: Any
) -> Response:
    """The second and the third step: both show the estimate and carry it on with the time of its creation."""
    shown = {"form": Form(), "trouble": None, "is_new": False, **values}
    return await here.page(
        template,
        SECTION,
        status,
        offer=offer,
        sealed=sealed,
        binds=_BINDS.get(offer.estimate["binds"], offer.estimate["binds"]),
        holds=offers.OFFER_LIFE,
        change=_query_of_form(offers.form_of(offer.wanted)),
        switch=await here.read(lambda tx: queries.switch(tx, here.app.settings.backfill)),
        **shown,
    )


async def _again(here: RequestContext, stale: offers.StaleOffer) -> Response:
    """A new estimate in place of one that is no longer valid; nothing was agreed to."""
    if stale.wanted is None:
        return await _what(here, Form(), "The form could not be read. Please fill it in again.", 422)
    try:
        offer = await offers.make_offer(here, stale.wanted)
    except PostroomError as error:
        return await _refused(here, offers.form_of(stale.wanted), error)
    return await _offered(here, "backfill/estimate.html", offer, offers.seal_offer(here, offer), 422, is_new=True)


async def _refused(here: RequestContext, form: Form, error: PostroomError) -> Response:
    """The first step again, with what was entered."""
    named = offers.on_the_form(error) if isinstance(error, BadInput) else error
    return await _what(here, status=422, **_beside_its_field(form, named, _form_fields(here)))


def _beside_its_field(form: Form, error: PostroomError, fields: frozenset[str]) -> dict[str, Any]:
    """An error is shown beside the field that it names, or else above all of them."""
    if isinstance(error, BadInput) and error.field in fields:
        return {"form": form.refused(error), "trouble": None}
    return {"form": form, "trouble": error.message}


def _query_of_form(form: Form) -> str:
    return urlencode([(name, value) for name, values in form.values.items() for value in values])


def _query_of_job(detail: queries.BackfillDetail) -> str:
    job = detail.summary.job
    names = (
        "endpoint_identity",
        "target_categories",
        "rate_limit_per_hour",
        "daily_cost_cap_cents",
        "mode",
        "includes",
        "uses_model",
    )
    wanted = {name: getattr(job, name) for name in names}
    days: dict[str, Any] = {"date_from": job.date_from.isoformat(), "date_to": job.date_to.isoformat()}
    days["category_from"] = {name: day.isoformat() for name, day in job.category_from.items()}
    return _query_of_form(offers.form_of({**wanted, **days, "auto_resume": job.auto_resume}))


def _spending(detail: queries.BackfillDetail) -> charts.Chart:
    recent = detail.days[-14:]
    return charts.bars(
        "Spending by day", [charts.ChartPart(day.day.isoformat(), day.spent, money(day.spent)) for day in recent]
    )


class BackfillWanted(BaseModel, extra="forbid"):
    """What a job is to recover. Limits default to those of the settings."""

    endpoint_identity: str = Field(max_length=320, description="the mailbox, by its address")
    target_categories: list[str] = Field(default_factory=list, max_length=20, description="empty: all mail of the days")
    date_from: date | None = Field(None, description="the first day; default: as far back as the categories go")
    date_to: date | None = Field(None, description="the last day, included; default: today")
    category_from: dict[str, date] = Field(
        default_factory=dict, max_length=20, description="the first day of a category, where it is not that of the job"
    )
    rate_limit_per_hour: int | None = Field(None, description="messages an hour")
    daily_cost_cap_cents: int | None = Field(None, description="spending a day")
    mode: BackfillMode = BackfillMode.SELECTIVE
    includes: list[Include] = Field(default_factory=list, max_length=4)
    auto_resume: bool | None = Field(None, description="resume by itself when a new day brings a new budget")
    uses_model: bool | None = Field(None, description="false: rules decide alone, at no cost")

    def arguments(self, today: date, categories: Categories) -> dict[str, Any]:
        return offers.arguments_of(self.model_dump(mode="json"), today, categories)


class OfferReply(BaseModel):
    """What such a job would fetch, cost and take, and the `offer` to agree to."""

    offer: str = Field(description="send it back to agree; it holds the estimate and its time")
    holds_until: datetime
    estimate: dict[str, Any]


class BackfillConsent(BaseModel, extra="forbid"):
    offer: str = Field(max_length=50_000, description="as the estimate returned it; an old one is refused")
    consent: Literal[True] = Field(description="the owner has seen the estimate and agrees")


@api.post("/estimate")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def estimate(here: Here, wanted: BackfillWanted) -> OfferReply:
    """What a job would fetch, cost and take. Creates nothing."""
    offer = await offers.make_offer(here, wanted.arguments(here.now.date(), here.app.categories.defined))
    sealed = offers.seal_offer(here, offer)
    return OfferReply(offer=sealed, holds_until=here.now + offers.OFFER_LIFE, estimate=dict(offer.estimate))


@api.post("/jobs")
@permits(Permission.BACKFILL, keeps_to_mailbox=True)
async def create(here: Here, agreed: BackfillConsent) -> queries.BackfillDetail:
    """Create the job that was estimated, with the owner's consent."""
    return await show_job(here, await offers.accept(here, offers.open_offer(here, agreed.offer)))
