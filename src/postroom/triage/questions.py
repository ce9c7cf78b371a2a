"""Questions to the model, its answers as plain values, and the budget it is asked within; for code that does not need
the model library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from postroom.db import Tx
from postroom.domain.errors import Fatal, PostroomError
from postroom.domain.model_costs import TokenCounts
from postroom.domain.money import Denied, Micros, NewCall, Reserved


class ModelRefused(Fatal):
    """The model's provider refuses this question; asking it again will not help."""


@dataclass(frozen=True)
class ModelTool:
    """One of the ways in which the model may answer."""

    name: str
    description: str
    schema: dict[str, Any]

    @cached_property
    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    instructions: str
    content: str
    tools: tuple[ModelTool, ...]

    @property
    def text(self) -> str:
        """All that is said, as it may be kept."""
        return f"{self.instructions}\n\n{self.content}"

    @property
    def size(self) -> int:
        """The bytes of prompt and tools, which are never fewer than their tokens."""
        tools = f"[{', '.join(tool.as_json for tool in self.tools)}]"
        return sum(len(part.encode()) for part in (self.instructions, self.content, tools))


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """As the model wrote them, JSON or not."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    calls: tuple[ToolCall, ...]
    text: str
    model: str
    used: TokenCounts
    cost: Micros | None
    """None: the provider does not report usage. Such an answer is not free; it counts at its highest cost."""
    latency_ms: int
    is_cut: bool
    """The limit of output tokens ended it."""
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call that brought no answer. It may have been paid for if the provider had begun to work on it."""

    error: PostroomError
    may_have_cost: bool
    latency_ms: int


class CallBudget(Protocol):
    """The money of model calls: reserved before each, settled after it."""

    def reserve(self, tx: Tx, call: NewCall) -> Reserved | Denied: ...

    def hold(self, tx: Tx, call: NewCall, reason: str) -> Denied:
        """Let mail of a backfill job wait for a model that cannot be asked."""

    def settle(self, tx: Tx, call_id: str, cost: Micros | None) -> None:
        """`cost` is None where it is not known; then the call counts at its most."""

    def decided(self, tx: Tx, message_id: str, job_id: str | None) -> None:
        """The message waits for nothing any more."""

    def uses_model(self, tx: Tx, job_id: str) -> bool:
        """Whether a backfill job may ask the model at all."""


def one_line(text: str, longest: int) -> str:
    """Words of a model as they may be stored and shown: it repeats what mail tells it to, escape codes included."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:longest]


def readable(text: str) -> str:
    """The same for texts of several lines: what neither a database, a terminal nor a reader minds."""
    lines = ("".join(char for char in line.replace("\t", " ") if char.isprintable()) for line in text.splitlines())
    return "\n".join(lines).strip()
