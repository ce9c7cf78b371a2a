"""What a history says, whatever the order and the repetitions of its records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.connectors.live import HistoryChanges
from postroom.mailboxes.gmail.mailbox import HistoryFolder
from postroom.mailboxes.gmail.resources import HistoryPage, HistoryRecord, LabelChange, MessageRef

IDS = st.sampled_from("abcd")
LABELS = st.frozensets(st.sampled_from(["INBOX", "UNREAD", "Label_1"]), max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> list[HistoryRecord]:
    """A mailbox that really lived: labels change only on mail that is there, and ids are never used again."""
    labels: dict[str, frozenset[str]] = {}
    gone: set[str] = set()
    records = []
    for number in range(draw(st.integers(0, 20))):
        key, wanted = draw(IDS), draw(LABELS)
        ref = MessageRef(key, key, wanted)
        if key in gone:
            continue
        if key not in labels:
            labels[key] = wanted
            records.append(HistoryRecord(str(100 + number), added=(ref,)))
        elif draw(st.integers(0, 4)) == 0:
            gone.add(key)
            records.append(HistoryRecord(str(100 + number), deleted=(MessageRef(key, key),)))
        else:
            added, removed = wanted - labels[key], labels[key] - wanted
            labels[key] = wanted
            records.append(
                HistoryRecord(
                    str(100 + number),
                    labels_added=(LabelChange(ref, added),) if added else (),
                    labels_removed=(LabelChange(ref, removed),) if removed else (),
                )
            )
    return records


def read(records: list[HistoryRecord], page_size: int) -> HistoryChanges:
    changes, folder = HistoryChanges(), HistoryFolder("1")
    pages = [records[start : start + page_size] for start in range(0, len(records), page_size)] or [[]]
    for number, page in enumerate(pages):
        token = "more" if number + 1 < len(pages) else None
        changes.read(folder.fold(HistoryPage(tuple(page), token, str(500 + number))))
    changes.settle()
    return changes


@pytest.mark.req("SY-13")
@given(histories(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_order_repetition_and_paging_change_nothing(records: list[HistoryRecord], size: int, dice: object) -> None:
    plain = read(records, 100)
    mixed = [*records, *records]
    dice.shuffle(mixed)  # type: ignore[attr-defined]
    shuffled = read(mixed, size)
    assert set(shuffled.added) == set(plain.added)
    assert shuffled.deleted == plain.deleted
    assert {key: value for key, value in shuffled.labels.items() if value} == {
        key: value for key, value in plain.labels.items() if value
    }
    assert shuffled.cursor == "500", "what came after the first answer is read again"
    assert not (set(plain.added) | set(plain.labels)) & plain.deleted


def test_labels_that_the_history_leaves_out_are_asked_for() -> None:
    bare = MessageRef("a", "a")
    changes = read([HistoryRecord("1", labels_added=(LabelChange(bare, frozenset({"X"})),))], 1)
    assert changes.labels == {"a": None}
