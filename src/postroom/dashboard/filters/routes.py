"""Filters: what decides a message's tier, and how much of a message is imported (read only); and the contacts, which
the owner adds, removes and excludes from priority."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field, StrictBool
from sqlalchemy import func, select
from starlette.responses import Response

from postroom.connectors.guidance import MAX_AGE
from postroom.contract import senders
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.paging import ListQuery, Paged, paged
from postroom.db import Tx
from postroom.db.tables.access import connectors
from postroom.db.tables.mail import contact_exports, contacts
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.domain.terms import AssignmentRule, Tier
from postroom.mail.tier_policy import Treatment
from postroom.settings import QueueSettings
from postroom.switchboard import definitions
from postroom.switchboard.contacts import Contact, contact_from_row


@dataclass(frozen=True, slots=True)
class TierRule:
    position: int
    rule: AssignmentRule
    tier: Tier
    condition: str


TIER_RULES = (
    TierRule(
        1,
        AssignmentRule.KNOWN_CONTACT,
        Tier.HIGH_PRIORITY,
        "Every sender is a known contact, the receiving server authenticated the sender's domain, and it is not list "
        "mail.",
    ),
    TierRule(
        2,
        AssignmentRule.REPLY_TO_OUTBOUND,
        Tier.HIGH_PRIORITY,
        "It replies to a message that you sent (In-Reply-To names one of your Message-IDs).",
    ),
    TierRule(
        3,
        AssignmentRule.DIRECT_CORRESPONDENCE,
        Tier.INTERACTIVE,
        "Your address is in To, there is no List-Unsubscribe header, and Precedence does not indicate a mass mailing.",
    ),
    TierRule(4, AssignmentRule.FALLBACK_DEFAULT, Tier.DEFAULT, "Everything else."),
)
"""In words; `connectors/priority.py` decides, in this order."""


_COPIED_AT = "contacts_generated_at"


class Freshness(StrEnum):
    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ConnectorCopy:
    """A connector's copy of the contacts."""

    endpoint_identity: str
    instance: str
    state: str
    generated_at: datetime | None


@dataclass(frozen=True, slots=True)
class ContactState:
    freshness: Freshness
    generated_at: datetime | None
    version: int | None
    addresses: int
    by_source: dict[str, int]
    without_priority: int
    """Contacts whose mail is not served first."""
    copies: list[ConnectorCopy]


@dataclass(frozen=True, slots=True)
class PolicyRule:
    position: int
    treatment: str
    note: str
    condition: dict[str, Any]
    enabled: bool


@dataclass(frozen=True, slots=True)
class Filters:
    tier_rules: tuple[TierRule, ...]
    guard: int
    """Jobs of a tier in a row before a waiting lower tier gets a turn."""
    guard_default: int
    contacts: ContactState
    policy_version: str
    policy_rules: list[PolicyRule]
    uses_kinds: bool
    """Whether the kind of sender may keep a message from rules 1 and 3."""


def filters(tx: Tx, settings: QueueSettings, now: datetime, *, uses_kinds: bool = True) -> Filters:
    default: int = QueueSettings.model_fields["max_consecutive_same_tier"].default
    rules = [
        PolicyRule(place + 1, Treatment(rule["tier"]).name.lower(), rule["note"], rule["condition"], rule["enabled"])
        for place, rule in enumerate(definitions.all_policy_rules(tx))
    ]
    return Filters(
        TIER_RULES,
        settings.max_consecutive_same_tier,
        default,
        contact_state(tx, now),
        definitions.rules_with_version(tx)[0],
        rules,
        uses_kinds,
    )


def contact_state(tx: Tx, now: datetime) -> ContactState:
    last = tx.execute(select(contact_exports).order_by(contact_exports.c.version.desc()).limit(1)).first()
    by_source = tx.execute(
        select(contacts.c.source, func.count()).group_by(contacts.c.source).order_by(contacts.c.source)
    )
    sources = {source: count for source, count in by_source}
    excluded = select(func.count()).select_from(contacts).where(~contacts.c.has_priority)
    return ContactState(
        _freshness(None if last is None else last.generated_at, now),
        None if last is None else last.generated_at,
        None if last is None else last.version,
        sum(sources.values()),
        sources,
        int(tx.execute(excluded).scalar_one()),
        _copies(tx),
    )


def _freshness(generated_at: datetime | None, now: datetime) -> Freshness:
    if generated_at is None:
        return Freshness.MISSING
    return Freshness.FRESH if now - generated_at <= MAX_AGE else Freshness.STALE


def _copies(tx: Tx) -> list[ConnectorCopy]:
    rows = tx.execute(
        select(connectors.c.endpoint_identity, connectors.c.instance, connectors.c.checkpoint).order_by(
            connectors.c.endpoint_identity, connectors.c.instance
        )
    )
    return [
        ConnectorCopy(row.endpoint_identity, row.instance, str(held["contacts"]), _instant(held.get(_COPIED_AT)))
        for row in rows
        if "contacts" in (held := row.checkpoint or {})
    ]


def _instant(text: object) -> datetime | None:
    """A connector may report anything."""
    try:
        return require_utc(datetime.fromisoformat(str(text)), "generated_at")
    except (ValueError, BadInput):
        return None


class ContactChange(BaseModel, extra="forbid"):
    has_priority: StrictBool


class ContactsQuery(ListQuery, frozen=True):
    text: str | None = Field(None, max_length=200, description="in the address or the name")
    has_priority: bool | None = Field(None, description="only contacts whose mail is served first, or only the others")


def contact_page(tx: Tx, wanted: ContactsQuery) -> Paged[Contact]:
    """By address."""
    query = select(contacts).order_by(contacts.c.address).limit(wanted.limit + 1)
    if wanted.after is not None:
        query = query.where(contacts.c.address > wanted.after)
    if wanted.text is not None:
        held = func.lower(contacts.c.address + " " + func.coalesce(contacts.c.name, ""))
        query = query.where(held.contains(wanted.text.lower(), autoescape=True))
    if wanted.has_priority is not None:
        query = query.where(contacts.c.has_priority == wanted.has_priority)
    return paged([contact_from_row(row) for row in tx.execute(query)], wanted.limit, lambda each: each.address)


pages = pages_router()
CONTACTS_PAGE = "/filters/contacts"


@pages.get("/filters")
async def filters_page(here: Here) -> Response:
    return await here.page("filters/filters.html", "filters", filters=await show(here))


@pages.get(CONTACTS_PAGE)
async def contacts_page(here: Here, wanted: Annotated[ContactsQuery, Query()]) -> Response:
    return await _contacts(here, wanted)


@pages.post(CONTACTS_PAGE)
async def submit_contact(here: Here) -> Response:
    form = await here.form()
    try:
        given = {"address": form["address"], "name": form["name"], "has_priority": not form.checked("excluded")}
        added = await here.call(senders.ADD_CONTACT, given)
    except BadInput as error:
        return await _contacts(here, ContactsQuery(), 422, form.refused(error))
    return await here.go(CONTACTS_PAGE, f"{added.address} is a contact.")


@pages.post("/filters/contacts/remove")
async def submit_removal(here: Here) -> Response:
    removed = await here.call(senders.REMOVE_CONTACT, {"address": (await here.form())["address"]})
    return await here.go(CONTACTS_PAGE, f"{removed.address} is no longer a contact.")


@pages.post("/filters/contacts/priority")
async def submit_priority(here: Here) -> Response:
    form = await here.form()
    given = {"address": form["address"], "has_priority": form.checked("has_priority")}
    changed = await here.call(senders.SET_CONTACT_PRIORITY, given)
    text = "is served first." if changed.has_priority else "is no longer served first."
    return await here.go(CONTACTS_PAGE, f"Mail from {changed.address} {text}")


async def _contacts(here: Here, wanted: ContactsQuery, status: int = 200, form: Form | None = None) -> Response:
    page = await contact_list(here, wanted)
    shown = {"page": page, "wanted": wanted, "form": form or Form()}
    return await here.page("filters/contacts.html", "filters", status, **shown)


api = api_router("filters")


@api.get("")
@permits(Permission.READ)
async def show(here: Here) -> Filters:
    """What decides a message's tier, and how much of it is imported."""
    settings = here.app.settings
    return await here.read(lambda tx: filters(tx, settings.queue, here.now, uses_kinds=settings.connector.use_kinds))


contacts_api = api_router("contacts")


@contacts_api.get("")
@permits(Permission.READ)
async def contact_list(here: Here, wanted: Annotated[ContactsQuery, Query()]) -> Paged[Contact]:
    """The contacts, by address."""
    return await here.read(lambda tx: contact_page(tx, wanted))


@contacts_api.post("", status_code=201)
@permits(Permission.SETTINGS, keeps_to_mailbox=True)
async def add_contact(here: Here, wanted: senders.NewContactArguments) -> senders.ContactReply:
    """Add a contact, or change the name and priority of a known one."""
    return await here.call(senders.ADD_CONTACT, wanted)


@contacts_api.patch("/{address}")
@permits(Permission.SETTINGS)
async def change_contact(here: Here, address: str, wanted: ContactChange) -> senders.ContactReply:
    """Say whether a contact's mail is served first."""
    return await here.call(senders.SET_CONTACT_PRIORITY, {"address": address, "has_priority": wanted.has_priority})


@contacts_api.delete("/{address}")
@permits(Permission.SETTINGS)
async def remove_contact(here: Here, address: str) -> senders.ContactReply:
    """Remove a contact. Neither sent mail nor an imported address book brings it back."""
    return await here.call(senders.REMOVE_CONTACT, {"address": address})
