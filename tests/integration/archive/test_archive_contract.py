"""What any archive must do, whatever it is built on: the contract, run over every backend.

Nothing here knows of shards or SQL; what is true of one backend alone is tested beside it (`test_shards.py`). To add a
backend, see `tests/support/databases.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from postroom.archive.backend import ArchiveBackend, MailWriter
from postroom.archive.messages import IncomingMail, Provenance, StoreOutcome
from postroom.archive.preparing import LARGE_BYTES
from tests.support.archives import ME, generated_mail, plain_letter
from tests.support.reading_faults import break_reading

pytestmark = pytest.mark.req("SY-7", "SY-18")


@pytest.fixture
def archive(archive_place: ArchiveBackend) -> Iterator[MailWriter]:
    with archive_place.writer("a test") as opened:
        yield opened


def api(raw: bytes, gmail_id: str, **more: object) -> IncomingMail:
    return IncomingMail(raw, Provenance.API, gmail_id, thread_id=gmail_id, **more)  # type: ignore[arg-type]


def test_every_byte_comes_back(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    mails = generated_mail(150)
    stored = archive.store(ME, mails)
    assert [answer.outcome for answer in stored] == [StoreOutcome.STORED] * len(mails)
    with archive_place.reader() as reader:
        assert reader.count(ME) == len(mails)
        for mail, answer in zip(mails, stored, strict=True):
            assert reader.raw(ME, answer.key) == mail.raw


def test_senders_are_known_without_the_bytes(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    raw = b"From: Ann <ann@example.org>, EVE <Eve@Example.com>\nTo: me@example.org\nSubject: x\n\ny\n"
    [both, none] = archive.store(ME, [api(raw, "18c2000000000001"), api(b"Subject: z\n\ny\n", "18c2000000000002")])
    with archive_place.reader() as reader:
        found = reader.find_many(ME, [both.key, none.key])
        assert sorted(reader.senders_of(found[both.key])) == ["ann@example.org", "eve@example.com"]
        assert reader.senders_of(found[none.key]) == ()


def test_many_messages_are_read_together_as_one_by_one(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    large = api(plain_letter("x" * LARGE_BYTES), "18c2000000000001")
    stored = archive.store(ME, [*generated_mail(150), large, api(b"", "18c2000000000002")])
    with archive_place.reader() as reader:
        found = reader.find_many(ME, [answer.key for answer in stored])
        contents = reader.contents_of(list(found.values()))
        assert contents.keys() == {key for key, message in found.items() if message.size < LARGE_BYTES}
        assert large.gmail_id not in contents
        for key, content in contents.items():
            assert content.headers == reader.headers_of(found[key])
            assert content.body == reader.body_of(found[key])
            assert content.attachments == tuple(reader.attachments_of(found[key]))
        assert any(content.attachments for content in contents.values())
        assert reader.contents_of([]) == {}


def test_storing_again_changes_nothing(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    mails = generated_mail(80)
    first = archive.store(ME, mails)
    again = archive.store(ME, [*mails, *mails])
    assert {answer.outcome for answer in again} == {StoreOutcome.DUPLICATE}
    assert [answer.row_id for answer in again[: len(mails)]] == [answer.row_id for answer in first]
    with archive_place.reader() as reader:
        assert reader.count() == len(mails)


def test_two_messages_with_the_same_bytes_and_different_gmail_ids_are_two(archive: MailWriter) -> None:
    raw = plain_letter()
    first, second = archive.store(ME, [api(raw, "18c2000000000001"), api(raw, "18c2000000000002")])
    assert first.outcome is second.outcome is StoreOutcome.STORED
    assert first.row_id != second.row_id


def test_the_same_message_id_with_other_bytes_is_another_message(archive: MailWriter) -> None:
    """The Message-ID is written by the sender, so it proves nothing by itself."""
    mails = [IncomingMail(plain_letter(body), Provenance.IMPORT) for body in ("one", "two")]
    assert [answer.outcome for answer in archive.store(ME, mails)] == [StoreOutcome.STORED] * 2


def test_imported_mail_is_adopted_when_the_api_brings_the_same_bytes(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    raw = plain_letter()
    [imported] = archive.store(ME, [IncomingMail(raw, Provenance.IMPORT)])
    [adopted] = archive.store(ME, [api(raw, "18c2000000000001", labels=frozenset({"INBOX"}))])
    assert (adopted.outcome, adopted.row_id, adopted.key) == (StoreOutcome.ADOPTED, imported.row_id, "18c2000000000001")
    with archive_place.reader() as reader:
        message = reader.message(ME, "18c2000000000001")
        assert message is not None
        assert (message.provenance, message.labels) == (Provenance.API, ("INBOX",))
        assert reader.count() == 1


def test_an_import_of_what_the_api_brought_is_a_duplicate_even_in_another_year(archive: MailWriter) -> None:
    """Gmail received it in 2027; its Date header, which an import goes by, says 2026."""
    raw = plain_letter()
    archive.store(ME, [api(raw, "18c2000000000001", received=datetime(2027, 1, 1, tzinfo=UTC))])
    [again] = archive.store(ME, [IncomingMail(raw, Provenance.IMPORT)])
    assert (again.outcome, again.key) == (StoreOutcome.DUPLICATE, "18c2000000000001")


def test_the_apis_own_bytes_replace_those_of_a_takeout_and_never_the_reverse(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    gmail_id = "18c2000000000001"
    archive.store(ME, [IncomingMail(plain_letter("takeout"), Provenance.TAKEOUT, gmail_id)])
    [replaced] = archive.store(ME, [api(plain_letter("from the api"), gmail_id)])
    assert replaced.outcome is StoreOutcome.REPLACED
    [kept] = archive.store(ME, [IncomingMail(plain_letter("takeout"), Provenance.TAKEOUT, gmail_id)])
    assert kept.outcome is StoreOutcome.DUPLICATE
    with archive_place.reader() as reader:
        assert reader.raw(ME, gmail_id) == plain_letter("from the api")
    with archive_place.search() as search:
        assert [search.count(word).messages for word in ("takeout", "api")] == [0, 1]


def test_accounts_do_not_mix(archive: MailWriter) -> None:
    raw = plain_letter()
    mails = [IncomingMail(raw, Provenance.IMPORT)]
    outcomes = [archive.store(email, mails)[0].outcome for email in ("a@example.org", "b@example.org", "A@Example.org")]
    assert outcomes == [StoreOutcome.STORED, StoreOutcome.STORED, StoreOutcome.DUPLICATE]


def test_known_ids_need_not_be_fetched_again(archive: MailWriter) -> None:
    archive.store(ME, [IncomingMail(plain_letter(), Provenance.TAKEOUT, "18c2000000000001")])
    assert archive.known_gmail_ids(ME, ["18c2000000000001", "18c2000000000009"]) == {"18c2000000000001"}


def test_label_changes_and_deletions_at_the_source_are_recorded_and_lose_nothing(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    gmail_id, unknown = "18c2000000000001", "18c2000000000009"
    archive.store(ME, [api(plain_letter(), gmail_id, labels=frozenset({"INBOX", "UNREAD"}))])
    assert archive.set_labels(ME, {gmail_id: frozenset({"Work"}), unknown: frozenset()}) == {unknown}
    assert archive.mark_deleted(ME, [gmail_id, unknown], datetime(2026, 5, 1, tzinfo=UTC)) == {unknown}
    with archive_place.reader() as reader:
        message = reader.message(ME, gmail_id)
        assert message is not None
        assert message.labels == ("Work",)
        assert message.deleted_at_source == datetime(2026, 5, 1, tzinfo=UTC)
        assert reader.raw(ME, gmail_id) == plain_letter()


def test_an_old_takeout_adds_labels_and_the_api_decides_which_there_are(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    gmail_id = "18c2000000000001"
    old = IncomingMail(plain_letter(), Provenance.TAKEOUT, gmail_id, labels=frozenset({"Old"}))
    seen = []
    for mail in (
        api(plain_letter(), gmail_id, labels=frozenset({"INBOX"})),
        old,
        api(plain_letter(), gmail_id, labels=frozenset()),
    ):
        archive.store(ME, [mail])
        with archive_place.reader() as reader:
            message = reader.message(ME, gmail_id)
            assert message is not None
            seen.append(message.labels)
    assert seen == [("INBOX",), ("INBOX", "Old"), ()]


def test_old_mail_that_arrives_late_takes_its_place_by_date(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    days = [5, 1, 3, 2, 4]
    mails = [IncomingMail(plain_letter(f"day {day}", date=f"Thu, 0{day} Jan 2026"), Provenance.IMPORT) for day in days]
    for mail in mails:
        archive.store(ME, [mail])
    with archive_place.search() as search:
        newest_first = [hit.snippet.text for hit in search.search("day").hits]
    assert newest_first == [f"day {day}" for day in (5, 4, 3, 2, 1)]


def test_what_was_stored_is_there_when_the_archive_is_opened_again(archive_place: ArchiveBackend) -> None:
    mails = generated_mail(50)
    for expected in (StoreOutcome.STORED, StoreOutcome.DUPLICATE):
        with archive_place.writer("a test") as archive:
            assert {answer.outcome for answer in archive.store(ME, mails)} == {expected}
    with archive_place.reader() as reader:
        assert [reader.raw(ME, mail.gmail_id or "") for mail in mails] == [mail.raw for mail in mails]


@pytest.mark.req("HW-1")
def test_a_message_that_can_be_read_at_last_is_indexed_in_its_place(
    archive_place: ArchiveBackend, archive: MailWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = plain_letter("Ein Brief aus Tromsø.")
    break_reading(monkeypatch, lambda given: given == raw)
    other, unread = archive.store(ME, [api(plain_letter("another"), "18c2000000000001"), api(raw, "18c2000000000002")])
    assert other.trouble is None
    assert unread.outcome is StoreOutcome.STORED
    assert unread.trouble == "ValueError in mail.py"
    archive.mark_deleted(ME, ["18c2000000000002"], datetime(2026, 2, 1, tzinfo=UTC))
    with archive_place.reader() as reader:
        assert reader.raw(ME, unread.key) == raw, "exactly as it came"
        assert archive_place.search().search("Tromsø").hits == ()
    assert archive_place.verify(ME).is_sound
    monkeypatch.undo()
    [again] = archive.store(ME, [IncomingMail(raw, Provenance.IMPORT, "18c2000000000002")])
    assert (again.outcome, again.row_id, again.trouble) == (StoreOutcome.REREAD, unread.row_id, None)
    with archive_place.reader() as reader:
        message = reader.message(ME, unread.key)
        assert message is not None
        assert reader.raw_of(message) == raw
        assert "Tromsø" in reader.body_of(message)
        assert message.deleted_at_source is not None, "what the source has is not for a second reading to say"
    assert archive_place.verify(ME).is_sound
    [third] = archive.store(ME, [IncomingMail(raw, Provenance.IMPORT, "18c2000000000002")])
    assert third.outcome is StoreOutcome.DUPLICATE
