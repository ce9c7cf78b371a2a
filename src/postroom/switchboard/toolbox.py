"""The Switchboard's tools: each with its name, who may call it, what it takes, and what it does.

Whether a caller may use a tool is decided here and nowhere else: by its role, by the permission that the tool names,
and, for a caller that is bound to one mailbox, by the mailbox that the call is about.

A tool stands under its name and, where that has dots, under an alias with underscores: several popular MCP clients
refuse dots. Arguments are checked strictly; a refusal names the argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

from pydantic import ValidationError

from postroom.contract.tool import A, Arguments, R, Reply, ToolSignature
from postroom.domain.envelope import field_problem
from postroom.domain.errors import BadInput, Fatal, NotAllowed, NotFound, PostroomError
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.request_limits import AT_ONCE, RequestSlots
from postroom.telemetry import logs

log = logs.get(__name__)


@dataclass(frozen=True)
class Tool(Generic[A, R]):
    signature: ToolSignature[A, R]
    role: Role
    permission: Permission
    description: str
    run: Callable[[Caller, A], Awaitable[Reply]]
    """Returns the reply of its signature; only `ingest` has two forms."""
    reads_only: bool = False
    is_bulky: bool = False
    """Takes whole messages: its request may be as large as the role's largest."""
    keeps_to_mailbox: bool = False
    """It takes no `endpoint_identity`, and itself keeps to the mailbox that its caller is bound to."""

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def arguments(self) -> type[A]:
        return self.signature.arguments

    @property
    def alias(self) -> str:
        return self.name.replace(".", "_")

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it is listed. Clients of agents are the likeliest to refuse dots."""
        if self.role is Role.AGENT or self.alias == self.name:
            return (self.alias,)
        return (self.name, self.alias)

    @cached_property
    def schema(self) -> dict[str, Any]:
        return self.arguments.described()

    @property
    def names_mailbox(self) -> bool:
        return "endpoint_identity" in self.arguments.model_fields

    def refusal(self, caller: Caller) -> str | None:
        """Why this caller may not use it, whatever the arguments; None if it may."""
        if self.role is not caller.role:
            return f"{self.name} is not allowed for role {caller.role}; it needs a token of role {self.role}."
        if not caller.may(self.permission):
            return f"{self.name} needs a token with the permission `{self.permission}`; this one lacks it."
        if caller.endpoint_identity is not None and not (self.names_mailbox or self.keeps_to_mailbox):
            return f"{self.name} concerns every mailbox; this token is for {caller.endpoint_identity} only."
        return None

    async def call(self, caller: Caller, given: Arguments | Mapping[str, Any]) -> Reply:
        try:
            arguments = self.arguments.model_validate(given)
        except ValidationError as error:
            raise field_problem(error, "arguments") from None
        except (RecursionError, OverflowError):
            raise BadInput("arguments", "are nested too deeply or hold an impossible number") from None
        return await self.run(caller, _kept_to_mailbox(arguments, caller))


class Toolbox:
    """All tools, by role and by every name that they answer to."""

    def __init__(self, tools: Iterable[Tool[Any, Any]]) -> None:
        self.slots = RequestSlots()
        """For calls within this process; requests over HTTP are limited before they are read."""
        self._tools: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            for name in {tool.name, tool.alias}:
                if name in self._tools:
                    raise BadInput("tool", f"{name} stands for two tools")
                self._tools[name] = tool

    def __iter__(self) -> Iterator[Tool[Any, Any]]:
        """Each tool once, by name."""
        return iter(sorted(set(self._tools.values()), key=lambda tool: tool.name))

    def of(self, role: Role) -> list[Tool[Any, Any]]:
        return [tool for tool in self if tool.role is role]

    def open_to(self, caller: Caller) -> list[Tool[Any, Any]]:
        """Those that this caller may use."""
        return [tool for tool in self if tool.refusal(caller) is None]

    def get(self, name: str) -> Tool[Any, Any] | None:
        return self._tools.get(name)

    def is_bulky(self, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and tool.is_bulky

    async def call(self, caller: Caller, name: str, given: Arguments | Mapping[str, Any]) -> Reply:
        """The one way to every tool, for all transports. Raises our errors and no others."""
        tool = self._tools.get(name)
        if tool is None:
            raise NotFound("name", f"there is no tool {name[:100]!r}")
        if (refusal := tool.refusal(caller)) is not None:
            raise NotAllowed(refusal)
        try:
            return await tool.call(caller, given)
        except PostroomError:
            raise
        except Exception:
            log.exception("tool.failed", tool=name)
            raise Fatal("The Switchboard failed to do this; its log says why.") from None


class Direct:
    """Tools called in this process on behalf of one caller, a few at once."""

    def __init__(self, toolbox: Toolbox, caller: Caller) -> None:
        self._toolbox = toolbox
        self._caller = caller

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        async with self._toolbox.slots.taken(str(self._caller), AT_ONCE[self._caller.role]):
            reply = await self._toolbox.call(self._caller, tool.name, arguments)
        if not isinstance(reply, tool.reply):
            raise Fatal(f"{tool.name} answered with {type(reply).__name__}, not with {tool.reply.__name__}.")
        return reply


def _kept_to_mailbox(arguments: A, caller: Caller) -> A:
    """A bound token is good for its mailbox only; a call that names no mailbox means that one."""
    mine = caller.endpoint_identity
    if mine is None or "endpoint_identity" not in type(arguments).model_fields:
        return arguments
    wanted: str | None = getattr(arguments, "endpoint_identity", None)
    if wanted is None:
        return arguments.model_copy(update={"endpoint_identity": mine})
    require_own_mailbox(wanted, caller)
    return arguments


def require_own_mailbox(endpoint_identity: str, caller: Caller) -> None:
    if caller.endpoint_identity is not None and endpoint_identity != caller.endpoint_identity:
        raise NotAllowed(f"This token speaks for {caller.endpoint_identity} only.")
