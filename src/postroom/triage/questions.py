"""Questions to the model and its answers as plain values, for code that does not need the model library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroom.domain.errors import Fatal, PostroomError
from postroom.domain.model_costs import TokenCounts
from postroom.domain.money import Micros


class ModelRefused(Fatal):
    """The model's provider refuses this question; asking it again will not help."""


@dataclass(frozen=True, slots=True)
class ModelTool:
    """One of the ways in which the model may answer."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    instructions: str
    content: str
    tools: tuple[ModelTool, ...]

    @property
    def text(self) -> str:
        """All that is said, as it may be kept."""
        return f"{self.instructions}\n\n{self.content}"


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


def one_line(text: str, longest: int) -> str:
    """Words of a model as they may be stored and shown: it repeats what mail tells it to, escape codes included."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:longest]


def readable(text: str) -> str:
    """The same for texts of several lines: what neither a database, a terminal nor a reader minds."""
    lines = ("".join(char for char in line.replace("\t", " ") if char.isprintable()) for line in text.splitlines())
    return "\n".join(lines).strip()
