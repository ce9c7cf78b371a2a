"""The tools for web sources: follow and leave them, check them, fetch failed pages again, and recover their history in
runs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from postroom.contract.tool import Arguments, Id, Moment, Reply, ToolSignature

Slug = Annotated[str, Field(max_length=100)]
Mode = Literal["SITEMAP", "ARCHIVE", "PAGINATION", "FEED", "PAGE"]
Every = Literal["hourly", "6h", "daily", "weekly"]
Notice = Literal["overview", "discord", "email"]
Limit = Annotated[int | None, Field(ge=1, le=1_000_000, description="up to the limit of the settings, the default")]
EndDay = Annotated[date | None, Field(description="unset: no limit at this end")]


class LookArguments(Arguments):
    pass


class ListSourcesArguments(Arguments):
    pass


class AddSourceArguments(Arguments):
    url: str = Field(max_length=2_048, description="a feed, sitemap, archive, list or page, or the home page of a site")
    mode: Mode | None = Field(None, description="unset: find out")
    slug: Slug | None = Field(None, description="unset: made from the host")
    name: str | None = Field(None, max_length=200, description="unset: its title")
    domains: list[str] = Field([], max_length=20, description="other domains that its pages are on")
    links: list[str] = Field([], max_length=20, description="RE2 patterns: only such addresses are its pages")
    notify: list[Notice] | None = Field(None, max_length=3, description="where news is reported; unset: the overview")
    watched: StrictBool = Field(True, description="check it for new pages; else only runs read it")
    every: Every = Field("daily", description="how often; daily and weekly checks are made at the sentinel's time")
    dry_run: StrictBool = Field(False, description="only say what it is and name the first pages")


class SourceArguments(Arguments):
    source: Slug


class PauseSourceArguments(Arguments):
    source: Slug
    paused: StrictBool = True


class NotifyArguments(Arguments):
    source: Slug
    notify: list[Notice] = Field(max_length=3, description="empty: nowhere")


class ScheduleSourceArguments(Arguments):
    source: Slug
    every: Every


class RetryPagesArguments(Arguments):
    sources: list[Slug] | None = Field(None, max_length=1_000, description="unset: all")
    dry_run: StrictBool = Field(False, description="only list the failed pages and why")


class NewRunArguments(Arguments):
    sources: list[Slug] = Field(max_length=1_000, description="their slugs")
    mode: Mode
    max_urls: Limit = None
    max_urls_per_source: Limit = None
    date_from: EndDay = None
    date_to: EndDay = Field(None, description="included; unset: no limit at this end")
    dry_run: StrictBool = Field(False, description="check and count only, queue nothing")


class RunArguments(Arguments):
    run: Id


class LookReply(Reply):
    job: str
    """The check that waits or runs."""


class FollowedSource(Reply):
    slug: str
    name: str
    domains: list[str]
    modes: list[str]
    urls: list[str]
    origin: str
    """`file`, or `added`."""
    paused: bool
    notify: list[str]
    every: str
    next_check: Moment | None = None
    """Null if it is not checked by itself, or is not followed yet."""


class SourcesReply(Reply):
    sources: list[FollowedSource]


class AddedSourceReply(Reply):
    source: FollowedSource
    findings: list[str]
    """How it was recognised."""
    pages: list[str] = Field([], description="the first that it lists; empty where only a run or a check can say")


class SourceReply(Reply):
    source: str


class RetriedPage(Reply):
    id: str
    source_slug: str
    url: str
    error: str | None
    method: str


class RetriedPagesReply(Reply):
    pages: list[RetriedPage]


class RunReply(Reply):
    run: str
    status: str


LIST_SOURCES = ToolSignature("web.list_sources", ListSourcesArguments, SourcesReply)
ADD_SOURCE = ToolSignature("web.add_source", AddSourceArguments, AddedSourceReply)
REMOVE_SOURCE = ToolSignature("web.remove_source", SourceArguments, SourceReply)
PAUSE_SOURCE = ToolSignature("web.pause_source", PauseSourceArguments, SourceReply)
SET_NOTIFY = ToolSignature("web.set_notify", NotifyArguments, SourceReply)
SET_SCHEDULE = ToolSignature("web.set_schedule", ScheduleSourceArguments, SourceReply)
LOOK = ToolSignature("web.look", LookArguments, LookReply)
RETRY_PAGES = ToolSignature("web.retry", RetryPagesArguments, RetriedPagesReply)
CREATE_RUN = ToolSignature("web.create_run", NewRunArguments, RunReply)
RESUME_RUN = ToolSignature("web.resume_run", RunArguments, RunReply)
CANCEL_RUN = ToolSignature("web.cancel_run", RunArguments, RunReply)
SOURCES_FOR_AGENT = ToolSignature("list_web_sources", ListSourcesArguments, SourcesReply)
