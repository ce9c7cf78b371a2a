"""Time left and the words for a status."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from postroom.dashboard.backfill.queries import possible, reached_day, seconds_left, state_in_words
from postroom.domain.money import Micros
from postroom.domain.terms import BackfillMode, BackfillStatus
from postroom.switchboard.backfill.job import BackfillEvent, BackfillJob
from postroom.switchboard.backfill.leases import WaitReason
from postroom.switchboard.backfill.waiting import JobWait

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def job(**changes: Any) -> BackfillJob:
    empty = dict.fromkeys(field.name for field in fields(BackfillJob))
    given = {
        "id": "j",
        "status": BackfillStatus.ACTIVE,
        "mode": BackfillMode.SELECTIVE,
        "rows_processed": 100,
        "rows_skipped": 0,
        "spent_microdollars": Micros(0),
        "started_at": NOW - timedelta(hours=2),
        "auto_resume": True,
        "estimate": {"messages": 400, "seconds": 14_400},
    }
    return BackfillJob(**{**empty, **given, **changes})


def test_the_time_left_is_never_more_hopeful_than_the_estimate_or_the_last_hour() -> None:
    assert seconds_left(job(), 200, NOW) == 10_800
    assert seconds_left(job(), 50, NOW) == 21_600
    assert seconds_left(job(started_at=NOW - timedelta(minutes=5)), 5, NOW) == 10_800


@pytest.mark.parametrize(
    "changes",
    [
        {"estimate": None},
        {"estimate": {"messages": "many", "seconds": 1}},
        {"estimate": {"messages": 0, "seconds": 0}},
        {"rows_processed": 400},
        *({"status": status} for status in BackfillStatus if status is not BackfillStatus.ACTIVE),
    ],
)
def test_where_nobody_can_say_nothing_is_said(changes: dict[str, Any]) -> None:
    assert seconds_left(job(**changes), 10, NOW) is None


@pytest.mark.parametrize("status", list(BackfillStatus))
def test_every_status_is_said_in_words(status: BackfillStatus) -> None:
    wait = JobWait(WaitReason.LINE, "It waits for its turn.")
    waits = status in (BackfillStatus.PENDING, BackfillStatus.COST_CAPPED)
    said = state_in_words(job(status=status, status_reason="the cap is reached", error=None), wait if waits else None)
    assert said[0].isupper()
    assert said.endswith(".")


def test_what_can_be_done_follows_the_table_of_transitions() -> None:
    assert possible(job(status=BackfillStatus.ACTIVE)) == [BackfillEvent.PAUSE, BackfillEvent.CANCEL]
    assert possible(job(status=BackfillStatus.ERROR)) == [BackfillEvent.RESUME, BackfillEvent.CANCEL]
    assert possible(job(status=BackfillStatus.COMPLETED)) == []


@pytest.mark.parametrize(
    "cursor", [None, {}, {"place": 1}, {"place": {"received_ms": "x"}}, {"place": {"received_ms": -1}}]
)
def test_a_cursor_of_another_form_says_nothing(cursor: Any) -> None:
    assert reached_day(job(cursor=cursor)) is None


def test_the_day_that_a_job_has_come_to_is_read_from_its_cursor() -> None:
    place = {"received_ms": int(NOW.timestamp()) * 1_000}
    assert reached_day(replace(job(), cursor={"place": place})) == date(2026, 5, 4)
