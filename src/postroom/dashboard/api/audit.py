"""`/api/audit`: who did what."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from postroom.audit import AuditFilter, Entry, list_entries
from postroom.dashboard.api import api_router
from postroom.dashboard.paging import PAGE, AfterId, Limit, Paged
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission

router = api_router("audit")

Text = Annotated[str | None, Query(max_length=200)]


@router.get("")
@permits(Permission.READ)
async def entries(
    here: Here,
    action: Text = None,
    subject_type: Text = None,
    subject_id: Text = None,
    after: AfterId = None,
    limit: Limit = PAGE,
) -> Paged[Entry]:
    """Newest first."""
    which = AuditFilter(action, subject_type, subject_id, None if after is None else str(after), limit)
    page = await here.read(lambda tx: list_entries(tx, which))
    return Paged(page.entries, page.next_before_id)
