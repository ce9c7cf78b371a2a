"""The tools for importing files: list imports, start one of an uploaded file, stop it, go on with it, forget it."""

from __future__ import annotations

from pydantic import Field

from postroom.contract.fields import Id, Moment
from postroom.contract.tool import Arguments, Reply, ToolSignature


class ImportsArguments(Arguments):
    limit: int = Field(20, ge=1, le=100)


class StartImportArguments(Arguments):
    upload: Id = Field(description="the id of an uploaded file")
    name: str = Field(max_length=255, description="what the file was called")
    endpoint_identity: str = Field(max_length=320, description="whose mail it is, by address")


class ImportArguments(Arguments):
    import_id: Id = Field(description="an id of the list")


class ImportReply(Reply):
    id: str
    state: str
    account: str
    format: str
    name: str
    """Of the file, as it was called; a path where a command started the import."""
    is_upload: bool
    requested_by: str
    created_at: Moment
    updated_at: Moment
    bytes_done: int
    bytes_total: int | None
    """None: not known before the end, as for a .zip."""
    found: int
    stored: int
    duplicates: int
    unreadable: int
    seconds_left: float | None
    error: str | None


class ImportsReply(Reply):
    imports: list[ImportReply]


LIST = ToolSignature("imports.list", ImportsArguments, ImportsReply)
START = ToolSignature("imports.start", StartImportArguments, ImportReply)
STOP = ToolSignature("imports.stop", ImportArguments, ImportReply)
RESUME = ToolSignature("imports.resume", ImportArguments, ImportReply)
FORGET = ToolSignature("imports.forget", ImportArguments, ImportReply)
