"""Audit: who did what to what, with the state before and after."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from postroom.audit import AuditEntry, AuditFilter, list_entries
from postroom.audit.chain import chain_status
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
    return await here.page("audit.html", "audit", entries=entries, wanted=wanted, chain=chain)


@api.get("")
@permits(Permission.READ)
async def show_entries(here: Here, wanted: AuditWanted) -> Paged[AuditEntry]:
    """Newest first."""
    start = None if wanted.after is None else parse_id(wanted.after, "after")
    which = AuditFilter(wanted.action, wanted.subject_type, wanted.subject_id, start, wanted.limit)
    page = await here.read(lambda tx: list_entries(tx, which))
    return Paged(page.entries, page.next_before_id)
