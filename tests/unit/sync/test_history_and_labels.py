"""A page of history and a list of labels, folded into what is to be done."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mailboxes.gmail.mailbox import fold, latest, resume_point
from postroom.mailboxes.gmail.resources import HistoryRecord, LabelChange, MessageRef
from postroom.sync.labels import LabelChanges, changes_between

pytestmark = pytest.mark.req("SY-13")


def ref(gmail_id: str) -> MessageRef:
    return MessageRef(gmail_id, gmail_id)


def one(name: str) -> frozenset[str]:
    return frozenset({name})


def record(number: int, kind: str, gmail_id: str, label: str = "") -> HistoryRecord:
    change = LabelChange(ref(gmail_id), one(label))
    match kind:
        case "added":
            return HistoryRecord(str(number), added=(ref(gmail_id),))
        case "deleted":
            return HistoryRecord(str(number), deleted=(ref(gmail_id),))
        case "gained":
            return HistoryRecord(str(number), labels_added=(change,))
        case _:
            return HistoryRecord(str(number), labels_removed=(change,))


RECORDS = [
    record(9, "added", "a"),
    record(10, "gained", "a", "X"),
    record(100, "lost", "a", "X"),
    record(101, "added", "b"),
    record(1_000, "deleted", "b"),
    record(1_001, "deleted", "c"),
    record(1_002, "gained", "d", "Y"),
]


def test_a_page_tells_what_is_wanted_what_is_gone_and_what_was_relabelled() -> None:
    changes = fold(RECORDS)
    assert changes.wanted == ("a", "d")
    assert changes.deleted == ("b", "c")
    assert [(each.id, set(each.add), set(each.remove)) for each in changes.relabelled] == [
        ("a", {"X"}, set()),
        ("a", set(), {"X"}),
        ("d", {"Y"}, set()),
    ]


@given(st.integers(0, 10_000))
def test_records_out_of_order_and_twice_come_to_the_same(seed: int) -> None:
    """Ids are numbers: as text, 100 would come before 9."""
    shuffled = [*RECORDS, *RECORDS[:3]]
    random.Random(seed).shuffle(shuffled)
    mixed, plain = fold(shuffled), fold(RECORDS)
    assert set(mixed.wanted) == set(plain.wanted)
    assert set(mixed.deleted) == set(plain.deleted)
    assert mixed.relabelled[-2:] == plain.relabelled[-2:]


def test_history_ids_are_compared_as_numbers_of_any_length() -> None:
    assert latest(["9", "123456789012345678901", "99"]) == "123456789012345678901"
    assert latest([]) is None


def test_a_crash_goes_on_before_the_records_that_may_continue_on_the_next_page() -> None:
    assert resume_point(RECORDS) == "1001"
    assert resume_point([record(5, "added", "a"), record(5, "added", "b")]) is None
    assert resume_point([]) is None


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {"1": "A"}, LabelChanges()),
        ({"1": one("A")}, {"1": "A"}, LabelChanges()),
        ({"1": one("A")}, {"1": "B"}, LabelChanges(renamed=(("A", "B"),))),
        ({"1": one("A")}, {}, LabelChanges(dropped=("A",))),
        ({"1": one("A")}, {"1": "A", "2": "B"}, LabelChanges()),
        # A deleted, and another label made with its name.
        ({"1": one("A")}, {"2": "A"}, LabelChanges(mixed=(("2", "A"),))),
        # Two labels change names.
        ({"1": one("A"), "2": one("B")}, {"1": "B", "2": "A"}, LabelChanges(mixed=(("1", "B"), ("2", "A")))),
        # One takes the name that another had.
        (
            {"1": one("A"), "2": one("B")},
            {"1": "B", "2": "C"},
            LabelChanges(dropped=("A",), mixed=(("1", "B"), ("2", "C"))),
        ),
        # Somebody died while A became B.
        ({"1": frozenset("AB")}, {"1": "B"}, LabelChanges(dropped=("A",), mixed=(("1", "B"),))),
        ({"1": frozenset("AB")}, {"1": "C"}, LabelChanges(dropped=("A", "B"), mixed=(("1", "C"),))),
        ({"1": frozenset("AB")}, {}, LabelChanges(dropped=("A", "B"))),
    ],
)
def test_labels_are_followed_by_their_ids(
    before: dict[str, frozenset[str]], now: dict[str, str], expected: LabelChanges
) -> None:
    assert changes_between(before, now) == expected
