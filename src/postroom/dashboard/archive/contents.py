"""What the archive holds: of each mailbox how much, year by year, and whether the source still has it; and messages,
bytes and attachments by sender, domain, time, size, label or type, each with a link to its search.

Mailboxes without a login are here too: imported mail, and mail of removed accounts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom.accounts.account import list_accounts
from postroom.app import archive_statistics
from postroom.archive.backend import ArchiveBackend
from postroom.archive.certificates import RemovalResult
from postroom.archive.messages import account_name
from postroom.archive.statistics import MOST_VALUES, StatisticsBy, search_for, shown_value
from postroom.archive.status import ShardInfo
from postroom.dashboard.context import Here, api_router, named_by, pages_router, permits
from postroom.dashboard.display import charts
from postroom.dashboard.display.charts import Track, columns_over_time
from postroom.dashboard.display.formatting import count, size
from postroom.dashboard.forms import query_of
from postroom.db import Tx
from postroom.domain.errors import PostroomError
from postroom.domain.roles import Permission


class MailboxOrigin(StrEnum):
    CONNECTED = "connected"
    REMOVED = "removed"
    """Its account was removed here; its mail stays."""
    IMPORTED = "imported"
    """It never was an account here."""


@dataclass(frozen=True, slots=True)
class YearHolding:
    year: int
    messages: int
    bytes: int
    """On disk, with the index."""

    @property
    def search(self) -> str | None:
        return search_for(StatisticsBy.YEAR, str(self.year))


@dataclass(frozen=True, slots=True)
class MailboxHolding:
    account: str
    origin: MailboxOrigin
    years: list[YearHolding]
    """Newest first."""
    removed_at_source: int
    """Messages that were removed there with a certificate: the archive may have the only copy."""

    @property
    def messages(self) -> int:
        return sum(year.messages for year in self.years)

    @property
    def bytes(self) -> int:
        return sum(year.bytes for year in self.years)


@dataclass(frozen=True, slots=True)
class UnconnectedMailbox:
    """Archived mail without a login: imported, or of an account that was removed."""

    account: str
    messages: int | None
    """As last counted; null: not counted yet."""


def unconnected_mailboxes(tx: Tx, archived: Sequence[str]) -> list[UnconnectedMailbox]:
    connected = {account_name(account.email) for account in list_accounts(tx)}
    others = [email for email in archived if account_name(email) not in connected]
    return [UnconnectedMailbox(email, _counted(tx, email)) for email in others]


def _counted(tx: Tx, email: str) -> int | None:
    found = archive_statistics.read_statistics(tx, StatisticsBy.YEAR, email, MOST_VALUES)
    return None if found.counted_at is None else sum(row.messages for row in found.rows)


def archived_accounts(place: ArchiveBackend) -> list[str]:
    """Addresses of the mailboxes that have mail in the archive. Reads files, so call it in a thread.

    An archive that cannot be read has none; the page of the archive says why.
    """
    try:
        with place.reader() as reader:
            return reader.accounts()
    except PostroomError:
        return []


def by_year(shards: Iterable[ShardInfo]) -> list[YearHolding]:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for shard in shards:
        sums[shard.year][0] += shard.messages
        sums[shard.year][1] += shard.bytes or 0
    return [YearHolding(year, *sums[year]) for year in sorted(sums, reverse=True)]


def mailbox_holding(
    account: str, origin: MailboxOrigin, shards: Sequence[ShardInfo], certificates: dict[RemovalResult, int]
) -> MailboxHolding:
    return MailboxHolding(account, origin, by_year(shards), certificates.get(RemovalResult.REMOVED, 0))


@dataclass(frozen=True, slots=True)
class YearPanel:
    """A chart of all mailboxes, and what stands behind it."""

    title: str
    chart: charts.Chart
    first: int
    last: int


_MOST_TRACKS = 5
_MOST_YEARS = 60
"""A chart is not stretched by mail that claims to be centuries old; the table has it."""


def year_panels(held: Sequence[MailboxHolding]) -> list[YearPanel]:
    """Messages and bytes by year, a colour for each of the largest mailboxes; none if there is no mail."""
    span = [year.year for each in held for year in each.years]
    if not span:
        return []
    last = max(span)
    first = max(min(span), last - _MOST_YEARS + 1)
    years = range(first, last + 1)
    messages = _tracks(held, years, lambda year: year.messages, count)
    bytes_ = _tracks(held, years, lambda year: year.bytes, size)
    return [
        YearPanel("Messages by year", charts.columns_over_time("Messages by year", messages), first, last),
        YearPanel("Size by year", charts.columns_over_time("Size by year", bytes_), first, last),
    ]


def chart_order(held: Sequence[MailboxHolding]) -> list[MailboxHolding]:
    """The mailboxes with colours of their own, largest first; all others share one."""
    return sorted(held, key=lambda each: (-each.messages, each.account))[:_MOST_TRACKS]


def _tracks(
    held: Sequence[MailboxHolding],
    years: range,
    value: Callable[[YearHolding], int],
    shown: Callable[[int], str],
) -> list[charts.Track]:
    own = chart_order(held)
    parts = [(each.account, [each]) for each in own]
    others = [each for each in held if each not in own]
    return [
        _track(label, group, years, value, shown)
        for label, group in (*parts, *([("others", others)] if others else []))
    ]


def _track(
    label: str,
    group: Sequence[MailboxHolding],
    years: range,
    value: Callable[[YearHolding], int],
    shown: Callable[[int], str],
) -> charts.Track:
    sums = Counter[int]()
    for year in (year for each in group for year in each.years):
        sums[year.year] += value(year)
    return charts.Track(label, [float(sums[year]) for year in years], shown(sums.total()))


SECTION = "analytics"
_SHOWN = 50


class StatisticsQuery(BaseModel, frozen=True):
    by: StatisticsBy = StatisticsBy.SENDER
    account: str | None = Field(None, max_length=320, description="one mailbox; default: all")
    limit: int = Field(_SHOWN, ge=1, le=MOST_VALUES, description="how many at most")


@dataclass(frozen=True, slots=True)
class AnalyticsView:
    statistics: archive_statistics.ArchiveStatistics
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
    found = archive_statistics.read_statistics(tx, wanted.by, wanted.account or None, wanted.limit)
    return AnalyticsView(
        found, archive_statistics.statistics_accounts(tx), max((row.messages for row in found.rows), default=0)
    )


def _tabs(account: str | None, by: StatisticsBy | None) -> list[tuple[str, str, bool]]:
    """`by` None: response times, which are a page of their own."""
    counted = [
        (f"/analytics?{query_of(by=each.value, account=account)}", title, each is by) for each, title in _TITLES.items()
    ]
    responses = f"/analytics/responses?{query_of(account=account)}".rstrip("?")
    return [*counted, (responses, "Response times", by is None)]


@pages.get("/analytics")
async def analytics_page(here: Here, wanted: Annotated[StatisticsQuery, Query()]) -> Response:
    view = await here.read(lambda tx: statistics_view(tx, wanted))
    tabs = _tabs(wanted.account, wanted.by)
    rows = view.statistics.rows
    chart = None
    if wanted.by in _OVER_TIME and rows:
        ordered = rows if wanted.by is StatisticsBy.HOUR else rows[::-1]
        values = [float(row.messages) for row in ordered]
        shown = f"{count(int(sum(values)))}, {ordered[0].value} to {ordered[-1].value}"
        chart = columns_over_time(f"Messages by {wanted.by}", [Track("Messages", values, shown)])
    return await here.page(
        "analytics.html",
        SECTION,
        view=view,
        wanted=wanted,
        tabs=tabs,
        title=_TITLES[wanted.by],
        chart=chart,
        shown_value=shown_value,
    )


@api.get("")
@permits(Permission.READ, named_by("account"))
async def show_statistics(
    here: Here, wanted: Annotated[StatisticsQuery, Query()]
) -> archive_statistics.ArchiveStatistics:
    """Messages, bytes and attachments in the archive, as last counted."""
    return await here.read(
        lambda tx: archive_statistics.read_statistics(tx, wanted.by, wanted.account or None, wanted.limit)
    )


class ResponsesQuery(BaseModel, frozen=True):
    account: str | None = Field(None, max_length=320, description="one mailbox; default: all")
    limit: int = Field(_SHOWN, ge=1, le=MOST_VALUES, description="how many people at most")


@pages.get("/analytics/responses")
async def responses_page(here: Here, wanted: Annotated[ResponsesQuery, Query()]) -> Response:
    def view(tx: Tx) -> tuple[archive_statistics.ResponseStatistics, list[str]]:
        return archive_statistics.read_responses(
            tx, wanted.account or None, wanted.limit
        ), archive_statistics.statistics_accounts(tx)

    found, accounts = await here.read(view)
    tabs = _tabs(wanted.account, None)
    return await here.page("responses.html", SECTION, found=found, accounts=accounts, wanted=wanted, tabs=tabs)


@api.get("/responses")
@permits(Permission.READ, named_by("account"))
async def show_responses(
    here: Here, wanted: Annotated[ResponsesQuery, Query()]
) -> archive_statistics.ResponseStatistics:
    """How long the owner takes to reply, and how long others take to reply to the owner, as last counted."""
    return await here.read(lambda tx: archive_statistics.read_responses(tx, wanted.account or None, wanted.limit))
