"""The table of transitions: whole, and the same in the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from postroom.db.tables.mail import STATUSES
from postroom.domain.errors import BadInput
from postroom.domain.terms import BackfillStatus
from postroom.switchboard.backfill.job import (
    FINISHED,
    TRANSITIONS,
    BackfillEvent,
    IllegalTransition,
    is_legal,
    status_after,
)
from postroom.switchboard.backfill.leases import ProgressReport

GUIDE = Path(__file__).parents[3] / "docs" / "backfill.md"


def markdown_table() -> Iterator[str]:
    """The lines of the table in docs/backfill.md."""
    yield "| who | what | from | to | meaning |"
    yield "|---|---|---|---|---|"
    for t in TRANSITIONS.values():
        sources = ", ".join(f"`{source}`" for source in t.sources)
        yield f"| {t.party} | {t.event} | {sources} | `{t.target}` | {t.meaning} |"


@pytest.mark.req("BF-7")
def test_the_documentation_holds_the_table_of_the_code() -> None:
    assert "\n".join(markdown_table()) in GUIDE.read_text("utf-8")


@pytest.mark.req("BF-1")
def test_the_statuses_are_those_that_the_database_checks() -> None:
    assert tuple(BackfillStatus) == STATUSES


@pytest.mark.req("BF-7")
def test_every_event_from_every_status_is_either_in_the_table_or_refused_with_what_would_be_possible() -> None:
    assert set(TRANSITIONS) == set(BackfillEvent)
    for event, status in product(BackfillEvent, BackfillStatus):
        if is_legal(event, status):
            assert status_after(event, status) is TRANSITIONS[event].target
            continue
        with pytest.raises(IllegalTransition) as refusal:
            status_after(event, status)
        assert refusal.value.field == "status"
        assert f"a job that is {status} cannot be" in refusal.value.problem
        assert all(source in refusal.value.problem for source in TRANSITIONS[event].sources)


@pytest.mark.req("BF-7")
def test_a_finished_job_stays_finished_and_every_other_can_still_be_finished() -> None:
    sources = {source for transition in TRANSITIONS.values() for source in transition.sources}
    assert sources == set(BackfillStatus) - FINISHED
    assert {source for source in BackfillStatus if is_legal(BackfillEvent.CANCEL, source)} == sources


def test_a_refused_report_names_the_status_as_people_write_it() -> None:
    with pytest.raises(BadInput, match="status: 'paused' is not one of") as refused:
        ProgressReport("j", 1, 0, 0, status=BackfillStatus.PAUSED)
    assert "<" not in refused.value.message
