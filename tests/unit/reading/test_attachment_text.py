"""The text of attached files: what is read, and what is said not to be."""

from __future__ import annotations

import pytest

from postroom.mail.parsing import parse_mail
from postroom.reading.attachments import attachment_text

pytestmark = pytest.mark.req("UX-4")


def text_of(content: bytes, kind: str, name: str = "file") -> str | None:
    head = (
        'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n'
        f'Content-Type: {kind}\r\nContent-Disposition: attachment; filename="{name}"\r\n\r\n'
    )
    [found] = parse_mail(head.encode() + content + b"\r\n--b--\r\n").attachments
    return attachment_text(found)


@pytest.mark.parametrize(
    ("content", "kind", "name", "text"),
    [
        (b"one,two", "text/csv", "a.csv", "one,two"),
        (b"<p>Hello <b>you</b></p><script>x()</script>", "text/html", "a.html", "Hello you"),
        (b"<p>Hello</p>", "application/octet-stream", "a.HTM", "Hello"),
        ("Gruß".encode(), "text/plain", "a.txt", "Gruß"),
        ("Gruß".encode("latin-1"), "text/plain", "a.txt", "Gruß"),
        (b"BEGIN:VCALENDAR", "text/calendar", "a.ics", "BEGIN:VCALENDAR"),
        (b'{"a": 1}', "application/octet-stream", "a.json", '{"a": 1}'),
        (b"From: a@b.example\r\nSubject: Hi\r\n\r\nEnclosed words", "message/rfc822", "a.eml", "Enclosed words"),
        (b"%PDF-1.7", "application/pdf", "a.pdf", None),
        (b"\x89PNG\r\n", "image/png", "a.png", None),
        (b"PK\x03\x04", "application/octet-stream", "a.docx", None),
        (b"MZ\x00\x01\x00", "text/plain", "a.txt", None),
    ],
)
def test_text_is_read_and_other_kinds_are_not(content: bytes, kind: str, name: str, text: str | None) -> None:
    found = text_of(content, kind, name)
    assert (found if found is None else found.strip()) == text
