"""Archive: what is proven to be here, what is missing, what could not be had, and the certificates of removals."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.responses import Response

from postroom.archive.certificates import Result
from postroom.dashboard import charts
from postroom.dashboard.choosing import Choice, chosen, query_of
from postroom.dashboard.pages import pages_router
from postroom.dashboard.paging import After
from postroom.dashboard.reading.archive import (
    CertificatesWanted,
    Holdings,
    bad_page,
    certificates_page,
    known_account,
)
from postroom.dashboard.reading.archive_holdings import all_holdings
from postroom.dashboard.reading.gap_map import Holding, Span
from postroom.dashboard.reading.process_figures import figures_of
from postroom.dashboard.visit import Here
from postroom.dashboard.wording import duration, percent
from postroom.telemetry import metrics

router = pages_router()

SECTION = "archive"
_GAPS_SHOWN = 20
_KINDS = list(Holding)


@router.get("/archive")
async def archive(here: Here) -> Response:
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


@router.get("/archive/bad")
async def bad(here: Here, account: Choice = "", after: After = None) -> Response:
    found = await here.read(lambda tx: bad_page(tx, account, after or None))
    return await here.page(
        "archive/bad.html", SECTION, account=account, found=found, after=after, filter=query_of(account=account)
    )


@router.get("/archive/certificates")
async def certificates(
    here: Here, account: Choice = "", result: Choice = "", message: Choice = "", after: After = None
) -> Response:
    email = (await here.read(lambda tx: known_account(tx, account))).email
    wanted = CertificatesWanted(email, chosen(Result, result, "result"), message or None, after or None)
    found = await asyncio.to_thread(certificates_page, here.app.archive.place, wanted)
    return await here.page(
        "archive/certificates.html",
        SECTION,
        wanted=wanted,
        found=found,
        results=list(Result),
        filter=query_of(account=email, result=wanted.result, message=wanted.message),
    )


def _map(held: Holdings) -> charts.Chart:
    lengths = Counter[Holding]()
    for span in held.spans:
        lengths[span.holding] += int(span.seconds)
    totals = [charts.Part(kind, lengths[kind], duration(lengths[kind])) for kind in _KINDS if lengths[kind]]
    stretches = [charts.Stretch(_KINDS.index(span.holding), span.seconds) for span in held.spans]
    return charts.band(f"What of the time of {held.account} is in the archive", stretches, totals)


def _gaps(spans: list[Span]) -> list[Span]:
    """What holds the watermark up, oldest first. What is new since the last look is no gap."""
    return [span for span in spans if span.holding is Holding.OPEN][:_GAPS_SHOWN]


def _course(held: Holdings) -> charts.Chart:
    points = [
        charts.Part(f"{part.messages} messages", part.bad / max(part.messages, 1), percent(part.bad, part.messages))
        for part in held.recent
    ]
    return charts.sparkline("Share of bad messages, the last ones at the right", points)
