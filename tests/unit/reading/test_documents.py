"""The text of attached files: what is found in each kind, and why there is none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.reading import documents, extraction
from postroom.reading.documents import LARGEST_FILE, DocumentKind, DocumentText, Unread, read_document
from postroom.reading.extraction import extract, kind_of
from postroom.reading.limited import ReadingLimits
from tests.support.documents import docx, entity_bomb, locked_zip, odt, ole, pdf, pptx, tarred, xlsx, zip_bomb, zipped

LETTER = (
    b"From: Ada <ada@example.org>\r\nMessage-ID: <1@example.org>\r\nSubject: The lease\r\n\r\nSee the paragraph.\r\n"
)

LOCKED = "open sesame"


@pytest.mark.req("FD-1")
@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (pdf("Invoice 4711", "Second page"), DocumentKind.PDF, ["Invoice 4711", "Second page"]),
        (
            docx("Dear Ada", "Caf\u00e9 \u2013 5 \u20ac"),
            DocumentKind.WORD,
            ["Dear Ada", "Caf\u00e9 \u2013 5 \u20ac", "Footer line"],
        ),
        (pptx("Agenda", "Budget"), DocumentKind.SLIDES, ["Agenda", "Budget"]),
        (xlsx([["Rent", 1250.0], ["Heating", 80.5]]), DocumentKind.SHEET, ["Costs", "Rent\t1250", "Heating\t80.5"]),
        (odt("Kaufvertrag", "Zweiter Absatz"), DocumentKind.OPEN_DOCUMENT, ["Kaufvertrag\nZweiter Absatz"]),
        (b"{\\rtf1\\ansi Gr\\'fc\\'dfe aus {\\b Wien}\\par}", DocumentKind.RTF, ["Gr\u00fc\u00dfe aus Wien"]),
        (b"<!doctype html><p>Hello <b>there</b></p>", DocumentKind.HTML, ["Hello there"]),
        (b"name,amount\nAda,12\n", DocumentKind.TEXT, ["Ada,12"]),
        ("Stra\u00dfe".encode("utf-16"), DocumentKind.TEXT, ["Stra\u00dfe"]),
        (b"BEGIN:VCALENDAR\r\nSUMMARY:Dentist\r\nEND:VCALENDAR\r\n", DocumentKind.TEXT, ["Dentist"]),
        (b"BEGIN:VCARD\r\nFN:Ada Lovelace\r\nEND:VCARD\r\n", DocumentKind.TEXT, ["Ada Lovelace"]),
        (LETTER, DocumentKind.MAIL, ["The lease", "ada@example.org", "See the paragraph."]),
        (
            zipped({"a/b.txt": "needle", "c.docx": docx("inside")}),
            DocumentKind.ARCHIVE,
            ["a/b.txt", "needle", "inside"],
        ),
        (tarred({"x.txt": b"needle"}), DocumentKind.ARCHIVE, ["x.txt", "needle"]),
        (tarred({"x.txt": b"needle"}, packed=True), DocumentKind.ARCHIVE, ["x.txt", "needle"]),
    ],
    ids=lambda value: str(value) if isinstance(value, DocumentKind) else "",
)
def test_every_kind_is_read_by_its_content(content: bytes, kind: DocumentKind, words: list[str]) -> None:
    found = extract(content, "mislabelled.bin", "application/octet-stream")
    assert (found.kind, found.unread) == (kind, None), found.note
    for each in words:
        assert each in found.text


@pytest.mark.req("FD-2")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pdf("secret", password=LOCKED), Unread.ENCRYPTED),
        (pdf("", ""), Unread.PICTURES),
        (b"%PDF-1.7\nnothing of the kind", Unread.UNREADABLE),
        (odt("secret", encrypted=True), Unread.ENCRYPTED),
        (ole("EncryptedPackage"), Unread.ENCRYPTED),
        (ole("WordDocument"), Unread.UNSUPPORTED),
        (locked_zip("a.txt", b"secret"), Unread.ENCRYPTED),
        (b"PK\x03\x04 and then noise", Unread.UNREADABLE),
        (entity_bomb(), Unread.UNREADABLE),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), Unread.UNSUPPORTED),
        (bytes(range(256)) * 4, Unread.UNSUPPORTED),
        (b"-----BEGIN PGP MESSAGE-----\n\nabc", Unread.ENCRYPTED),
        (zipped({"bomb.gz": zip_bomb(40 << 20)}), Unread.TOO_LARGE),
    ],
)
def test_a_file_without_text_has_a_reason(content: bytes, reason: Unread) -> None:
    found = extract(content)
    assert (found.unread, found.text) == (reason, "")


@pytest.mark.req("FD-1")
def test_the_slides_come_in_the_order_in_which_they_are_shown() -> None:
    text = extract(pptx(*(f"slide-{number}." for number in range(1, 13)))).text
    places = [text.index(f"slide-{number}.") for number in range(1, 13)]
    assert places == sorted(places)


@pytest.mark.req("FD-1")
def test_a_file_within_files_is_found_down_to_a_depth() -> None:
    content = b"needle"
    for _ in range(extraction.DEEPEST - 1):
        content = zipped({"inner.zip": content})
    assert "needle" in extract(zipped({"a.txt": content}) if content == b"needle" else content).text
    for _ in range(3):
        content = zipped({"inner.zip": content})
    found = extract(content)
    assert "needle" not in found.text
    assert found.note


@pytest.mark.req("FD-1")
def test_what_is_left_out_of_a_long_file_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "MOST_TEXT", 100)
    monkeypatch.setattr(extraction, "MOST_PAGES", 2)
    assert extract(b"word " * 100).note == "the first 100 characters"
    found = extract(pdf("one", "two", "three"))
    assert ("two" in found.text, "three" in found.text) == (True, False)
    assert found.note == "the first 2 of 3 pages"


@pytest.mark.req("FD-2")
def test_one_bad_file_of_an_archive_does_not_hide_the_others() -> None:
    found = extract(zipped({"locked.pdf": pdf("secret", password=LOCKED), "good.txt": b"needle"}))
    assert "needle" in found.text
    assert "1 of its files cannot be read (encrypted)" in found.note


@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"%PDF-1.4\n", b"PK\x03\x04", b"{\\rtf1 ", b"\x1f\x8b\x08", b"<html>"]),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_have_an_answer(tail: bytes, start: bytes) -> None:
    found = extract(start + tail)
    assert found.kind == kind_of(start + tail)
    assert found.unread is None or found.text == ""
    found.text.encode()


@pytest.mark.req("FD-1")
def test_a_file_is_read_in_the_confined_child() -> None:
    found = read_document(pdf("Invoice 4711"), "a.pdf", "application/pdf")
    assert (found.kind, found.unread, found.text.strip()) == (DocumentKind.PDF, None, "Invoice 4711")
    for content, words in ((xlsx([["Rent", 5.0]]), "Rent\t5"), (docx("Dear Ada"), "Dear Ada"), (LETTER, "The lease")):
        assert words in read_document(content).text


@pytest.mark.req("FD-2")
def test_what_takes_too_much_is_unreadable_and_the_next_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LIMITS", ReadingLimits(memory_bytes=32 << 20))
    endless = docx("x" * 10, prologue="<!-- " + "y" * (100 << 20) + " -->")
    found = read_document(endless)
    assert (found.unread, found.text) == (Unread.UNREADABLE, "")
    assert read_document(b"innocent") == DocumentText(DocumentKind.TEXT, "innocent")
    assert read_document(bytes(LARGEST_FILE + 1)).unread is Unread.TOO_LARGE


@pytest.mark.parametrize(
    ("content", "kind", "name", "text"),
    [
        (b"<p>Hello <b>you</b></p><script>x()</script>", "text/html", "a.html", "Hello you"),
        (b"<p>Hello</p>", "application/octet-stream", "a.HTM", "Hello"),
        ("Gru\u00df".encode(), "text/plain", "a.txt", "Gru\u00df"),
        ("Gru\u00df".encode("latin-1"), "text/plain", "a.txt", "Gru\u00df"),
        (b'{"a": 1}', "application/octet-stream", "a.json", '{"a": 1}'),
        (
            b"From: a@b.example\r\nSubject: Hi\r\n\r\nEnclosed words",
            "message/rfc822",
            "a.eml",
            "Hi\na@b.example\nEnclosed words",
        ),
        (b"MZ\x00\x01\x00", "text/plain", "a.txt", ""),
    ],
)
@pytest.mark.req("UX-4")
def test_among_kinds_of_text_the_name_and_the_declared_type_count(
    content: bytes, kind: str, name: str, text: str
) -> None:
    assert extract(content, name, kind).text.strip() == text
