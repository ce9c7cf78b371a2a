"""Faults on command: rules say which calls go wrong, how, and how often. The same seed gives the same faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from postroom.sim.gmail.api_errors import ApiError
from postroom.sim.serving import SimReply

_OF_A_PART = frozenset({"error", "malformed", "duplicate_history", "reorder_history"})
"""What can befall one call of a batch; the rest befalls a connection."""
_OF_HISTORY = frozenset({"duplicate_history", "reorder_history"})

GmailFaultKind = Literal[
    "error", "latency", "hang", "drop", "truncate", "malformed", "duplicate_history", "reorder_history"
]


class GmailFault(BaseModel):
    """What goes wrong. With `after_effect`, the call is carried out first and only its answer is lost.

    `code` to `retry_after_s` are those of an `error`, `seconds` is how long `latency` takes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: GmailFaultKind
    code: int = Field(default=503, ge=400, le=599)
    reason: str = "backendError"
    message: str = "The service is currently unavailable."
    domain: str = "global"
    retry_after_s: int | None = Field(default=None, ge=0)
    seconds: float = Field(default=0.0, ge=0, le=3600)
    after_effect: bool = False

    def as_error(self) -> ApiError:
        return ApiError(self.code, self.reason, self.message, domain=self.domain, retry_after_s=self.retry_after_s)


class FaultRule(BaseModel):
    """Which calls the fault hits: all that match, unless a probability, a start or a number of times says less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: GmailFault
    method: str = "*"
    """As in the discovery document (`messages.get`), `batch` for one as a whole, `token` for the login; `*` is every
    call and every batch, but not the login."""
    ids: frozenset[str] | None = None
    only_in_batch: bool = False
    probability: float = Field(default=1.0, ge=0, le=1)
    seed: int = 0
    skip: int = Field(default=0, ge=0)
    times: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class FaultsOfCall:
    delay_s: float = 0.0
    fault: GmailFault | None = None


NO_FAULTS = FaultsOfCall()


@dataclass
class _Armed:
    number: int
    rule: FaultRule
    dice: random.Random
    seen: int = 0
    hits: int = 0


@dataclass
class Faults:
    _armed: list[_Armed] = field(default_factory=list)
    _next: int = 1

    def add(self, rule: FaultRule) -> int:
        number, self._next = self._next, self._next + 1
        self._armed.append(_Armed(number, rule, random.Random(rule.seed)))  # noqa: S311 - repeatable faults, no secret
        return number

    def clear(self, number: int | None = None) -> None:
        self._armed = [] if number is None else [armed for armed in self._armed if armed.number != number]

    def hits(self) -> dict[str, int]:
        return {str(armed.number): armed.hits for armed in self._armed}

    def strike(self, method: str, target: str | None = None, *, in_batch: bool = False) -> FaultsOfCall:
        """What this call meets: every delay whose rule fires, and the first other fault."""
        delay = 0.0
        for armed in self._armed:
            if not (_matches(armed.rule, method, target, in_batch) and _fires(armed)):
                continue
            armed.hits += 1
            if armed.rule.fault.kind != "latency":
                return FaultsOfCall(delay, armed.rule.fault)
            delay += armed.rule.fault.seconds
        return FaultsOfCall(delay) if delay else NO_FAULTS


def _matches(rule: FaultRule, method: str, target: str | None, in_batch: bool) -> bool:
    if rule.method != method and (rule.method != "*" or method == "token"):
        return False
    if rule.only_in_batch and not in_batch:
        return False
    if (in_batch and rule.fault.kind not in _OF_A_PART) or (
        rule.fault.kind in _OF_HISTORY and method != "history.list"
    ):
        return False
    return rule.ids is None or target in rule.ids


def _fires(armed: _Armed) -> bool:
    rule = armed.rule
    armed.seen += 1
    if armed.seen <= rule.skip or (rule.times is not None and armed.hits >= rule.times):
        return False
    return rule.probability >= 1 or armed.dice.random() < rule.probability


def refuse_at_once(fault: GmailFault | None) -> None:
    """Raise what a fault raises before anything was done."""
    if fault is not None and fault.kind == "error" and not fault.after_effect:
        raise fault.as_error()


def spoiled(reply: SimReply, fault: GmailFault | None) -> SimReply:
    """What is left of the answer to a call that was carried out."""
    if fault is None:
        return reply
    if fault.kind == "error":
        raise fault.as_error()
    body = reply.body or b"{}"
    if fault.kind == "malformed":
        return replace(reply, status=reply.status if reply.body else 200, body=body[:-1] + b",,")
    if fault.kind == "truncate":
        status = reply.status if reply.body else 200
        return replace(reply, status=status, body=body[: len(body) // 2], announced_length=len(body))
    return reply
