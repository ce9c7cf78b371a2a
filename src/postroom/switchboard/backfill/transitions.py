"""The life of a backfill job: every legal change of its status, who brings it about, and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from postroom.domain.errors import BadInput


class Status(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    COST_CAPPED = "cost_capped"
    ERROR = "error"


class Party(StrEnum):
    OPERATOR = "operator"
    CONNECTOR = "connector"
    SYSTEM = "system"


class Event(StrEnum):
    """What happens to a job. The value is its name in the audit log, after `backfill.`."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    START = "start"
    COMPLETE = "complete"
    FAIL = "error"
    REACH_CAP = "cost_cap"
    TURN_DAY = "day_turn"
    FREE_ROOM = "cap_room"
    LOSE_LEASE = "lease_loss"
    SWITCH_OFF = "switched_off"
    LOSE_METER = "meter_loss"


@dataclass(frozen=True, slots=True)
class Transition:
    event: Event
    party: Party
    sources: tuple[Status, ...]
    target: Status
    meaning: str


TRANSITIONS: dict[Event, Transition] = {
    transition.event: transition
    for transition in (
        Transition(
            Event.PAUSE,
            Party.OPERATOR,
            (Status.PENDING, Status.ACTIVE, Status.COST_CAPPED),
            Status.PAUSED,
            "stop, keep the place; nothing but a resume or a cancel moves it on",
        ),
        Transition(
            Event.RESUME,
            Party.OPERATOR,
            (Status.PAUSED, Status.COST_CAPPED, Status.ERROR),
            Status.PENDING,
            "go on from the cursor; refused for a capped job while its day has no room",
        ),
        Transition(
            Event.CANCEL,
            Party.OPERATOR,
            (Status.PENDING, Status.ACTIVE, Status.PAUSED, Status.COST_CAPPED, Status.ERROR),
            Status.CANCELLED,
            "stop for good; what was ingested stays",
        ),
        Transition(
            Event.START, Party.CONNECTOR, (Status.PENDING,), Status.ACTIVE, "`backfill.poll` hands it out under a lease"
        ),
        Transition(
            Event.COMPLETE, Party.CONNECTOR, (Status.ACTIVE,), Status.COMPLETED, "the last message of the window is in"
        ),
        Transition(Event.FAIL, Party.CONNECTOR, (Status.ACTIVE,), Status.ERROR, "the connector cannot go on"),
        Transition(
            Event.REACH_CAP, Party.SYSTEM, (Status.ACTIVE,), Status.COST_CAPPED, "the day's spend has no more room"
        ),
        Transition(
            Event.TURN_DAY,
            Party.SYSTEM,
            (Status.COST_CAPPED,),
            Status.PENDING,
            "a new day, a new budget (unless `auto_resume` is off)",
        ),
        Transition(
            Event.FREE_ROOM,
            Party.SYSTEM,
            (Status.COST_CAPPED,),
            Status.PENDING,
            "all reservations are settled, for less than was reserved (unless `auto_resume` is off)",
        ),
        Transition(
            Event.LOSE_LEASE, Party.SYSTEM, (Status.ACTIVE,), Status.PENDING, "the connector was silent for too long"
        ),
        Transition(
            Event.SWITCH_OFF, Party.SYSTEM, (Status.ACTIVE,), Status.PENDING, "backfill was switched off as a whole"
        ),
        Transition(
            Event.LOSE_METER,
            Party.SYSTEM,
            (Status.ACTIVE,),
            Status.ERROR,
            "what a message costs is unknown, or more than a whole day may cost",
        ),
    )
}

FINISHED = frozenset({Status.COMPLETED, Status.CANCELLED})

_CANNOT = {
    Event.PAUSE: "paused",
    Event.RESUME: "resumed",
    Event.CANCEL: "cancelled",
    Event.START: "started",
    Event.COMPLETE: "completed",
    Event.FAIL: "failed",
}


class IllegalTransition(BadInput):
    """The job is not in a state from which that is possible."""


def is_legal(event: Event, status: Status) -> bool:
    return status in TRANSITIONS[event].sources


def after(event: Event, status: Status) -> Status:
    """The status that the event leads to; refused, with what would be possible, from any other."""
    transition = TRANSITIONS[event]
    if status in transition.sources:
        return transition.target
    sources = [source.value for source in transition.sources]
    possible = sources[0] if len(sources) == 1 else f"{', '.join(sources[:-1])} or {sources[-1]}"
    done = _CANNOT.get(event, f"moved by {event}")
    raise IllegalTransition("status", f"a job that is {status} cannot be {done}; only one that is {possible} can")


def markdown_table() -> Iterator[str]:
    """The same for people: `docs/backfill.md` holds these lines, and a test compares them."""
    yield "| who | what | from | to | meaning |"
    yield "|---|---|---|---|---|"
    for t in TRANSITIONS.values():
        sources = ", ".join(f"`{source}`" for source in t.sources)
        yield f"| {t.party} | {t.event} | {sources} | `{t.target}` | {t.meaning} |"
