"""Audit: who did what to what, by name, with the state before and after."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from postroom.audit import AuditEntry, AuditFilter, list_entries
from postroom.audit.chain import chain_status
from postroom.dashboard.audit.names import action_title, audit_choices, subject_names
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.paging import ListQuery, Paged
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("audit")


class AuditQuery(ListQuery):
    action: str | None = Field(None, max_length=200)
    subject_type: str | None = Field(None, max_length=200)
    subject_id: str | None = Field(None, max_length=200)


AuditWanted = Annotated[AuditQuery, Query()]


@pages.get("/audit")
async def audit_page(here: Here, wanted: AuditWanted) -> Response:
    entries, chain = await show_entries(here, wanted), await here.read(chain_status)
    names, choices = await here.read(lambda tx: (subject_names(tx, entries.items), audit_choices(tx)))
    one = next((names[each.subject_type, each.subject_id].text for each in entries.items), None)
    return await here.page(
        "audit.html",
        "audit",
        entries=entries,
        wanted=wanted,
        chain=chain,
        names=names,
        choices=choices,
        chosen_name=one or wanted.subject_id,
        action_title=action_title,
    )


@api.get("")
@permits(Permission.READ)
async def show_entries(here: Here, wanted: AuditWanted) -> Paged[AuditEntry]:
    """Newest first."""
    start = None if wanted.after is None else parse_id(wanted.after, "after")
    which = AuditFilter(wanted.action, wanted.subject_type, wanted.subject_id, start, wanted.limit)
    page = await here.read(lambda tx: list_entries(tx, which))
    return Paged(page.entries, page.next_before_id)
