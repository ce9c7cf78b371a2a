"""The digest of a chosen day or week: what came, what was done and by whom, what waits, what was spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field, field_validator
from starlette.responses import Response

from postroom.accounts.account import AccountStatus, list_accounts
from postroom.app.digest import content
from postroom.app.owner_tools.counting_tools import digest_reply
from postroom.archive.statistics import StatisticsBy, search_for
from postroom.contract.agent import DigestReply
from postroom.contract.tool import Day
from postroom.dashboard.context import Here, RequestContext, api_router, named_by, pages_router, permits
from postroom.dashboard.forms import query_of
from postroom.db import Tx
from postroom.domain.ids import normal_email
from postroom.domain.roles import Permission

SECTION = "digest"
pages = pages_router()
api = api_router("digest")


class DigestQuery(BaseModel, frozen=True):
    period: content.DigestKind = content.DigestKind.DAY
    day: Day | None = Field(None, description="the day, or a day of the week; default: today")
    account: str | None = Field(None, max_length=320, description="one mailbox; default: all")

    @field_validator("day", "account", mode="before")
    @classmethod
    def _chosen(cls, value: object) -> object:
        """An empty field of a form is no choice."""
        return value or None


@dataclass(frozen=True, slots=True)
class DigestPage:
    counts: content.DigestCounts
    accounts: list[str]
    sends_from: str | None
    """The mailbox that a digest by e-mail is sent from and to; None if there is none."""


@pages.get("/digest")
async def digest_page(here: Here, wanted: Annotated[DigestQuery, Query()]) -> Response:
    period = _period(here, wanted)
    view = await here.read(lambda tx: _view(tx, period, wanted.account))

    def address(of: content.DigestPeriod) -> str:
        return f"/digest?{query_of(period=of.kind, day=of.first, account=wanted.account)}"

    current = content.DigestPeriod.current(wanted.period, here.now, period.zone)
    kinds = [content.DigestPeriod.holding(kind, period.first, period.zone) for kind in content.DigestKind]
    return await here.page(
        "digest.html",
        SECTION,
        view=view,
        counts=view.counts,
        period=period,
        wanted=wanted,
        tabs=[(address(each), each.kind.title(), each.kind is period.kind) for each in kinds],
        earlier=address(period.before()),
        later=None if period.first >= current.first else address(period.after()),
        is_over=period.first < current.first,
        settings=here.app.settings.digest,
        tier_names=content.TIER_NAMES,
        done=[
            (content.ORIGIN_NAMES[origin], [(content.what_was_done(each), each.count) for each in mine])
            for origin, mine in content.by_origin(view.counts.done).items()
        ],
        categories=[
            content.NamedCount(content.category_name(each.name), each.count) for each in view.counts.categories
        ],
        senders=[(each, _search(period, each.name)) for each in view.counts.senders],
    )


@api.get("")
@permits(Permission.READ, named_by("account"))
async def show_digest(here: Here, wanted: Annotated[DigestQuery, Query()]) -> DigestReply:
    """What came, what was done, what waits and what was spent in a day or a week."""
    period = _period(here, wanted)
    return digest_reply((await here.read(lambda tx: _view(tx, period, wanted.account))).counts)


def _period(here: RequestContext, wanted: DigestQuery) -> content.DigestPeriod:
    zone = content.zone_of(here.app.settings)
    if wanted.day is None:
        return content.DigestPeriod.current(wanted.period, here.now, zone)
    return content.DigestPeriod.holding(wanted.period, wanted.day, zone)


def _view(tx: Tx, period: content.DigestPeriod, account: str | None) -> DigestPage:
    mailbox = None if account is None else normal_email(account, "account")
    known = list_accounts(tx)
    active = next((each.email for each in known if each.status is AccountStatus.ACTIVE), None)
    return DigestPage(content.count_digest(tx, period, mailbox), [each.email for each in known], active)


def _search(period: content.DigestPeriod, sender: str) -> str | None:
    """Finds this sender's mail of these days."""
    found = search_for(StatisticsBy.SENDER, sender)
    return None if found is None else f"{found} after:{period.first:%Y/%m/%d} before:{period.after().first:%Y/%m/%d}"
