"""`/api/archive`: the same as the Archive pages."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query

from postroom.accounts.troubled import TroubledMessage
from postroom.archive.certificates import Certificate, Result
from postroom.dashboard.api import api_router
from postroom.dashboard.paging import PAGE, After, Limit, Paged
from postroom.dashboard.reading.archive import (
    CertificatesWanted,
    Holdings,
    bad_page,
    certificates_page,
    known_account,
)
from postroom.dashboard.reading.archive_holdings import all_holdings
from postroom.dashboard.reading.process_figures import ProcessFigures, figures_of
from postroom.dashboard.security.permits import named_by, permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission
from postroom.telemetry import metrics

router = api_router("archive")

Mailbox = Annotated[str, Query(max_length=320, description="the account, by its address")]


@router.get("")
@permits(Permission.READ)
async def overview(here: Here) -> list[Holdings]:
    """Of each account what is proven to be in the archive, what is missing, and its files."""
    return await all_holdings(here)


@router.get("/process")
@permits(Permission.READ)
async def process(here: Here) -> ProcessFigures:
    """Calls to Gmail, their latencies, retries and splits, since this process started. No series is kept."""
    return figures_of(metrics.samples())


@router.get("/bad")
@permits(Permission.READ, named_by("account"))
async def bad(here: Here, account: Mailbox, after: After = None, limit: Limit = PAGE) -> Paged[TroubledMessage]:
    """Messages that could not be had or stored, with the reason."""
    return await here.read(lambda tx: bad_page(tx, account, after, limit))


@router.get("/certificates")
@permits(Permission.READ, named_by("account"))
async def certificates(
    here: Here,
    account: Mailbox,
    result: Result | None = None,
    message: Annotated[str | None, Query(max_length=100)] = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Paged[Certificate]:
    """Removal certificates, newest first: which bytes were on disk, where, before what was removed."""
    email = (await here.read(lambda tx: known_account(tx, account))).email
    wanted = CertificatesWanted(email, result, message, after, limit)
    return await asyncio.to_thread(certificates_page, here.app.archive.place, wanted)
