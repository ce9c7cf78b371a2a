"""What the tools of an agent take: search, read, list, and fetch more mail on demand."""

from __future__ import annotations

from pydantic import Field

from postroom.contract.fields import Arguments, Cursor, Short
from postroom.domain.jobs import JobState
from postroom.domain.limits import MOST_RESULTS


class SearchArguments(Arguments):
    query: str = Field(
        max_length=1_000,
        strict=True,
        description="as in Gmail: words, from:, to:, subject:, after:2026/01/31, has:attachment, OR, -; empty: all",
    )
    limit: int = Field(20, ge=1, le=100, strict=True)
    after: Cursor | None = Field(None, description="the `next` of the page before")


class ReadArguments(Arguments):
    id: Short = Field(description="a message's `key` from search_archive, or its Message-ID in angle brackets")


class JobsArguments(Arguments):
    state: JobState | None = None
    limit: int = Field(50, ge=1, le=200, strict=True)


class DecisionsArguments(Arguments):
    needs_review: bool | None = Field(None, strict=True)
    limit: int = Field(50, ge=1, le=200, strict=True)


class SearchAndIngestArguments(Arguments):
    query: str = Field(
        min_length=1, max_length=1_000, strict=True, description="what to look for, as in Gmail's search"
    )
    max_results: int = Field(MOST_RESULTS, ge=1, le=MOST_RESULTS, strict=True)
