"""The table of an action's life."""

from __future__ import annotations

from itertools import product

import pytest

from postroom.actions.lifecycle import FINISHED, LEGAL, OPEN, is_legal
from postroom.domain.actions import ActionStatus as S


def test_every_status_stands_in_the_table() -> None:
    assert set(LEGAL) == set(S) == FINISHED | OPEN
    assert not FINISHED & OPEN


@pytest.mark.parametrize("end", [S.COMPLETED, S.EXPIRED, S.CANCELED, S.REFUSED])
def test_what_is_over_stays_over(end: S) -> None:
    assert not LEGAL[end]


def test_a_rejection_can_only_be_taken_back_to_the_question() -> None:
    assert LEGAL[S.REJECTED] == {S.APPROVED_PENDING}


def test_only_a_question_can_be_rejected_or_expire() -> None:
    for end in (S.REJECTED, S.EXPIRED):
        assert [each for each in S if is_legal(each, end)] == [S.APPROVED_PENDING]


def test_nothing_is_done_that_was_not_begun() -> None:
    assert [each for each in S if is_legal(each, S.COMPLETED)] == [S.EXECUTING]


def test_a_question_is_never_executed_without_being_queued_first() -> None:
    assert not is_legal(S.APPROVED_PENDING, S.EXECUTING)
    assert is_legal(S.APPROVED_PENDING, S.QUEUED)
    assert is_legal(S.QUEUED, S.EXECUTING)


def test_every_open_status_can_come_to_an_end() -> None:
    reach = {each: set(LEGAL[each]) for each in S}
    for middle, start in product(S, S):
        if middle in reach[start]:
            reach[start] |= reach[middle]
    assert all(reach[each] & FINISHED for each in OPEN)
