"""How far a backfill job is, what it still takes, and why it stands as it does, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, assert_never

from postroom.dashboard.reading.days import end_of_day
from postroom.kill_switch import SwitchState
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.model import BackfillJob
from postroom.switchboard.backfill.rate import HOUR
from postroom.switchboard.backfill.transitions import Event, Status, is_legal
from postroom.switchboard.estimate import side_by_side

STEERING = (Event.PAUSE, Event.RESUME, Event.CANCEL)


@dataclass(frozen=True, slots=True)
class Both:
    """A figure of the estimate, and what it came to. None where nobody knows."""

    estimated: int | None
    actual: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    messages: Both
    left_out: Both
    cost_microdollars: Both
    seconds: Both


def expected_messages(job: BackfillJob) -> int | None:
    """How many it was to bring; None where it was not estimated."""
    return _whole(job.estimate, "messages")


def seconds_left(job: BackfillJob, admitted_last_hour: int, now: datetime) -> int | None:
    """About how long it is at work still; never more hopeful than its estimate, nor than its last hour.

    None where nobody can say: it is not at work, was not estimated, or has brought more than that already.
    """
    expected, planned = expected_messages(job), _whole(job.estimate, "seconds")
    if job.status is not Status.ACTIVE or not expected or planned is None or job.rows_processed >= expected:
        return None
    left = expected - job.rows_processed
    seconds = planned * left // expected
    has_gone_an_hour = job.started_at is not None and now - job.started_at >= HOUR
    if has_gone_an_hour and admitted_last_hour:
        seconds = max(seconds, left * 3_600 // admitted_last_hour)
    return seconds


def goes_on_at(job: BackfillJob, switch: SwitchState, settings: BackfillSettings, now: datetime) -> datetime | None:
    """When a job that stopped at its cap goes on by itself; None for any other, and where a person has to act first."""
    waits_for_a_day = job.status is Status.COST_CAPPED and job.auto_resume and switch.in_force
    if not waits_for_a_day or job.capped_day is None:
        return None
    turn = end_of_day(job.capped_day, settings)
    return turn if turn > now else None


def came_to(job: BackfillJob) -> date | None:
    """The day that it has gone back to, from the newest on; None where its connector keeps its place otherwise."""
    place = None if job.cursor is None else job.cursor.get("place")
    moment = place.get("received_ms") if isinstance(place, Mapping) else None
    if not isinstance(moment, int) or not 0 <= moment < 10**14:
        return None
    return datetime.fromtimestamp(moment / 1_000, UTC).date()


def possible(job: BackfillJob) -> list[Event]:
    """What its owner can do with it now."""
    return [event for event in STEERING if is_legal(event, job.status)]


def comparison(job: BackfillJob) -> Comparison | None:
    compared = side_by_side(job)
    if compared is None:
        return None
    return Comparison(**{name: Both(_whole(both, "estimated"), both["actual"]) for name, both in compared.items()})


def saying(job: BackfillJob, switch: SwitchState) -> str:
    """Why it stands as it does, and what comes next."""
    why = _sentence(job.error or job.status_reason)
    match job.status:
        case Status.PENDING if not switch.in_force:
            return f"Waits, because all backfill is off: {switch.reason}."
        case Status.PENDING:
            return f"{why} Waits for its connector, which asks for work every minute.".strip()
        case Status.ACTIVE:
            return f"At work: {job.lease_holder} brings mail." if job.lease_holder else "At work."
        case Status.PAUSED:
            return f"{why} It keeps its place until it is resumed.".strip()
        case Status.COST_CAPPED:
            return f"{why} {_after_the_cap(job, switch)}"
        case Status.ERROR:
            return f"{why or 'It failed.'} Mend that, then resume it: it goes on from its place."
        case Status.COMPLETED:
            return "Done: all mail of these days was looked at."
        case Status.CANCELLED:
            return f"{why} What it brought stays.".strip()
    assert_never(job.status)


def _after_the_cap(job: BackfillJob, switch: SwitchState) -> str:
    if not job.auto_resume:
        return "It waits to be resumed by hand."
    return "It goes on by itself then." if switch.in_force else "It goes on by itself once backfill is on again."


def _sentence(text: str | None) -> str:
    if not text:
        return ""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _whole(values: Mapping[str, Any] | None, name: str) -> int | None:
    """An estimate comes from whoever made the job: what is not a number is not known."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
