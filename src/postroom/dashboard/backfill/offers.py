"""A new backfill job: from the form to an estimate, signed as an offer, to the owner's consent. All changes go through
the Switchboard's tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from postroom.contract.backfill import CREATE, ESTIMATE
from postroom.dashboard.context import RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.security.proof import SensitiveChange, require_proof
from postroom.domain.backfill import BackfillMode
from postroom.domain.errors import BadInput
from postroom.domain.money import MICROS_PER_CENT, format_dollars, from_cents, parse_dollars
from postroom.mail.categories import shipped
from postroom.switchboard.backfill.operations import MOST_CENTS, usual_cap

OFFER_LIFE = timedelta(minutes=15)
"""Mail arrives and prices change; an estimate that is older says nothing that anybody could agree to."""

CONNECTOR_TYPE = "gmail"
CONSENT = "consent"

Arguments = Mapping[str, Any]

_FIELDS = {"account": "endpoint_identity", "daily_cost_cap_cents": "daily_cost_cap", "mode": "background"}
"""Where a tool and the form call the same thing by different names."""


class StaleOffer(BadInput):
    """The estimate is too old, or from before a restart. Ask for a new one, and look at it again."""

    def __init__(self, wanted: Arguments | None) -> None:
        minutes = int(OFFER_LIFE.total_seconds()) // 60
        super().__init__(
            "offer", f"holds an estimate that is more than {minutes} minutes old, or from before a restart"
        )
        self.wanted = wanted
        """What the job was to be; None where even that cannot be read."""


@dataclass(frozen=True, slots=True)
class BackfillOffer:
    """A job that may be made, and what it is expected to bring, cost and take: what a person agrees to."""

    wanted: Arguments
    """The arguments of `create_backfill_job`, but for the estimate; nothing is left to defaults."""
    estimate: Arguments


async def make_offer(here: RequestContext, wanted: Arguments) -> BackfillOffer:
    arguments = {name: value for name, value in wanted.items() if name != "auto_resume"}
    estimate = (await here.call(ESTIMATE, arguments)).wire()
    limits = {name: estimate[name] for name in ("rate_limit_per_hour", "daily_cost_cap_cents")}
    return BackfillOffer({**wanted, **limits}, estimate)


def seal_offer(here: RequestContext, offer: BackfillOffer) -> str:
    value = {"wanted": dict(offer.wanted), "estimate": dict(offer.estimate)}
    return here.desk.seal.close(_purpose(here), value, here.now)


def open_offer(here: RequestContext, sealed: str) -> BackfillOffer:
    """The offer as it was shown to this visitor, while it holds."""
    opened = here.desk.seal.open(_purpose(here), sealed)
    wanted = None if opened is None else opened.value.get("wanted")
    if opened is None or not opened.is_good(here.now, OFFER_LIFE) or not isinstance(wanted, dict):
        raise StaleOffer(wanted if isinstance(wanted, dict) else None)
    return BackfillOffer(wanted, opened.value["estimate"])


async def require_cap_proof(here: RequestContext, offer: BackfillOffer, form: Form | None = None) -> None:
    """A job that may spend more a day than the settings say is made only with the passphrase."""
    if offer.wanted["daily_cost_cap_cents"] > usual_cap(here.app.settings.backfill):
        await require_proof(here, SensitiveChange.RAISE_CAP, form)


async def accept(here: RequestContext, offer: BackfillOffer) -> str:
    """Calling this is the owner's consent; the id of the job."""
    return (await here.call(CREATE, {**offer.wanted, "estimate": dict(offer.estimate)})).job_id


def wanted_of(form: Form, today: date) -> dict[str, Any]:
    """The arguments that a form asks for; a refusal names the field of the form."""
    names = _categories(form)
    early, late = shipped().window(names, today)
    return _without_defaults(
        {
            "connector_type": CONNECTOR_TYPE,
            "endpoint_identity": form["endpoint_identity"],
            "target_categories": names,
            "date_from": form["date_from"] or early.isoformat(),
            "date_to": form["date_to"] or late.isoformat(),
            "rate_limit_per_hour": form.number("rate_limit_per_hour") if form["rate_limit_per_hour"] else None,
            "daily_cost_cap_cents": _cents(form["daily_cost_cap"]) if form["daily_cost_cap"] else None,
            "mode": BackfillMode.BACKGROUND if form.checked("background") else BackfillMode.SELECTIVE,
            "includes": list(form.all("includes")),
            "auto_resume": form.checked("auto_resume"),
        }
    )


def form_of(wanted: Arguments) -> Form:
    """The form that asks for this, to be changed. Of a job that nobody can vouch for, what can be read."""
    cents = wanted.get("daily_cost_cap_cents")
    cap = format_dollars(from_cents(cents)).lstrip("$").replace(",", "") if isinstance(cents, int) else None
    return Form.filled(
        endpoint_identity=wanted.get("endpoint_identity"),
        target_categories=wanted.get("target_categories"),
        all_mail=None if wanted.get("target_categories") else "yes",
        date_from=wanted.get("date_from"),
        date_to=wanted.get("date_to"),
        rate_limit_per_hour=wanted.get("rate_limit_per_hour"),
        daily_cost_cap=cap,
        background="yes" if wanted.get("mode") == BackfillMode.BACKGROUND else None,
        includes=wanted.get("includes"),
        auto_resume="yes" if wanted.get("auto_resume") else None,
    )


def on_the_form(error: BadInput) -> BadInput:
    """A tool's refusal, by the name that the field has on the form; `includes[0]` is one of `includes`."""
    whole = error.field.partition("[")[0].partition(".")[0]
    return BadInput(_FIELDS.get(whole, whole), error.problem)


def _purpose(here: RequestContext) -> str:
    """Of one visitor: nobody agrees to what somebody else was shown."""
    return f"backfill for {here.visitor.caller.name}"


def _categories(form: Form) -> list[str]:
    names = list(form.all("target_categories"))
    if not names and not form.checked("all_mail"):
        raise BadInput("target_categories", "choose what to recover: one or more of these, or all mail")
    if names and form.checked("all_mail"):
        raise BadInput("target_categories", "all mail leaves no room for a category; choose one or the other")
    return names


def _cents(text: str) -> int:
    amount = parse_dollars(text, "daily_cost_cap")
    if amount % MICROS_PER_CENT or not 1 <= amount // MICROS_PER_CENT <= MOST_CENTS:
        most = format_dollars(from_cents(MOST_CENTS))
        raise BadInput("daily_cost_cap", f"{text!r} is not within $0.01 and {most}, in whole cents")
    return amount // MICROS_PER_CENT


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
