"""The tool with which an agent asks for mail that is not here yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from pydantic import Field

from postroom.domain.errors import Retryable
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.toolbox import Answer, Arguments, Tool

MOST_RESULTS = 50


class OnDemand(Protocol):
    async def search_and_ingest(self, query: str, max_results: int, caller: Caller) -> Mapping[str, Any]: ...


class SearchAndIngestArguments(Arguments):
    query: str = Field(
        min_length=1, max_length=1_000, strict=True, description="what to look for, as in Gmail's search"
    )
    max_results: int = Field(MOST_RESULTS, ge=1, le=MOST_RESULTS, strict=True)


class OnDemandTools:
    def __init__(self, on_demand: OnDemand | None) -> None:
        self._on_demand = on_demand

    def tools(self) -> Iterator[Tool[Any]]:
        yield Tool(
            "email_search_and_ingest",
            Role.AGENT,
            Permission.FETCH,
            "Find mail that answers a question, in the archive first and then in the mailbox itself, and take it in "
            f"so that it can be read. At most {MOST_RESULTS} messages; may take half a minute.",
            SearchAndIngestArguments,
            self.search_and_ingest,
            keeps_to_mailbox=True,
        )

    async def search_and_ingest(self, given: SearchAndIngestArguments, caller: Caller) -> Answer:
        if self._on_demand is None:
            raise Retryable(
                "Nothing here searches the mailbox: no worker with an account is set up. Search the archive."
            )
        return await self._on_demand.search_and_ingest(given.query, given.max_results, caller)
