"""What changes at the source is recorded in the archive: labels given, taken, renamed; mail deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.archive.model import IncomingMail, Provenance, Relabelling
from postroom.archive.reading import ArchiveReader
from postroom.archive.store import Archive
from tests.support.archives import ME, letter

pytestmark = pytest.mark.req("SY-13")

OLD, NEW, UNKNOWN = "18c2000000000001", "18c2000000000002", "18c2000000000009"
FIRST = datetime(2026, 5, 1, tzinfo=UTC)
LATER = datetime(2026, 5, 2, tzinfo=UTC)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """Two messages, in the shards of two years."""
    with Archive(tmp_path / "archive") as opened:
        for gmail_id, year in ((OLD, 2019), (NEW, 2026)):
            received = datetime(year, 3, 1, tzinfo=UTC)
            opened.store(ME, [_mail(gmail_id, received)])
        yield opened


def _mail(gmail_id: str, received: datetime) -> IncomingMail:
    labels = frozenset({"INBOX", "Work"})
    return IncomingMail(
        letter(gmail_id, message_id=f"<{gmail_id}@x>"), Provenance.API, gmail_id, None, labels, received
    )


def labels_of(archive: Archive, gmail_id: str) -> set[str]:
    with ArchiveReader(archive.root) as reader:
        message = reader.message(ME, gmail_id)
        assert message is not None
        return set(message.labels)


def deleted_at(archive: Archive, gmail_id: str) -> datetime | None:
    with ArchiveReader(archive.root) as reader:
        message = reader.message(ME, gmail_id)
        assert message is not None
        return message.deleted_at_source


def some(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_label_changes_apply_in_their_order_and_name_the_unknown(archive: Archive) -> None:
    changes = [
        Relabelling(OLD, add=some("Bills")),
        Relabelling(NEW, remove=some("INBOX", "Never had")),
        Relabelling(UNKNOWN, add=some("Bills")),
        Relabelling(OLD, remove=some("Bills"), add=some("Paid")),
    ]
    assert archive.change_labels(ME, changes) == {UNKNOWN}
    assert labels_of(archive, OLD) == {"INBOX", "Work", "Paid"}
    assert labels_of(archive, NEW) == {"Work"}


def test_a_label_that_is_given_and_taken_at_once_is_given(archive: Archive) -> None:
    archive.change_labels(ME, [Relabelling(OLD, add=some("Work"), remove=some("Work"))])
    assert labels_of(archive, OLD) == {"INBOX", "Work"}


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([OLD, NEW]), st.frozensets(st.sampled_from("ABC")), st.frozensets(st.sampled_from("ABC"))
        )
    )
)
def test_label_changes_done_again_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, frozenset[str], frozenset[str]]]
) -> None:
    changes = [Relabelling(*each) for each in drawn]
    expected: dict[str, set[str]] = {OLD: {"A"}, NEW: {"A"}}
    for gmail_id, add, remove in changes:
        expected[gmail_id] = (expected[gmail_id] - remove) | add
    with Archive(tmp_path_factory.mktemp("labels")) as archive:
        for gmail_id in expected:
            archive.store(ME, [IncomingMail(letter(gmail_id), Provenance.API, gmail_id, labels=some("A"))])
        for _ in range(2):
            archive.change_labels(ME, changes)
            assert {gmail_id: labels_of(archive, gmail_id) for gmail_id in expected} == expected


def test_a_renamed_label_has_its_new_name_in_every_shard(archive: Archive) -> None:
    for _ in range(2):
        archive.rename_label(ME, "Work", "Office")
        assert labels_of(archive, OLD) == labels_of(archive, NEW) == {"INBOX", "Office"}


def test_a_label_renamed_to_one_that_exists_joins_it(archive: Archive) -> None:
    archive.change_labels(ME, [Relabelling(OLD, add=some("Office"), remove=some("Work"))])
    archive.change_labels(ME, [Relabelling(NEW, add=some("Office"))])
    archive.rename_label(ME, "Work", "Office")
    assert labels_of(archive, OLD) == labels_of(archive, NEW) == {"INBOX", "Office"}


def test_the_old_name_can_be_used_again_after_a_rename(archive: Archive) -> None:
    """The writer remembers the labels it has seen; a name that is gone must not be among them."""
    archive.rename_label(ME, "Work", "Office")
    archive.change_labels(ME, [Relabelling(OLD, add=some("Work"))])
    assert labels_of(archive, OLD) == {"INBOX", "Office", "Work"}
    assert archive.label_members(ME, "Work") == {OLD}


def test_the_labels_of_an_account_are_told_over_all_shards(archive: Archive) -> None:
    archive.change_labels(ME, [Relabelling(OLD, add=some("Bills"))])
    assert archive.label_names(ME) == {"INBOX", "Work", "Bills"}


def test_the_members_of_a_label_are_those_that_the_source_can_still_have(archive: Archive) -> None:
    assert archive.label_members(ME, "Work") == {OLD, NEW}
    archive.mark_deleted(ME, [NEW], FIRST)
    assert archive.label_members(ME, "Work") == {OLD}
    assert archive.label_members(ME, "Never was") == set()


def test_a_deletion_seen_again_keeps_its_first_time(archive: Archive) -> None:
    archive.mark_deleted(ME, [OLD], FIRST)
    archive.mark_deleted(ME, [OLD], LATER)
    assert deleted_at(archive, OLD) == FIRST


def test_a_mark_can_be_taken_back(archive: Archive) -> None:
    archive.mark_deleted(ME, [OLD], FIRST)
    assert archive.unmark_deleted(ME, [OLD, UNKNOWN]) == {UNKNOWN}
    assert deleted_at(archive, OLD) is None


def test_what_was_recorded_is_on_disk_when_the_call_returns(archive: Archive) -> None:
    """Read by another connection at once, as after a kill: nothing waits in the process."""
    archive.change_labels(ME, [Relabelling(OLD, add=some("Bills"))])
    archive.rename_label(ME, "Work", "Office")
    archive.mark_deleted(ME, [OLD], FIRST)
    assert labels_of(archive, OLD) == {"INBOX", "Bills", "Office"}
    assert deleted_at(archive, OLD) == FIRST
