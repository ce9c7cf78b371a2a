"""Attached files that are made to exhaust what reads them: each is read as far as it goes or has a reason, within the
limits of the confined child, and the innocent file after it is read.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from postroom.reading.documents import DocumentKind, DocumentText, Unread, read_document
from postroom.reading.extraction import MOST_PAGES, MOST_TEXT
from tests.support import hostile_documents as hostile

pytestmark = pytest.mark.req("FD-1", "FD-2")
slow = pytest.mark.chaos


@pytest.mark.parametrize(
    ("make", "unread", "word"),
    [
        pytest.param(lambda: hostile.pdf_of_pages(10_000), None, "page of many", id="10,000 pages"),
        pytest.param(hostile.pdf_whose_pages_hold_themselves, Unread.UNREADABLE, "", id="pages in a circle"),
        pytest.param(hostile.pdf_whose_form_draws_itself, Unread.UNREADABLE, "", id="drawing in a circle", marks=slow),
        pytest.param(lambda: hostile.zip_of_one_file_many_times(10_000), None, "word word", id="overlapping zip"),
        pytest.param(lambda: hostile.packed_again_and_again(200), None, "", id="packed 200 times"),
        pytest.param(lambda: gzip.compress(bytes(200 << 20), mtime=0), Unread.TOO_LARGE, "", id="gzip bomb"),
        pytest.param(lambda: hostile.mail_in_mail(500), None, "a@b.example", id="mail in mail"),
        pytest.param(hostile.sheet_with_a_far_cell, Unread.UNREADABLE, "", id="cell at the far end", marks=slow),
        pytest.param(hostile.open_sheet_repeated, Unread.UNREADABLE, "", id="cell repeated"),
        pytest.param(lambda: hostile.nested_word(300_000), None, "needle", id="nested Word"),
        pytest.param(
            lambda: b"{\\rtf1 " + b"{" * 300_000 + b"needle" + b"}" * 300_001, None, "needle", id="nested RTF"
        ),
        pytest.param(lambda: b"<html>" + b"<div>" * 300_000 + b"needle", None, "needle", id="nested HTML"),
        pytest.param(hostile.tar_of_links, None, "needle", id="links in a circle"),
    ],
)
def test_a_hostile_file_is_read_within_bounds_or_has_a_reason(
    make: Callable[[], bytes], unread: Unread | None, word: str
) -> None:
    found = read_document(make())
    assert (found.unread, word in found.text) == (unread, True), found.note
    assert len(found.text) <= MOST_TEXT
    assert found.unread is None or (found.text, bool(found.note)) == ("", True)
    assert read_document(b"innocent") == DocumentText(DocumentKind.TEXT, "innocent")


def test_of_a_file_with_too_many_pages_the_first_are_read_and_the_rest_is_named() -> None:
    found = read_document(hostile.pdf_of_pages(MOST_PAGES + 1))
    assert found.text.count("page of many") == MOST_PAGES
    assert found.note == "the first 2,000 of 2,001 pages"


def test_an_open_document_sheet_is_read() -> None:
    row = '<table:table-cell office:value-type="string"><text:p>Rent</text:p></table:table-cell>'
    row += '<table:table-cell office:value-type="float" office:value="1250"/>'
    found = read_document(hostile.open_sheet(f"<table:table-row>{row}</table:table-row>"))
    assert (found.kind, found.unread, found.text) == (DocumentKind.SHEET, None, "Costs\nRent\t1250\n")
