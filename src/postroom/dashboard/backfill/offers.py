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
from postroom.dashboard.security.login import call_with_proof
from postroom.domain.errors import BadInput
from postroom.domain.money import MICROS_PER_CENT, format_dollars, from_cents, parse_dollars
from postroom.domain.terms import BackfillMode
from postroom.mail.categories import Categories
from postroom.switchboard.backfill.terms import MOST_CENTS

OFFER_LIFE = timedelta(minutes=15)
"""Mail arrives and prices change, so an older estimate is not offered for consent."""

CONNECTOR_TYPE = "gmail"
CONSENT = "consent"

Arguments = Mapping[str, Any]

_FIELDS = {"account": "endpoint_identity", "daily_cost_cap_cents": "daily_cost_cap", "mode": "background"}
"""The form's field for an argument of the tools, where the names differ."""


class StaleOffer(BadInput):
    """The estimate is too old, or from before a restart. Get a new one and review it."""

    def __init__(self, wanted: Arguments | None) -> None:
        minutes = int(OFFER_LIFE.total_seconds()) // 60
        super().__init__("offer", f"has an estimate that is more than {minutes} minutes old, or from before a restart")
        self.wanted = wanted
        """What the job was to be; None if even that cannot be read."""


@dataclass(frozen=True, slots=True)
class BackfillOffer:
    """A job to be created and its estimate: what a person agrees to."""

    wanted: Arguments
    """The arguments of `create_backfill_job` without the estimate; nothing is left to defaults."""
    estimate: Arguments


async def make_offer(here: RequestContext, wanted: Arguments) -> BackfillOffer:
    arguments = {name: value for name, value in wanted.items() if name != "auto_resume"}
    estimate = (await here.call(ESTIMATE, arguments)).wire()
    limits = {name: estimate[name] for name in ("rate_limit_per_hour", "daily_cost_cap_cents", "uses_model")}
    return BackfillOffer({**wanted, **limits}, estimate)


def seal_offer(here: RequestContext, offer: BackfillOffer) -> str:
    value = {"wanted": dict(offer.wanted), "estimate": dict(offer.estimate)}
    return here.services.signer.close(_purpose(here), value, here.now)


def open_offer(here: RequestContext, sealed: str) -> BackfillOffer:
    """The offer as it was shown to this visitor, while it is valid."""
    opened = here.services.signer.open(_purpose(here), sealed)
    wanted = None if opened is None else opened.value.get("wanted")
    if opened is None or not opened.is_good(here.now, OFFER_LIFE) or not isinstance(wanted, dict):
        raise StaleOffer(wanted if isinstance(wanted, dict) else None)
    return BackfillOffer(wanted, opened.value["estimate"])


async def accept(here: RequestContext, offer: BackfillOffer, form: Form | None = None) -> str:
    """Create the job with the owner's consent; returns its id."""
    arguments = {**offer.wanted, "estimate": dict(offer.estimate)}
    return (await call_with_proof(here, CREATE, arguments, form)).job_id


def wanted_of(form: Form, today: date, categories: Categories) -> dict[str, Any]:
    """The arguments that a form asks for; a refusal names the field of the form."""
    return arguments_of(
        {
            "endpoint_identity": form["endpoint_identity"],
            "target_categories": _categories(form),
            "date_from": form["date_from"] or None,
            "date_to": form["date_to"] or None,
            "category_from": {name: day for name in categories.selectable if (day := form[first_day_field(name)])},
            "rate_limit_per_hour": None,
            "daily_cost_cap_cents": None,
            **limits_of(form),
            "mode": BackfillMode.BACKGROUND if form.checked("background") else BackfillMode.SELECTIVE,
            "includes": list(form.all("includes")),
            "auto_resume": form.checked("auto_resume"),
            "uses_model": False if form.checked("rules_only") else None,
        },
        today,
        categories,
    )


def limits_of(form: Form) -> dict[str, int]:
    """The limits that were filled in."""
    rate, cap = form["rate_limit_per_hour"], form["daily_cost_cap"]
    given = {"rate_limit_per_hour": form.number("rate_limit_per_hour")} if rate else {}
    return given | ({"daily_cost_cap_cents": _cents(cap)} if cap else {})


def first_day_field(category: str) -> str:
    """The form's field for the first day of a category."""
    return f"from_{category}"


def arguments_of(wanted: Arguments, today: date, categories: Categories) -> dict[str, Any]:
    """The arguments of a job: without a first or last day, those that its categories have by default."""
    names = wanted["target_categories"]
    own = {name: _day(day, first_day_field(name)) for name, day in wanted["category_from"].items() if name in names}
    first = None if wanted["date_from"] is None else _day(wanted["date_from"], "date_from")
    early, later = categories.first_days(names, today, first, own)
    given = {name: value for name, value in wanted.items() if value is not None}
    return {
        "connector_type": CONNECTOR_TYPE,
        "date_to": today.isoformat(),
        **given,
        "date_from": early.isoformat(),
        "category_from": {name: day.isoformat() for name, day in later.items()},
    }


def _day(text: str, field: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadInput(field, f"{text!r} is not a day; write for example 2024-01-31") from None


def form_of(wanted: Arguments) -> Form:
    """The form filled in with these arguments; they may come from an unsigned offer, so any may be missing."""
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
        rules_only="yes" if wanted.get("uses_model") is False else None,
        **{first_day_field(name): day for name, day in (wanted.get("category_from") or {}).items()},
    )


def on_the_form(error: BadInput) -> BadInput:
    """A tool's refusal with the field's name on the form; `includes[0]` belongs to `includes`."""
    whole = error.field.partition("[")[0].partition(".")[0]
    return BadInput(_FIELDS.get(whole, whole), error.problem)


def _purpose(here: RequestContext) -> str:
    """Signed for one visitor: one visitor cannot agree to what another was shown."""
    return f"backfill for {here.visitor.caller.name}"


def _categories(form: Form) -> list[str]:
    names = list(form.all("target_categories"))
    if not names and not form.checked("all_mail"):
        raise BadInput("target_categories", "choose one or more categories, or all mail")
    if names and form.checked("all_mail"):
        raise BadInput("target_categories", "choose either categories or all mail, not both")
    return names


def _cents(text: str) -> int:
    amount = parse_dollars(text, "daily_cost_cap")
    if amount % MICROS_PER_CENT or not 1 <= amount // MICROS_PER_CENT <= MOST_CENTS:
        most = format_dollars(from_cents(MOST_CENTS))
        raise BadInput("daily_cost_cap", f"{text!r} is not between $0.01 and {most} in whole cents")
    return amount // MICROS_PER_CENT
