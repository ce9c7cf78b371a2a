"""Batches: what is asked and what is understood of the answer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailboxes.gmail import fetching
from postroom.mailboxes.gmail.error_mapping import CallDescription, GmailAnswer
from postroom.mailboxes.gmail.methods import GmailMethod
from postroom.mailboxes.gmail.transport import GmailCall

HEADERS = {"content-type": "multipart/mixed; boundary=batch_x"}


def part(
    number: int | str, body: bytes, *, status: int = 200, length: int | None = None, eol: bytes = b"\r\n"
) -> bytes:
    announced = len(body) if length is None else length
    lines = [
        b"--batch_x",
        b"Content-Type: application/http",
        b"Content-ID: <response-%b>" % str(number).encode(),
        b"",
        b"HTTP/1.1 %d Whatever" % status,
        b"Content-Type: application/json",
        b"Content-Length: %d" % announced,
        b"",
        body,
        b"",
    ]
    return eol.join(lines)


def read(*parts: bytes, count: int = 3, end: bytes = b"--batch_x--\r\n") -> list[tuple[int, bytes] | None]:
    found = fetching.batch_answers(GmailAnswer(200, HEADERS, b"".join(parts) + end), count)
    return [None if each is None else (each.status, each.body.strip()) for each in found]


def test_answers_are_matched_by_id_and_not_by_order() -> None:
    parts = part(2, b"{2}"), part(0, b"{0}"), part(1, b"{1}", status=404)
    assert read(*parts) == [(200, b"{0}"), (404, b"{1}"), (200, b"{2}")]


def test_plain_line_ends_are_understood() -> None:
    assert read(part(0, b"{}", eol=b"\n"), count=1) == [(200, b"{}")]


def test_ids_with_a_prefix_are_understood() -> None:
    assert read(part("item:12+1", b"{}"), count=2) == [None, (200, b"{}")]


def test_a_part_that_is_not_there_has_no_answer() -> None:
    assert read(part(0, b"{0}"), part(2, b"{2}")) == [(200, b"{0}"), None, (200, b"{2}")]


def test_an_answer_that_breaks_off_loses_its_last_part_only() -> None:
    whole = part(0, b"{0}") + part(1, b'{"raw": "abcdef"}')
    assert read(whole[:-9], end=b"", count=2) == [(200, b"{0}"), None]


def test_a_part_shorter_than_announced_has_no_answer() -> None:
    assert read(part(0, b"{}", length=10), count=1) == [None]


def test_a_delimiter_inside_a_line_is_content() -> None:
    body = b'{"raw": "--batch_x--batch_x"}'
    assert read(part(0, body), count=1) == [(200, body)]


def test_unknown_and_strange_parts_are_passed_over() -> None:
    assert read(part(9, b"{}"), b"--batch_x\r\n\r\nnonsense\r\n", part("x", b"{}"), part(1, b"{1}")) == [
        None,
        (200, b"{1}"),
        None,
    ]


@given(st.binary(max_size=300), st.integers(0, 5))
@settings(deadline=None, derandomize=True)
def test_any_body_is_survived(body: bytes, count: int) -> None:
    assert len(fetching.batch_answers(GmailAnswer(200, HEADERS, b"--batch_x\r\n" + body), count)) == count


def test_every_target_is_asked_for_by_its_place() -> None:
    asked = CallDescription(GmailMethod.MESSAGES_GET)
    calls = [GmailCall(asked, "GET", "/a", 5, (("format", "raw"),)), GmailCall(asked, "GET", "/b", 5)]
    body = fetching.batch_body(calls).decode()
    assert body.index("Content-ID: <0>") < body.index("GET /a?format=raw HTTP/1.1") < body.index("Content-ID: <1>")
    assert body.endswith("--\r\n")
