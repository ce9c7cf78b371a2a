"""What was decided about a message: by whom, why, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from postroom.domain.actions import Proposal, ReviewCause

NOTHING = "none"
"""The name of the decision to leave a message as it is."""


class DecidedBy(StrEnum):
    """Who decided."""

    RULE = "deterministic"
    MODEL = "llm"
    LEARNED = "learned"
    UNDECIDED = "none"


@dataclass(frozen=True, slots=True)
class Decision:
    source: DecidedBy
    reason: str
    actions: tuple[Proposal, ...] = ()
    confidence: float | None = None
    needs_review: bool = False
    rule_id: str | None = None
    rule_name: str | None = None
    obstacle: str | None = None
    """Why nothing can be done about the message, whatever was decided."""
    cause: ReviewCause | None = None
    """Of a decision that needs review."""
    explanation: dict[str, Any] | None = None
    """Of a learned one: what spoke for it, without words of the mail."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why what it wants needs a person: each reason once, in order."""
        found = [reason for proposal in self.actions for reason in proposal.reasons]
        return tuple(dict.fromkeys(found if self.obstacle is None else [*found, self.obstacle]))

    def asking(self, reason: str) -> Decision:
        """The same, but nothing of it is done before a person was asked."""
        asked = tuple(replace(each, reasons=(*each.reasons, reason)) for each in self.actions)
        return replace(self, actions=asked)

    @property
    def action(self) -> str:
        """What it wants, by name: `archive`, or `apply_label, archive` where it is more than one thing."""
        return ", ".join(proposal.wanted.type for proposal in self.actions) or NOTHING

    @property
    def parameters(self) -> dict[str, Any]:
        """Of its one action; of several, each with its name."""
        if len(self.actions) == 1:
            return self.actions[0].wanted.outline().parameters_json()
        return {"actions": [proposal.wanted.outline().to_json() for proposal in self.actions]} if self.actions else {}


def left_alone(reason: str) -> Decision:
    return Decision(DecidedBy.UNDECIDED, reason)


def for_review(reason: str, cause: ReviewCause | None = None) -> Decision:
    return Decision(DecidedBy.UNDECIDED, reason, needs_review=True, cause=cause)
