"""Pages and API of the archive: what is proven to be there, what is missing, bad messages, removal certificates."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from postroom.accounts.troubled import TroubledMessage
from postroom.archive.certificates import Certificate, RemovalResult
from postroom.dashboard.archive.queries import (
    ArchiveHoldings,
    CertificatesWanted,
    Coverage,
    CoverageSpan,
    ProcessFigures,
    all_holdings,
    bad_page,
    certificates_page,
    figures_of,
    known_account,
)
from postroom.dashboard.context import Here
from postroom.dashboard.display import charts
from postroom.dashboard.display.formatting import duration, percent
from postroom.dashboard.forms import FilterChoice, chosen, query_of
from postroom.dashboard.paging import PAGE, After, Limit, Paged
from postroom.dashboard.routing import api_router, named_by, pages_router, permits
from postroom.domain.roles import Permission
from postroom.telemetry import metrics

pages = pages_router()

SECTION = "archive"
_GAPS_SHOWN = 20
_KINDS = list(Coverage)


@pages.get("/archive")
async def archive_page(here: Here) -> Response:
    held = await all_holdings(here)
    return await here.page(
        "archive/overview.html",
        SECTION,
        held=held,
        maps={each.account: _map(each) for each in held},
        gaps={each.account: _gaps(each.spans) for each in held},
        courses={each.account: _course(each) for each in held if each.recent},
        figures=figures_of(metrics.samples()),
        percent=percent,
    )


@pages.get("/archive/bad")
async def bad_messages_page(here: Here, account: FilterChoice = "", after: After = None) -> Response:
    found = await here.read(lambda tx: bad_page(tx, account, after or None))
    return await here.page(
        "archive/bad.html", SECTION, account=account, found=found, after=after, filter=query_of(account=account)
    )


@pages.get("/archive/certificates")
async def certificate_list_page(
    here: Here, account: FilterChoice = "", result: FilterChoice = "", message: FilterChoice = "", after: After = None
) -> Response:
    email = (await here.read(lambda tx: known_account(tx, account))).email
    wanted = CertificatesWanted(email, chosen(RemovalResult, result, "result"), message or None, after or None)
    found = await asyncio.to_thread(certificates_page, here.app.archive.place, wanted)
    return await here.page(
        "archive/certificates.html",
        SECTION,
        wanted=wanted,
        found=found,
        results=list(RemovalResult),
        filter=query_of(account=email, result=wanted.result, message=wanted.message),
    )


def _map(held: ArchiveHoldings) -> charts.Chart:
    lengths = Counter[Coverage]()
    for span in held.spans:
        lengths[span.holding] += int(span.seconds)
    totals = [charts.ChartPart(kind, lengths[kind], duration(lengths[kind])) for kind in _KINDS if lengths[kind]]
    stretches = [charts.BandSegment(_KINDS.index(span.holding), span.seconds) for span in held.spans]
    return charts.band(f"What of the time of {held.account} is in the archive", stretches, totals)


def _gaps(spans: list[CoverageSpan]) -> list[CoverageSpan]:
    """What holds the watermark up, oldest first. What is new since the last look is no gap."""
    return [span for span in spans if span.holding is Coverage.OPEN][:_GAPS_SHOWN]


def _course(held: ArchiveHoldings) -> charts.Chart:
    points = [
        charts.ChartPart(
            f"{part.messages} messages", part.bad / max(part.messages, 1), percent(part.bad, part.messages)
        )
        for part in held.recent
    ]
    return charts.sparkline("Share of bad messages, the last ones at the right", points)


api = api_router("archive")

Mailbox = Annotated[str, Query(max_length=320, description="the account, by its address")]


@api.get("")
@permits(Permission.READ)
async def overview(here: Here) -> list[ArchiveHoldings]:
    """Of each account what is proven to be in the archive, what is missing, and its files."""
    return await all_holdings(here)


@api.get("/process")
@permits(Permission.READ)
async def process(here: Here) -> ProcessFigures:
    """Calls to Gmail, their latencies, retries and splits, since this process started. No series is kept."""
    return figures_of(metrics.samples())


@api.get("/bad")
@permits(Permission.READ, named_by("account"))
async def bad(here: Here, account: Mailbox, after: After = None, limit: Limit = PAGE) -> Paged[TroubledMessage]:
    """Messages that could not be had or stored, with the reason."""
    return await here.read(lambda tx: bad_page(tx, account, after, limit))


@api.get("/certificates")
@permits(Permission.READ, named_by("account"))
async def certificates(
    here: Here,
    account: Mailbox,
    result: RemovalResult | None = None,
    message: Annotated[str | None, Query(max_length=100)] = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Paged[Certificate]:
    """Removal certificates, newest first: which bytes were on disk, where, before what was removed."""
    email = (await here.read(lambda tx: known_account(tx, account))).email
    wanted = CertificatesWanted(email, result, message, after, limit)
    return await asyncio.to_thread(certificates_page, here.app.archive.place, wanted)
