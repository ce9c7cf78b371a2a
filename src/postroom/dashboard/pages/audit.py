"""Audit: who did what to which thing, and how it stood before and after."""

from __future__ import annotations

from starlette.responses import Response

from postroom.audit import AuditFilter, list_entries
from postroom.audit.chain import chain_status
from postroom.dashboard.choosing import Choice, query_of
from postroom.dashboard.pages import pages_router
from postroom.dashboard.paging import PAGE, After, Paged
from postroom.dashboard.visit import Here

router = pages_router()


@router.get("/audit")
async def audit(
    here: Here, action: Choice = "", subject_type: Choice = "", subject_id: Choice = "", after: After = None
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
