"""A tool as both sides know it: its name, what it takes, what it answers, and how it is called, whichever way; and
the types that the arguments and replies of several tools share, each with its bounds.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from postroom.domain.envelope import Identity, Name
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.domain.validation import unstorable_place

MOST_IDS = 500
LARGEST_OBJECT = 65_536
_DEEPEST = 20


def _written_date(value: object) -> object:
    if isinstance(value, str) and len(value) == 10:
        return value
    if isinstance(value, date):
        return value
    raise PydanticCustomError("day", "must be a day such as 2026-01-31")


def _sane_year(value: date) -> date:
    if not 1970 <= value.year <= 9000:
        raise PydanticCustomError("day", "lies outside of the years 1970 to 9000")
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise PydanticCustomError("printable", "holds characters that cannot be printed")
    return value


def _writable(value: str) -> str:
    """Labels may have joined emoji and marks of direction, which are not printable but harmless."""
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise PydanticCustomError("writable", "holds control characters")
    return value


def _holdable(value: dict[str, Any]) -> dict[str, Any]:
    """JSON that is neither too large nor nested too deeply."""
    _require_shallow(value, _DEEPEST)
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise PydanticCustomError("json", "holds a value that JSON has no form for") from None
    if size > LARGEST_OBJECT:
        raise PydanticCustomError("json", f"is too large: more than {LARGEST_OBJECT:,} bytes")
    return value


def _require_shallow(value: object, levels: int) -> None:
    if not isinstance(value, dict | list):
        return
    if not levels:
        raise PydanticCustomError("json", f"is nested more than {_DEEPEST} levels deep")
    for each in (*value, *value.values()) if isinstance(value, dict) else value:
        _require_shallow(each, levels - 1)


def _raw(value: object) -> object:
    """Bytes as they are, or base64 that came as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise PydanticCustomError("base64", "is not base64") from None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


RawBytes = Annotated[
    bytes,
    BeforeValidator(_raw),
    PlainSerializer(_base64, when_used="json"),
    WithJsonSchema({"type": "string"}),
    Field(strict=True, repr=False),
]
"""Bytes within a process, base64 between processes."""


def _canonical(value: object) -> str:
    try:
        return parse_id(str(value), "id")
    except BadInput as error:
        raise PydanticCustomError("id", "{problem}", {"problem": error.problem}) from None


Id = Annotated[str, BeforeValidator(_canonical), WithJsonSchema({"type": "string", "format": "uuid"})]
"""An id in its canonical form."""
Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, when_used="json")]
"""A time in a reply."""
Day = Annotated[date, BeforeValidator(_written_date, json_schema_input_type=str), AfterValidator(_sane_year)]
GmailId = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9A-Za-z_-]{1,64}$")]
GmailIds = Annotated[list[GmailId], Field(max_length=MOST_IDS)]
Label = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=250), AfterValidator(_writable)]
Labels = Annotated[list[Label], Field(max_length=1_000)]
Short = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200), AfterValidator(_printable)]
MessageId = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=998), AfterValidator(_printable)]
HeaderName = Annotated[str, StringConstraints(strict=True, pattern=r"^[!-9;-~]{1,100}$")]
HistoryId = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9]{1,64}$")]
Cursor = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200), AfterValidator(_printable)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_holdable)]
ConnectorType = Name
EndpointIdentity = Annotated[Identity, Field(description="the mailbox, by its address")]


class Wire(BaseModel):
    """What travels between a caller and a tool."""

    def wire(self) -> dict[str, Any]:
        """As JSON. A field that was never set is left out; one that was set to None is null."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Arguments(Wire):
    """What a tool takes: exactly these fields, and no text that a database cannot hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="after")
    @classmethod
    def _storable(cls, value: object) -> object:
        if (place := unstorable_place(value)) is not None:
            context = {"below": ".".join(place)} if place else None
            raise PydanticCustomError("storable", "holds a NUL character or half of a character", context)
        return value

    @classmethod
    def described(cls) -> dict[str, Any]:
        """The JSON schema that clients are shown."""
        schema = cls.model_json_schema()
        schema.pop("title", None)
        schema.pop("description", None)
        return schema


class Reply(Wire):
    """What a tool answers, or a part of it. Clients ignore what a newer Switchboard adds."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, from_attributes=True)


class ConnectorReply(Reply):
    backfill_enabled: bool | None = None
    """The kill switch: in every reply to a connector, so that it learns of a change at its next call."""


A = TypeVar("A", bound=Arguments)
R = TypeVar("R", bound=Reply)


@dataclass(frozen=True, slots=True)
class ToolSignature(Generic[A, R]):
    name: str
    arguments: type[A]
    reply: type[R]


class Tools(Protocol):
    """Calls tools on behalf of one caller: in this process, or over MCP."""

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        """What the tool answers. A refusal is raised as one of our errors."""
