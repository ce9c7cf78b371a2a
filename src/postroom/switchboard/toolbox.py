"""The Switchboard's tools: each with its name, who may call it, what it takes, and what it does.

A tool stands under its name and, where that has dots, under an alias with underscores: several popular MCP clients
refuse dots. Arguments are checked strictly; a refusal names the argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from postroom.domain.envelope import field_problem
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.domain.roles import Caller, Role


class Arguments(BaseModel):
    """What a tool takes: exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def described(cls) -> dict[str, Any]:
        """The JSON schema that clients are shown."""
        schema = cls.model_json_schema()
        schema.pop("title", None)
        schema.pop("description", None)
        return schema


A = TypeVar("A", bound=Arguments)
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Tool(Generic[A]):
    name: str
    role: Role
    description: str
    arguments: type[A]
    run: Callable[[A, Caller], Awaitable[Answer]]
    reads_only: bool = False
    is_bulky: bool = False
    """Takes whole messages: its request may be as large as the role's largest."""

    @property
    def alias(self) -> str:
        return self.name.replace(".", "_")

    @property
    def names(self) -> tuple[str, ...]:
        """Under which it is listed. An agent's client is the likeliest to refuse dots."""
        if self.role is Role.AGENT or self.alias == self.name:
            return (self.alias,)
        return (self.name, self.alias)

    @cached_property
    def schema(self) -> dict[str, Any]:
        return self.arguments.described()

    async def call(self, given: Mapping[str, Any], caller: Caller) -> Answer:
        try:
            arguments = self.arguments.model_validate(given)
        except ValidationError as error:
            raise field_problem(error, "arguments") from None
        except (RecursionError, OverflowError):
            raise BadInput("arguments", "are nested too deeply or hold an impossible number") from None
        _require_identity(arguments, caller)
        return await self.run(arguments, caller)


class Toolbox:
    """All tools, by role and by every name that they answer to."""

    def __init__(self, tools: Iterable[Tool[Any]]) -> None:
        self._tools: dict[str, Tool[Any]] = {}
        for tool in tools:
            for name in {tool.name, tool.alias}:
                if name in self._tools:
                    raise BadInput("tool", f"{name} stands for two tools")
                self._tools[name] = tool

    def __iter__(self) -> Iterator[Tool[Any]]:
        """Each tool once, by name."""
        return iter(sorted(set(self._tools.values()), key=lambda tool: tool.name))

    def of(self, role: Role) -> list[Tool[Any]]:
        return [tool for tool in self if tool.role is role]

    def get(self, name: str) -> Tool[Any] | None:
        return self._tools.get(name)

    def is_bulky(self, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and tool.is_bulky

    async def call(self, name: str, given: Mapping[str, Any], caller: Caller) -> Answer:
        tool = self._tools.get(name)
        if tool is None:
            raise NotFound("name", f"there is no tool {name[:100]!r}")
        if tool.role is not caller.role:
            raise NotAllowed(f"{name} is not allowed for role {caller.role}; it needs a token of role {tool.role}.")
        return await tool.call(given, caller)


def _require_identity(arguments: Arguments, caller: Caller) -> None:
    """A token made for one mailbox is good for that one only."""
    wanted = getattr(arguments, "endpoint_identity", None)
    if wanted is not None:
        require_own_mailbox(wanted, caller)


def require_own_mailbox(endpoint_identity: str, caller: Caller) -> None:
    if caller.endpoint_identity is not None and endpoint_identity != caller.endpoint_identity:
        raise NotAllowed(f"This token speaks for {caller.endpoint_identity} only.")


def tool_table(toolbox: Toolbox) -> Iterator[str]:
    """Tool by role for `docs/mcp.md`, which a test compares with this."""
    yield f"| tool | also | {' | '.join(Role)} | takes |"
    yield "|---|---|" + "---|" * (len(Role) + 1)
    for tool in sorted(toolbox, key=lambda tool: (list(Role).index(tool.role), tool.name)):
        name, *also = (f"`{name}`" for name in tool.names)
        marks = " | ".join("yes" if tool.role is role else "" for role in Role)
        required = tool.schema.get("required", [])
        taken = [f"{one}" if one in required else f"{one}?" for one in tool.schema.get("properties", {})]
        yield f"| {name} | {', '.join(also)} | {marks} | {', '.join(taken)} |"
