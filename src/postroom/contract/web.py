"""The tools for web sources: check them, fetch failed pages again, and recover their history in runs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from postroom.contract.fields import Id
from postroom.contract.tool import Arguments, Reply, ToolSignature

Slug = Annotated[str, Field(max_length=100)]
Limit = Annotated[int | None, Field(ge=1, le=1_000_000, description="up to the limit of the settings, the default")]
EndDay = Annotated[date | None, Field(description="unset: no limit at this end")]


class LookArguments(Arguments):
    pass


class RetryPagesArguments(Arguments):
    sources: list[Slug] | None = Field(None, max_length=1_000, description="unset: all")
    dry_run: StrictBool = Field(False, description="only list the failed pages and why")


class NewRunArguments(Arguments):
    sources: list[Slug] = Field(max_length=1_000, description="slugs of `sources.toml`")
    mode: Literal["SITEMAP", "ARCHIVE", "PAGINATION"]
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


LOOK = ToolSignature("web.look", LookArguments, LookReply)
RETRY_PAGES = ToolSignature("web.retry", RetryPagesArguments, RetriedPagesReply)
CREATE_RUN = ToolSignature("web.create_run", NewRunArguments, RunReply)
RESUME_RUN = ToolSignature("web.resume_run", RunArguments, RunReply)
CANCEL_RUN = ToolSignature("web.cancel_run", RunArguments, RunReply)
