"""The life of one message of a restore: whatever fails and is interrupted, it is added at most once and told truly."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.actions.restore.items import (
    ADDED,
    NEXT,
    OVER,
    ReadBack,
    RestoreItem,
    Wanted,
    but_for_line_ends,
    certificate_of,
    differences,
    fingerprint,
    is_put_back,
    require_step,
    said_of,
    wanted_labels,
)
from postroom.cli.mail.restore import certificate_lines
from postroom.domain.actions import ItemState
from postroom.domain.errors import Fatal

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
S = ItemState
LABELS = st.sets(st.sampled_from(["INBOX", "UNREAD", "STARRED", "IMPORTANT", "TRASH", "SPAM", "Work", "Réceipts"]))


def item(state: ItemState, position: int = 0, **more: object) -> RestoreItem:
    given: dict[str, object] = {
        "run_id": "r",
        "position": position,
        "key": f"k{position}",
        "sha256": f"{position:064x}",
        "size": 10,
        "date": AT,
        "labels": ("INBOX",),
        "thread_id": "t",
        "message_id": None,
        "source_id": None,
        "state": state,
        "target_id": None,
        "target_thread": None,
        "since": None,
        "detail": None,
        "differences": None,
        "updated_at": AT,
    }
    return RestoreItem(**given | more)  # type: ignore[arg-type]


@dataclass
class Machine:
    """A mailbox and a worker that may be interrupted after every step; the journal is all that it remembers."""

    there_before: bool
    in_trash: bool
    copies: int = 0
    added: int = 0
    state: ItemState = S.PLANNED
    target: str | None = None
    told: list[ItemState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.copies = int(self.there_before or self.in_trash)

    def go(self, new: ItemState, target: str | None = None) -> None:
        require_step(self.state, new, target_id=target)
        self.state, self.target = new, target
        self.told.append(new)

    def append(self, *, happens: bool, answered: bool) -> None:
        self.go(S.APPENDING)
        self.copies, self.added = self.copies + happens, self.added + happens
        if answered:
            self.go(S.APPENDED, "id") if happens else self.go(S.PLANNED)

    def step(self, *, happens: bool, answered: bool) -> None:
        match self.state:
            case S.PLANNED if self.in_trash:
                self.go(S.UNTRASHING, "id")
            case S.PLANNED if self.copies:
                self.go(S.ALREADY_THERE, "id")
            case S.PLANNED:
                self.append(happens=happens, answered=answered)
            case S.APPENDING:  # after an interruption: look before anything else
                self.go(S.APPENDED, "id") if self.copies else self.go(S.PLANNED)
            case S.UNTRASHING if answered:
                self.in_trash = False
                self.go(S.APPENDED, "id")
            case S.APPENDED if answered:
                self.go(S.VERIFIED, "id")


@pytest.mark.req("IM-8")
@given(
    there=st.sampled_from(["not", "there", "trash"]),
    luck=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30),
)
def test_whatever_is_interrupted_a_message_is_added_once(there: str, luck: list[tuple[bool, bool]]) -> None:
    machine = Machine(there == "there", there == "trash")
    for happens, answered in [*luck, *[(True, True)] * 5]:
        if machine.state in OVER:
            break
        machine.step(happens=happens, answered=answered)
        assert machine.copies <= 1
    assert machine.state is (S.ALREADY_THERE if there == "there" else S.VERIFIED)
    assert (machine.copies, machine.added) == (1, int(there == "not"))


@given(old=st.sampled_from(ItemState), new=st.sampled_from(ItemState), target=st.sampled_from([None, "id"]))
def test_only_the_steps_of_the_table_can_be_written(old: ItemState, new: ItemState, target: str | None) -> None:
    needs = new in (*ADDED, S.ALREADY_THERE, S.TRASHED)
    allowed = new in NEXT[old] and not (needs and target is None) and not (new is S.PLANNED and target)
    if allowed:
        require_step(old, new, target_id=target)
    else:
        with pytest.raises(Fatal):
            require_step(old, new, target_id=target)


@pytest.mark.req("IM-8")
@given(labels=LABELS, folder=st.sampled_from([None, "Old mail"]))
def test_mail_is_put_where_it_was_or_into_one_folder_and_never_into_the_trash(
    labels: set[str], folder: str | None
) -> None:
    wanted = set(wanted_labels(labels, folder))
    assert "TRASH" not in wanted
    flags = labels & {"UNREAD", "STARRED", "IMPORTANT"}
    assert wanted == (labels - {"TRASH"} if folder is None else flags | {folder})
    assert wanted == set(wanted_labels(wanted, folder))
    assert is_put_back(labels)
    assert not is_put_back({*labels, "DRAFT"})


@pytest.mark.req("IM-9")
@given(raw=st.binary(max_size=60), other=st.binary(max_size=60))
def test_bytes_are_the_same_up_to_line_ends_and_nothing_else(raw: bytes, other: bytes) -> None:
    unified = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    wanted = Wanted("unknown", fingerprint(raw), AT, ())
    assert ReadBack(unified, AT, frozenset()).has_bytes_of(wanted)
    is_same = other.replace(b"\r\n", b"\n").replace(b"\r", b"\n") == unified
    assert ReadBack(other, AT, frozenset()).has_bytes_of(wanted) == is_same


@pytest.mark.req("IM-9")
def test_what_differs_is_named() -> None:
    raw = b"Subject: a\r\n\r\nb\r\n"
    wanted = Wanted("not its hash", fingerprint(raw), AT, ("INBOX", "Work"))
    found = ReadBack(raw, AT + timedelta(hours=2), frozenset({"inbox", "IMPORTANT"}))
    said = differences(wanted, found)
    assert said["labels_missing"] == ["Work"]
    assert said["labels_added"] == ["IMPORTANT"]
    assert said_of(said) == [
        "the mailbox rewrote its line ends; everything else is equal",
        "the mailbox dates it 2026-05-01T14:00:00+00:00",
        "without Work",
        "also has IMPORTANT",
    ]


@pytest.mark.req("IM-9")
def test_a_certificate_counts_everything_and_changes_with_every_message() -> None:
    items = [
        item(S.VERIFIED, 0, target_id="a", target_thread="x", differences={"date": None}),
        item(S.ALREADY_THERE, 1, target_id="b", target_thread="y"),
        item(S.FAILED, 2, thread_id="other"),
    ]
    said = certificate_of(items, AT)
    assert (said["messages"], said["bytes"], said["verified"], said["already_there"], said["failed"]) == (
        3,
        30,
        1,
        1,
        1,
    )
    assert said["differences"]["date"] == 1
    assert said["threads_split"] == 1
    assert certificate_of(items[:2], AT)["digest"] != said["digest"]
    assert certificate_of([*items[:2], item(S.FAILED, 2, target_id="c")], AT)["digest"] != said["digest"]


@pytest.mark.req("IM-9")
def test_a_certificate_claims_equal_hashes_only_where_line_ends_are_equal_too() -> None:
    rewritten = {"line_ends": "b" * 64}
    items = [
        item(S.VERIFIED, 0, target_id="a"),
        item(S.VERIFIED, 1, target_id="b", differences=rewritten),
        item(S.ALREADY_THERE, 2, target_id="c", differences=rewritten),
    ]
    said = certificate_of(items, AT)
    assert (said["verified"], but_for_line_ends(said), said["differences"]["line_ends"]) == (2, 1, 2)
    assert certificate_lines(said)[0].startswith(
        "1 messages were put back and read back with equal SHA-256, 1 equal except for line ends, 1 were there"
    )
    del said["verified_but_for_line_ends"]
    assert but_for_line_ends(said) == 2, "an older certificate claims no more than it can"
