"""The cell in which mail is read: whatever the bytes are and whatever the reader does, a message comes out."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import postroom
from postroom.mail.parsing import parse_mail
from postroom.reading import mail as cell
from postroom.reading.limited import Failure, ReadingFailed
from postroom.reading.mail import from_wire, read_headers, read_mail, to_wire
from tests.support.reading_faults import HOSTILE, break_reading

RAW = (
    b"From: Ada <ada@x.example>\r\nSubject: Hello\r\nDate: Mon, 2 Mar 2026 10:00:00 +0000\r\n"
    b"Message-ID: <1@x.example>\r\n\r\nThe text.\r\n"
)


def carried(raw: bytes) -> object:
    header, data = to_wire(parse_mail(raw))
    return from_wire(json.loads(json.dumps(header)), data, raw)


@pytest.mark.req("HW-1")
@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.binary(max_size=2_000), st.sampled_from([b"", b"Content-Type: text/html\n\n", b"Subject: "]))
def test_arbitrary_bytes_are_read_and_carried_over_without_a_loss(tail: bytes, head: bytes) -> None:
    raw = head + tail
    assert read_mail(raw).trouble is None
    assert carried(raw) == parse_mail(raw)


@pytest.mark.req("HW-1")
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_the_child_sends_is_what_was_read(kind: str) -> None:
    raw = HOSTILE[kind](20_000)
    assert carried(raw) == parse_mail(raw)


@pytest.mark.req("HW-1")
@pytest.mark.parametrize("error", [ValueError, MemoryError, RecursionError, AssertionError])
def test_a_message_that_breaks_every_reader_comes_back_with_its_plain_headers(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    break_reading(monkeypatch, lambda raw: True, error)
    mail = read_mail(RAW)
    assert mail.trouble == f"{error.__name__} in mail.py"
    assert mail.problems == (f"it could not be read: {mail.trouble}",)
    assert (str(mail.from_[0]), mail.subject, mail.message_id) == ("Ada <ada@x.example>", "Hello", "<1@x.example>")
    assert mail.date == datetime(2026, 3, 2, 10, tzinfo=UTC)
    assert mail.best_text == ""


@pytest.mark.req("HW-1")
def test_what_fails_here_is_read_by_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(raw: bytes) -> None:
        raise ValueError

    monkeypatch.setattr(cell, "parse_mail", broken)
    mail = read_mail(RAW)
    assert (mail.trouble, mail.best_text) == (None, "The text.\n")


@pytest.mark.req("HW-2")
def test_large_mail_is_read_by_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(raw: bytes) -> None:
        raise AssertionError("read in this process")

    monkeypatch.setattr(cell, "parse_mail", broken)
    raw = RAW + b"More.\r\n" * 50_000
    mail = read_mail(raw)
    assert (mail.trouble, mail.subject) == (None, "Hello")
    assert mail.best_text.endswith("More.\n")


@pytest.mark.req("HW-1")
def test_where_no_child_can_be_started_no_message_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoChild:
        def run(self, *given: object) -> None:
            raise ReadingFailed(Failure.START, "no process can be started")

    monkeypatch.setattr(cell, "shared_reader", NoChild)
    assert read_mail(RAW + b"More.\r\n" * 50_000).trouble is None


@pytest.mark.req("HW-1")
def test_an_answer_that_makes_no_sense_is_that_messages_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    class Liar:
        def run(self, *given: object) -> tuple[dict[str, object], bytes]:
            return {"texts": [10**9, -5, "x"]}, b""

    monkeypatch.setattr(cell, "shared_reader", Liar)
    mail = read_mail(RAW + b"More.\r\n" * 50_000)
    assert mail.trouble is not None
    assert mail.subject == "Hello"


@pytest.mark.req("HW-1")
def test_headers_that_break_their_reader_are_read_by_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(raw: bytes) -> None:
        raise RecursionError

    monkeypatch.setattr(cell, "parse_headers", broken)
    assert read_headers(RAW).get("Subject") == "Hello"

    class NoChild:
        def run(self, *given: object) -> None:
            raise ReadingFailed(Failure.CRASH, "gone")

    monkeypatch.setattr(cell, "shared_reader", NoChild)
    assert read_headers(RAW).get("Subject") == "Hello"


@pytest.mark.req("HW-1")
def test_no_code_outside_the_cell_reads_foreign_mail() -> None:
    root = Path(postroom.__file__).parent
    readers = re.compile(r"\b(parse_mail|parse_headers|split_headers|read_block)\(")
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in ("mail", "reading")]
    assert [str(path) for path in files if readers.search(path.read_text())] == []
