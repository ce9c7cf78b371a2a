"""Audit: who did what to which thing, with its state before and after."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from postroom.audit import AuditEntry, AuditFilter, list_entries
from postroom.audit.chain import chain_status
from postroom.dashboard.context import Here
from postroom.dashboard.forms import FilterChoice, query_of
from postroom.dashboard.paging import PAGE, After, AfterId, Limit, Paged
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.domain.roles import Permission

pages = pages_router()


@pages.get("/audit")
async def audit_page(
    here: Here,
    action: FilterChoice = "",
    subject_type: FilterChoice = "",
    subject_id: FilterChoice = "",
    after: After = None,
) -> Response:
    chosen = {"action": action.strip(), "subject_type": subject_type.strip(), "subject_id": subject_id.strip()}
    which = AuditFilter(**{name: value or None for name, value in chosen.items()}, before_id=after or None, limit=PAGE)
    page, chain = await here.read(lambda tx: (list_entries(tx, which), chain_status(tx)))
    return await here.page(
        "audit.html",
        "audit",
        entries=Paged(page.entries, page.next_before_id),
        chosen=chosen,
        filter=query_of(**chosen),
        after=after,
        chain=chain,
    )


api = api_router("audit")

Text = Annotated[str | None, Query(max_length=200)]


@api.get("")
@permits(Permission.READ)
async def entries(
    here: Here,
    action: Text = None,
    subject_type: Text = None,
    subject_id: Text = None,
    after: AfterId = None,
    limit: Limit = PAGE,
) -> Paged[AuditEntry]:
    """Newest first."""
    which = AuditFilter(action, subject_type, subject_id, None if after is None else str(after), limit)
    page = await here.read(lambda tx: list_entries(tx, which))
    return Paged(page.entries, page.next_before_id)
