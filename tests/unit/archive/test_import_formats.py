"""What the containers know of a message: Takeout's ids and labels, Maildir's flags and folders."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.archive.importing.interpreting import date_of_line, delivery_date, labels_of_header, plain, takeout
from postroom.archive.importing.preparation import _received, prepare_all, prepare_to_send
from postroom.archive.importing.sources import maildir_files
from postroom.archive.importing.state import FoundMessage
from postroom.archive.messages import Provenance
from postroom.mail.charsets import encode_words
from tests.support.mail import generated_mailbox, takeout_form
from tests.support.reading_faults import break_reading

LINE = b"From 1278455344230334865@xxx Thu May 10 08:30:05 +0200 2018"
RAW = b"X-GM-THRID: 1266894439832287888\r\nX-Gmail-Labels: Inbox,Unread\r\nSubject: Hi\r\n\r\nHello\r\n"


@pytest.mark.req("SY-16")
def test_takeout_s_decimal_ids_become_the_api_s() -> None:
    mail = takeout(FoundMessage(RAW, 1, LINE))
    assert mail.gmail_id == f"{1278455344230334865:x}"
    assert mail.thread_id == f"{1266894439832287888:x}"
    assert mail.labels == frozenset({"INBOX", "UNREAD"})
    assert mail.received == datetime(2018, 5, 10, 6, 30, 5, tzinfo=UTC)
    assert mail.provenance is Provenance.TAKEOUT
    assert mail.raw == RAW


def test_a_takeout_message_without_its_headers_is_kept_without_labels() -> None:
    mail = takeout(FoundMessage(b"Subject: Hi\n\nX-Gmail-Labels: Inbox\n", 1, b"From - Thu May 10 08:30:05 2018"))
    assert (mail.gmail_id, mail.thread_id, mail.labels, mail.received) == (None, None, None, None)


def test_headers_that_a_sender_forged_below_takeout_s_do_not_count() -> None:
    forged = RAW.replace(b"Subject", b"X-Gmail-Labels: Trash\r\nX-GM-THRID: 1\r\nSubject")
    mail = takeout(FoundMessage(forged, 1, LINE))
    assert mail.labels == frozenset({"INBOX", "UNREAD"})
    assert mail.thread_id == f"{1266894439832287888:x}"


@pytest.mark.parametrize(
    ("header", "labels"),
    [
        ("Inbox,Important,Opened,Category Promotions", {"INBOX", "IMPORTANT", "CATEGORY_PROMOTIONS"}),
        ("Archived,Unread,Starred", {"UNREAD", "STARRED"}),
        ('Sent,"Clients, old",Work/2024', {"SENT", "Clients, old", "Work/2024"}),
        ("=?UTF-8?Q?Posteingang,Ge=C3=B6ffnet,Wichtig?=", {"INBOX", "IMPORTANT"}),
        ("Posteingang,=?UTF-8?Q?Ge=C3=B6ffnet?=", {"INBOX"}),
        ("=?UTF-8?Q?Bo=C3=AEte_de_r=C3=A9ception,Non_lus?=", {"INBOX", "UNREAD"}),
        ("Inbox,Opened,Wichtig", {"INBOX", "Wichtig"}),
        ("Inbox,\r\n Trash", {"INBOX", "TRASH"}),
        ('"unclosed, Inbox', {'"unclosed', "INBOX"}),
        ("", set()),
        (" , ,", set()),
    ],
)
def test_label_names_become_gmail_s_ids_where_they_name_the_same(header: str, labels: set[str]) -> None:
    assert labels_of_header(header) == labels


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters='"\\'), min_size=1))
)
def test_the_owner_s_own_labels_keep_their_names(names: list[str]) -> None:
    marked = [f"mine/{name}" for name in names]
    text = ",".join(f'"{name}"' if "," in name else name for name in [*marked, "Opened"])
    assert labels_of_header(" ".join(encode_words(text))) == frozenset(marked)


@given(st.text())
def test_any_label_header_is_read(value: str) -> None:
    assert all(labels_of_header(value))


def test_a_generated_takeout_carries_the_same_labels_as_the_mailbox() -> None:
    box = generated_mailbox(60)
    names = dict(box.user_labels())
    for index in range(box.count()):
        summary = box.summary(index)
        mail = takeout(FoundMessage(takeout_form(summary, box.raw(index), names), 1, b"From 1@xxx"))
        assert mail.labels == frozenset(names.get(label, label) for label in summary.label_ids)


@pytest.mark.parametrize(
    ("line", "date"),
    [
        (b"From a@b Mon Jan  5 12:30:00 2026", datetime(2026, 1, 5, 12, 30, tzinfo=UTC)),
        (b"From - Mon Jan 05 12:30 2026", datetime(2026, 1, 5, 12, 30, tzinfo=UTC)),
        (b"From a Mon Jan 5 12:30:00 +0100 2026", datetime(2026, 1, 5, 11, 30, tzinfo=UTC)),
        (b"From a Mon Foo 5 12:30:00 2026", None),
        (b"From a Mon Jan 99 99:99:99 9999", None),
        (b"From a", None),
        (b"", None),
    ],
)
def test_the_date_of_a_from_line(line: bytes, date: datetime | None) -> None:
    assert date_of_line(line) == date


def test_mail_without_a_date_gets_the_one_of_its_container() -> None:
    line = b"From a@b Mon Jan  5 12:30:00 2026"
    dated, undated = prepare_all(
        plain,
        [
            FoundMessage(b"Date: Tue, 06 Jan 2026 00:00:00 +0000\n\nx", 1, line),
            FoundMessage(b"Subject: no date\n\nx", 2, line),
        ],
    )
    assert dated.mail.date == datetime(2026, 1, 6, tzinfo=UTC)
    assert undated.mail.date == delivery_date(FoundMessage(b"", 0, line)) == datetime(2026, 1, 5, 12, 30, tzinfo=UTC)


def test_mail_that_breaks_the_parser_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    break_reading(monkeypatch, lambda raw: True, RecursionError)
    [prepared] = prepare_all(plain, [FoundMessage(b"\xffanything", 9)])
    assert prepared.failure == "RecursionError in mail.py"
    assert prepared.mail.mail.raw == b"\xffanything"
    assert prepared.mail.problems == (f"it could not be read: {prepared.failure}",)


@pytest.mark.parametrize(
    ("place", "labels"),
    [
        ("cur/1.a.host:2,S", {"INBOX"}),
        ("cur/1.a.host:2,FRS", {"INBOX", "STARRED"}),
        ("cur/1.a.host:2,", {"INBOX", "UNREAD"}),
        ("cur/1.a.host:2,ST", {"INBOX", "TRASH"}),
        ("new/1.a.host", {"INBOX", "UNREAD"}),
        (".Work.Projects/cur/1.a.host:2,S", {"Work/Projects"}),
        (".Sent/cur/1.a.host:2,S", {"SENT"}),
        (".Entw&APw-rfe &- mehr/cur/1.a.host:2,S", {"Entwürfe & mehr"}),
        ("Work/Projects/cur/1.a.host:2,S", {"Work/Projects"}),
    ],
)
def test_maildir_flags_and_folders_become_labels(tmp_path: Path, place: str, labels: set[str]) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_bytes(b"Subject: x\n\nHi\n")
    [found] = [finding for entry in maildir_files(tmp_path) for finding in entry.read(0)]
    assert isinstance(found, FoundMessage)
    assert found.labels == frozenset(labels)
    assert found.raw == b"Subject: x\n\nHi\n"


def test_what_another_process_prepared_is_what_this_one_prepares() -> None:
    box = generated_mailbox(60)
    batch = [FoundMessage(box.raw(index), 1) for index in range(60)]
    sent = pickle.loads(pickle.dumps(prepare_to_send(plain, batch)))  # noqa: S301
    received = [_received(found, incoming, row) for found, (incoming, row, _) in zip(batch, sent, strict=True)]
    assert received == [entry.mail for entry in prepare_all(plain, batch)]
    assert [mail.weight for mail in received] == [entry.mail.weight for entry in prepare_all(plain, batch)]


def test_a_preparing_process_loads_no_settings() -> None:
    look = "import sys, postroom.archive.importing.preparation; print('pydantic' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "False"
