"""What a test may tell the stand-in to answer, and what to let go wrong."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from postroom.mail.patterns import LONGEST_TEXT, Pattern, any_of

FaultKind = Literal[
    "error",
    "slow",
    "hang",
    "drop",
    "truncate",
    "malformed_json",
    "malformed_tool_call",
    "unknown_tool",
    "two_calls",
    "text",
    "empty",
]


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Told):
    """An answer word for word: a call of a tool, or a text."""

    tool: str | None = Field(None, description="the tool to call; unset with `arguments`: the first that was offered")
    arguments: dict[str, Any] | str | None = Field(None, description="a text goes out as it is, JSON or not")
    text: str | None = None
    input_tokens: int | None = Field(None, ge=0)
    output_tokens: int | None = Field(None, ge=0)


class Script(_Told):
    """Prompts in which the pattern is found get this answer, for so many times or for ever."""

    pattern: str = Field(min_length=1, max_length=LONGEST_TEXT)
    answer: Answer
    times: int | None = Field(None, ge=1)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        any_of([pattern], "pattern")
        return pattern


class Fault(_Told):
    """What goes wrong, and which requests it hits: all, unless a pattern, a start, a chance or a number say less."""

    kind: FaultKind
    code: int = Field(503, ge=400, le=599)
    message: str = "The model is overloaded."
    retry_after_s: int | None = Field(None, ge=0)
    seconds: float = Field(0.0, ge=0, le=3600)
    pattern: str | None = None
    skip: int = Field(0, ge=0)
    times: int | None = Field(None, ge=1)
    probability: float = Field(1.0, ge=0, le=1)
    seed: int = 0


@dataclass
class _Armed:
    fault: Fault
    pattern: Pattern | None
    dice: random.Random
    seen: int = 0
    hits: int = 0

    def strikes(self, prompt: str) -> bool:
        fault = self.fault
        if self.pattern is not None and not self.pattern.found_in(prompt):
            return False
        self.seen += 1
        if self.seen <= fault.skip or (fault.times is not None and self.hits >= fault.times):
            return False
        if fault.probability < 1 and self.dice.random() >= fault.probability:
            return False
        self.hits += 1
        return True


@dataclass
class _Scripted:
    script: Script
    pattern: Pattern
    used: int = 0


@dataclass
class Stage:
    """Everything that the stand-in was told, in force until it is told otherwise."""

    queue: deque[Answer] = field(default_factory=deque)
    _scripts: list[_Scripted] = field(default_factory=list)
    _faults: list[_Armed] = field(default_factory=list)

    def add_script(self, script: Script) -> None:
        self._scripts.append(_Scripted(script, any_of([script.pattern], "pattern")))

    def add_fault(self, fault: Fault) -> None:
        pattern = None if fault.pattern is None else any_of([fault.pattern], "pattern")
        self._faults.append(_Armed(fault, pattern, random.Random(fault.seed)))  # noqa: S311 - repeatable, no secret

    def clear(self) -> None:
        self.queue.clear()
        self._scripts.clear()
        self._faults.clear()

    def clear_faults(self) -> None:
        self._faults.clear()

    def fault_for(self, prompt: str) -> Fault | None:
        return next((armed.fault for armed in self._faults if armed.strikes(prompt)), None)

    def answer_for(self, prompt: str) -> Answer | None:
        """The next of the queue, else the first script that fits; None leaves it to the stand-in."""
        if self.queue:
            return self.queue.popleft()
        for scripted in self._scripts:
            if scripted.script.times is not None and scripted.used >= scripted.script.times:
                continue
            if scripted.pattern.found_in(prompt):
                scripted.used += 1
                return scripted.script.answer
        return None
