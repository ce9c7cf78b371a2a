"""Why a message gets its tier and its category: for headers that a visitor pastes, or for an archived message. And the
senders whom the owner put into a category."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field
from sqlalchemy import select
from starlette.responses import Response

from postroom.accounts.account import list_accounts
from postroom.connectors.priority import ContactProof, PriorityRules, contact_form, own_form, reply_targets
from postroom.contract.senders import CORRECT_CATEGORY, FORGET_CORRECTION, CategoryCorrectionReply
from postroom.dashboard.context import Here, api_router, named_by, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.message import read_headers
from postroom.db import Tx
from postroom.db.tables.mail import contacts, sent_messages
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.domain.terms import AssignmentRule, Tier
from postroom.mail.addresses import parse_addresses
from postroom.mail.categories import facts_of
from postroom.mail.categories.model import NONE
from postroom.mail.headers import Headers
from postroom.mail.sender_kinds import LEAST, kinds_of
from postroom.reading import mail
from postroom.settings import ConnectorSettings
from postroom.switchboard import definitions
from postroom.switchboard.definitions import CategoryBook, CategoryCorrection, list_corrections

pages = pages_router()
api = api_router("why")
corrections_api = api_router("categories")
WHY_PAGE = "/filters/why"
_Sender = Annotated[str, Path(max_length=320, description="an address or a domain")]


@dataclass(frozen=True, slots=True)
class KindScore:
    kind: str
    score: float
    holds: bool


@dataclass(frozen=True, slots=True)
class TierExplanation:
    """What would be decided about a message with these headers, and by what."""

    sender: str
    subject: str
    tier: Tier
    assignment_rule: AssignmentRule
    treatment: str
    """full, metadata or skip"""
    policy_rule: str | None
    """The note of the rule of the ingestion policy; null: no rule matches."""
    kinds: list[KindScore]
    signs: tuple[str, ...]
    """What the headers show; kinds are scored by them."""
    categories: tuple[str, ...]
    category_reasons: tuple[str, ...]


def explain(
    tx: Tx, config: ConnectorSettings, book: CategoryBook, headers: Headers, labels: Collection[str]
) -> TierExplanation:
    senders = [contact_form(each.address) for each in parse_addresses(*headers.get_all("From"))]
    query = select(contacts.c.address, contacts.c.has_priority)
    known = {contact_form(row.address): row.has_priority for row in tx.execute(query)}
    targets = {target.strip("<>"): target for target in reply_targets(headers)}
    column = sent_messages.c.message_id_header
    sent = {targets[each] for each in tx.execute(select(column).where(column.in_(sorted(targets)))).scalars()}
    own = frozenset(own_form(each) for each in (*(one.email for one in list_accounts(tx)), *config.own_addresses))
    rules = PriorityRules(own, ContactProof(config.contact_proof), config.believed_servers, uses_kinds=config.use_kinds)
    assigned = rules.assign(headers, {each for each, first in known.items() if first}, sent)
    verdict = definitions.policy_in_force(tx).decide(headers, labels)
    kinds = kinds_of(headers, labels)
    is_known = bool(senders) and all(each in known for each in senders)
    found = book.in_force(tx).verdict(facts_of(headers, is_known=is_known, labels=labels))
    return TierExplanation(
        sender=headers.text("From") or "",
        subject=headers.text("Subject") or "",
        tier=assigned.tier,
        assignment_rule=assigned.rule,
        treatment=verdict.treatment.name.lower(),
        policy_rule=verdict.rule,
        kinds=[KindScore(kind.value, round(score, 3), kinds.is_a(kind)) for kind, score in kinds.scores.items()],
        signs=kinds.signs,
        categories=found.categories,
        category_reasons=found.why,
    )


def read_pasted(text: str) -> Headers:
    """The headers at the top of a pasted message."""
    headers = mail.read_headers(text.replace("\r\n", "\n").lstrip("\n").encode("utf-8", "replace"))
    if "From" not in headers and "Subject" not in headers:
        raise BadInput("headers", "has neither From nor Subject; paste the headers as “Show original” has them")
    return headers


@pages.get(WHY_PAGE)
async def why_page(
    here: Here,
    account: Annotated[str, Query(max_length=320)] = "",
    key: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    found = await of_message(here, account, key) if account and key else None
    return await _page(here, found)


@pages.post(WHY_PAGE)
async def submit_headers(here: Here) -> Response:
    form = await here.form()
    try:
        found = await _explained(here, read_pasted(form["headers"]), form["labels"].split())
    except BadInput as error:
        return await _page(here, None, form.refused(error), 422)
    return await _page(here, found, form)


@pages.post("/filters/corrections")
async def submit_correction(here: Here) -> Response:
    form = await here.form()
    made = await here.call(CORRECT_CATEGORY, {"sender": form["sender"], "category": form["category"]})
    place = "no category" if made.category == NONE else made.category
    return await here.go(
        _back(form), f"Mail from {made.sender} is in {place}. Mail that is already here stays as it is."
    )


@pages.post("/filters/corrections/forget")
async def submit_forgotten(here: Here) -> Response:
    form = await here.form()
    gone = await here.call(FORGET_CORRECTION, {"sender": form["sender"]})
    return await here.go(_back(form), f"Mail from {gone.sender} is judged by its headers again.")


def _back(form: Form) -> str:
    """A page of ours; anything else leads back to the explanation."""
    wanted = form["back"]
    return wanted if wanted.startswith("/mail/") and "//" not in wanted and "\\" not in wanted else WHY_PAGE


async def _page(here: Here, found: TierExplanation | None, form: Form | None = None, status: int = 200) -> Response:
    senders = parse_addresses(found.sender) if found else ()
    return await here.page(
        "filters/why.html",
        "filters",
        status,
        found=found,
        form=form or Form(),
        least=LEAST,
        corrections=await list_all(here),
        sender=senders[0].canonical if senders else "",
        choices=[*here.app.categories.defined.names, NONE],
    )


class PastedHeaders(BaseModel, extra="forbid"):
    headers: str = Field(min_length=1, max_length=100_000, description="as they stand in the message")
    labels: list[str] = Field(default_factory=list, max_length=100, description="Gmail's labels, such as `SPAM`")


@api.post("")
@permits(Permission.READ)
async def of_headers(here: Here, wanted: PastedHeaders) -> TierExplanation:
    """Why a message with these headers gets its tier and its category."""
    return await _explained(here, read_pasted(wanted.headers), wanted.labels)


@api.get("/{account}/{key}")
@permits(Permission.READ, named_by("account"))
async def of_message(
    here: Here, account: Annotated[str, Path(max_length=320)], key: Annotated[str, Path(max_length=200)]
) -> TierExplanation:
    """Why an archived message gets its tier and its category, by the rules and contacts of now."""
    headers, labels = await read_headers(here.services.shared, account, key)
    return await _explained(here, headers, labels)


async def _explained(here: Here, headers: Headers, labels: Collection[str]) -> TierExplanation:
    config, book = here.app.settings.connector, here.app.categories
    return await here.read(lambda tx: explain(tx, config, book, headers, labels))


@corrections_api.get("/corrections")
@permits(Permission.READ)
async def list_all(here: Here) -> list[CategoryCorrection]:
    """The senders whom the owner put into a category."""
    return await here.read(list_corrections)


class CategoryWanted(BaseModel, extra="forbid"):
    category: str = Field(max_length=40, description="the name of a category, or `none`")


@corrections_api.put("/corrections/{sender}")
@permits(Permission.SETTINGS)
async def correct(here: Here, sender: _Sender, wanted: CategoryWanted) -> CategoryCorrectionReply:
    """Put mail from a sender into a category."""
    return await here.call(CORRECT_CATEGORY, {"sender": sender, "category": wanted.category})


@corrections_api.delete("/corrections/{sender}")
@permits(Permission.SETTINGS)
async def forget(here: Here, sender: _Sender) -> CategoryCorrectionReply:
    """Take back where mail from a sender was put."""
    return await here.call(FORGET_CORRECTION, {"sender": sender})
