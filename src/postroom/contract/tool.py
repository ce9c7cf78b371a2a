"""A tool as both sides know it: its name, what it takes, what it answers; and how it is called, whichever way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from postroom.domain.validation import unstorable_place


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
