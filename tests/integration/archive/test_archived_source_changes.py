"""What changes at the source is recorded in the archive: labels given, taken, renamed; mail deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.archive.backend import ArchiveBackend, MailWriter
from postroom.archive.messages import IncomingMail, Provenance, Relabelling
from tests.support.archives import ME, plain_letter

pytestmark = pytest.mark.req("SY-13", "SY-18")

OLD, NEW, UNKNOWN = "18c2000000000001", "18c2000000000002", "18c2000000000009"
FIRST = datetime(2026, 5, 1, tzinfo=UTC)
LATER = datetime(2026, 5, 2, tzinfo=UTC)


@dataclass(frozen=True)
class Opened:
    """An archive with two messages, of two years."""

    backend: ArchiveBackend
    writer: MailWriter


@pytest.fixture
def archive(archive_place: ArchiveBackend) -> Iterator[Opened]:
    with archive_place.writer("a test") as opened:
        for gmail_id, year in ((OLD, 2019), (NEW, 2026)):
            received = datetime(year, 3, 1, tzinfo=UTC)
            opened.store(ME, [_mail(gmail_id, received)])
        yield Opened(archive_place, opened)


def _mail(gmail_id: str, received: datetime) -> IncomingMail:
    labels = frozenset({"INBOX", "Work"})
    return IncomingMail(
        plain_letter(gmail_id, message_id=f"<{gmail_id}@x>"), Provenance.API, gmail_id, None, labels, received
    )


def labels_of(archive: Opened, gmail_id: str) -> set[str]:
    with archive.backend.reader() as reader:
        message = reader.message(ME, gmail_id)
        assert message is not None
        return set(message.labels)


def deleted_at(archive: Opened, gmail_id: str) -> datetime | None:
    with archive.backend.reader() as reader:
        message = reader.message(ME, gmail_id)
        assert message is not None
        return message.deleted_at_source


def some(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_label_changes_apply_in_their_order_and_name_the_unknown(archive: Opened) -> None:
    changes = [
        Relabelling(OLD, add=some("Bills")),
        Relabelling(NEW, remove=some("INBOX", "Never had")),
        Relabelling(UNKNOWN, add=some("Bills")),
        Relabelling(OLD, remove=some("Bills"), add=some("Paid")),
    ]
    assert archive.writer.change_labels(ME, changes) == {UNKNOWN}
    assert labels_of(archive, OLD) == {"INBOX", "Work", "Paid"}
    assert labels_of(archive, NEW) == {"Work"}


def test_a_label_that_is_given_and_taken_at_once_is_given(archive: Opened) -> None:
    archive.writer.change_labels(ME, [Relabelling(OLD, add=some("Work"), remove=some("Work"))])
    assert labels_of(archive, OLD) == {"INBOX", "Work"}


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([OLD, NEW]), st.frozensets(st.sampled_from("ABC")), st.frozensets(st.sampled_from("ABC"))
        )
    )
)
def test_label_changes_done_again_change_nothing(
    archive: Opened, drawn: list[tuple[str, frozenset[str], frozenset[str]]]
) -> None:
    changes = [Relabelling(*each) for each in drawn]
    expected: dict[str, set[str]] = {OLD: {"A"}, NEW: {"A"}}
    for gmail_id, add, remove in changes:
        expected[gmail_id] = (expected[gmail_id] - remove) | add
    for gmail_id in expected:
        archive.writer.store(ME, [IncomingMail(plain_letter(gmail_id), Provenance.API, gmail_id, labels=some("A"))])
    for _ in range(2):
        archive.writer.change_labels(ME, changes)
        assert {gmail_id: labels_of(archive, gmail_id) for gmail_id in expected} == expected


def test_a_renamed_label_has_its_new_name_in_every_shard(archive: Opened) -> None:
    for _ in range(2):
        archive.writer.rename_label(ME, "Work", "Office")
        assert labels_of(archive, OLD) == labels_of(archive, NEW) == {"INBOX", "Office"}


def test_a_label_renamed_to_one_that_exists_joins_it(archive: Opened) -> None:
    archive.writer.change_labels(ME, [Relabelling(OLD, add=some("Office"), remove=some("Work"))])
    archive.writer.change_labels(ME, [Relabelling(NEW, add=some("Office"))])
    archive.writer.rename_label(ME, "Work", "Office")
    assert labels_of(archive, OLD) == labels_of(archive, NEW) == {"INBOX", "Office"}


def test_the_old_name_can_be_used_again_after_a_rename(archive: Opened) -> None:
    """The writer remembers the labels it has seen; a name that is gone must not be among them."""
    archive.writer.rename_label(ME, "Work", "Office")
    archive.writer.change_labels(ME, [Relabelling(OLD, add=some("Work"))])
    assert labels_of(archive, OLD) == {"INBOX", "Office", "Work"}
    assert archive.writer.label_members(ME, "Work") == {OLD}


def test_the_labels_of_an_account_are_told_over_all_shards(archive: Opened) -> None:
    archive.writer.change_labels(ME, [Relabelling(OLD, add=some("Bills"))])
    assert archive.writer.label_names(ME) == {"INBOX", "Work", "Bills"}


def test_the_members_of_a_label_are_those_that_the_source_can_still_have(archive: Opened) -> None:
    assert archive.writer.label_members(ME, "Work") == {OLD, NEW}
    archive.writer.mark_deleted(ME, [NEW], FIRST)
    assert archive.writer.label_members(ME, "Work") == {OLD}
    assert archive.writer.label_members(ME, "Never was") == set()


def test_a_deletion_seen_again_keeps_its_first_time(archive: Opened) -> None:
    archive.writer.mark_deleted(ME, [OLD], FIRST)
    archive.writer.mark_deleted(ME, [OLD], LATER)
    assert deleted_at(archive, OLD) == FIRST


def test_a_mark_can_be_taken_back(archive: Opened) -> None:
    archive.writer.mark_deleted(ME, [OLD], FIRST)
    assert archive.writer.unmark_deleted(ME, [OLD, UNKNOWN]) == {UNKNOWN}
    assert deleted_at(archive, OLD) is None


def test_what_was_recorded_is_on_disk_when_the_call_returns(archive: Opened) -> None:
    """Read by another connection at once, as after a kill: nothing waits in the process."""
    archive.writer.change_labels(ME, [Relabelling(OLD, add=some("Bills"))])
    archive.writer.rename_label(ME, "Work", "Office")
    archive.writer.mark_deleted(ME, [OLD], FIRST)
    assert labels_of(archive, OLD) == {"INBOX", "Bills", "Office"}
    assert deleted_at(archive, OLD) == FIRST
