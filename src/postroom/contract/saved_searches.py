"""The tools for saved searches: save one under a name, list them, remove one."""

from __future__ import annotations

from pydantic import Field

from postroom.contract.fields import EndpointIdentity, Moment, Short
from postroom.contract.tool import Arguments, Reply, ToolSignature

LONGEST_NAME = 60


class SearchNameArguments(Arguments):
    name: Short = Field(max_length=LONGEST_NAME, description="the search's name; upper and lower case are the same")


class SaveSearchArguments(SearchNameArguments):
    query: str = Field(min_length=1, max_length=1_000, description="as in the search field")
    endpoint_identity: EndpointIdentity | None = Field(None, description="search only this mailbox; unset: all")


class ListSearchesArguments(Arguments):
    pass


class SavedSearchReply(Reply):
    name: str
    query: str
    mailbox: str | None
    saved_at: Moment


class SavedSearchesReply(Reply):
    searches: list[SavedSearchReply]
    """By name."""


SAVE = ToolSignature("searches.save", SaveSearchArguments, SavedSearchReply)
LIST = ToolSignature("searches.list", ListSearchesArguments, SavedSearchesReply)
REMOVE = ToolSignature("searches.remove", SearchNameArguments, SavedSearchReply)
