"""What is in the archive: messages, bytes and attachments by sender, domain, time, size, label or type, each with a
link to its search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom.app.archive_statistics import ArchiveStatistics, read_statistics, statistics_accounts
from postroom.archive.statistics import MOST_VALUES, StatisticsBy
from postroom.dashboard.context import Here, api_router, named_by, pages_router, permits
from postroom.dashboard.display.charts import Track, columns_over_time
from postroom.dashboard.display.formatting import count
from postroom.dashboard.forms import query_of
from postroom.db import Tx
from postroom.domain.roles import Permission

SECTION = "analytics"
_SHOWN = 50


class StatisticsQuery(BaseModel, frozen=True):
    by: StatisticsBy = StatisticsBy.SENDER
    account: str | None = Field(None, max_length=320, description="one mailbox; default: all")
    limit: int = Field(_SHOWN, ge=1, le=MOST_VALUES, description="how many at most")


@dataclass(frozen=True, slots=True)
class AnalyticsView:
    statistics: ArchiveStatistics
    accounts: list[str]
    largest: int
    """The most messages of a row."""


_TITLES = {
    StatisticsBy.SENDER: "Sender",
    StatisticsBy.DOMAIN: "Domain",
    StatisticsBy.YEAR: "Year",
    StatisticsBy.MONTH: "Month",
    StatisticsBy.HOUR: "Hour (UTC)",
    StatisticsBy.SIZE: "Size",
    StatisticsBy.LABEL: "Label",
    StatisticsBy.TYPE: "Type of attachment",
}
_OVER_TIME = (StatisticsBy.YEAR, StatisticsBy.MONTH, StatisticsBy.HOUR)
pages = pages_router()
api = api_router("analytics")


def statistics_view(tx: Tx, wanted: StatisticsQuery) -> AnalyticsView:
    found = read_statistics(tx, wanted.by, wanted.account or None, wanted.limit)
    return AnalyticsView(found, statistics_accounts(tx), max((row.messages for row in found.rows), default=0))


@pages.get("/analytics")
async def analytics_page(here: Here, wanted: Annotated[StatisticsQuery, Query()]) -> Response:
    view = await here.read(lambda tx: statistics_view(tx, wanted))
    tabs = [
        (f"/analytics?{query_of(by=by.value, account=wanted.account)}", title, by is wanted.by)
        for by, title in _TITLES.items()
    ]
    rows = view.statistics.rows
    chart = None
    if wanted.by in _OVER_TIME and rows:
        ordered = rows if wanted.by is StatisticsBy.HOUR else rows[::-1]
        values = [float(row.messages) for row in ordered]
        shown = f"{count(int(sum(values)))}, {ordered[0].value} to {ordered[-1].value}"
        chart = columns_over_time(f"Messages by {wanted.by}", [Track("Messages", values, shown)])
    return await here.page(
        "analytics.html", SECTION, view=view, wanted=wanted, tabs=tabs, title=_TITLES[wanted.by], chart=chart
    )


@api.get("")
@permits(Permission.READ, named_by("account"))
async def show_statistics(here: Here, wanted: Annotated[StatisticsQuery, Query()]) -> ArchiveStatistics:
    """Messages, bytes and attachments in the archive, as last counted."""
    return await here.read(lambda tx: read_statistics(tx, wanted.by, wanted.account or None, wanted.limit))
