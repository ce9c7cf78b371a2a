"""What pages and PDF files say."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroom.sim.web import hostile
from postroom.sim.web.gazette import Gazette, write_pdf
from postroom.web.evidence import fold
from postroom.web.extraction.child_tasks import read_document
from postroom.web.extraction.web_reader import LONGEST_TEXT, Extracted, WebDocument

GAZETTE = Gazette(10, seed=7)


def _read(body: bytes, content_type: str = "text/html", charset: str | None = "utf-8") -> Extracted:
    return read_document(WebDocument(body, content_type, charset, "https://example.com/a"))


def test_a_page_gives_its_main_text_title_day_and_language() -> None:
    document = GAZETTE.documents[0]
    extracted = _read(GAZETTE.page(document, {}).body)
    assert extracted.title == document.title
    assert extracted.published_on == document.day
    assert extracted.language == "hr"
    assert all(paragraph in extracted.text for paragraph in document.paragraphs)
    assert "Stand-in gazette" not in extracted.text
    assert extracted.extractor.startswith("trafilatura ")
    assert extracted.problem is None


@pytest.mark.parametrize("claimed", ["application/pdf", "text/html", "", "application/octet-stream"])
def test_a_pdf_is_read_as_one_whatever_the_server_calls_it(claimed: str) -> None:
    extracted = _read(write_pdf("Naredba", ["Porez se place do petka."] * 60), claimed, None)
    assert extracted.title == "Naredba"
    assert extracted.text.count("Porez se place do petka.") == 60
    assert extracted.language == "hr"
    assert extracted.extractor.startswith("pypdf ")


@pytest.mark.parametrize(
    ("body", "content_type", "note"),
    [
        (hostile.HOSTILE["/odd/picture"]().body, "image/png", "no text: image/png"),
        (b"PK\x03\x04" + b"\0" * 100, "application/zip", "no text"),
        (b"GIF89a", "image/gif", "image/gif is not read"),
        (hostile.HOSTILE["/odd/pdf-as-html"]().body, "text/html", "the PDF cannot be read"),
        (b"%PDF-1.7\n" + b"x" * 500, "application/pdf", "the PDF cannot be read"),
        (b"", "text/html", "cannot be read"),
        (hostile.HOSTILE["/bombs/entities.xml"]().body, "application/xml", "cannot be read"),
    ],
)
def test_what_has_no_text_gets_a_note_that_says_why(body: bytes, content_type: str, note: str) -> None:
    extracted = _read(body, content_type, None)
    assert extracted.text == ""
    assert note in (extracted.problem or "")


def test_an_external_entity_is_not_followed() -> None:
    extracted = _read(hostile.HOSTILE["/bombs/external.xml"]().body, "application/xml", None)
    with open("/etc/hostname", encoding="utf-8") as file:
        assert file.read().strip() not in extracted.text


def test_a_wrong_charset_costs_letters_and_not_the_page() -> None:
    extracted = _read(hostile.HOSTILE["/odd/charset"]().body, "text/html", "utf-8")
    assert "aba" in extracted.text
    assert "declared charset" in (extracted.problem or "")


def test_a_charset_named_in_the_page_is_used() -> None:
    page = (
        '<html><head><meta charset="windows-1250"><title>Članak</title></head><body><p>Šuma i žaba.</p></body></html>'
    )
    assert "Šuma i žaba." in _read(page.encode("cp1250"), charset=None).text


def test_a_very_long_line_is_read_and_cut() -> None:
    extracted = _read(b"<html><body><p>" + b"porez " * 1_700_000 + b"</p></body></html>")
    assert 0 < len(extracted.text) <= LONGEST_TEXT
    assert "only the first" in (extracted.problem or "")


def test_a_page_nested_without_end_is_read_all_the_same() -> None:
    assert _read(hostile.HOSTILE["/bombs/deep"]().body).text.startswith("porez")


def test_an_answer_survives_the_pipe() -> None:
    extracted = Extracted("x", "Naslov č", "tekst\n\U0001f600", date(2025, 1, 2), "hr", "note")
    assert Extracted.decode(*extracted.encoded()) == extracted


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=500), st.sampled_from(["text/html", "application/pdf", "text/plain", "", "x/y"]))
def test_any_bytes_are_read_without_nul_or_surrogates(body: bytes, content_type: str) -> None:
    extracted = _read(body, content_type, None)
    assert "\0" not in extracted.text
    extracted.text.encode()


@example("\U0001d400")
@example("ẞ İ ŉ ǅ ﬃ")
@given(st.text(max_size=200))
def test_folding_is_stable_and_leaves_only_words(text: str) -> None:
    folded = fold(text)
    assert fold(folded) == folded
    assert "%" not in folded
    assert not folded or (folded.startswith(" ") and folded.endswith(" "))


def test_folding_makes_spellings_equal() -> None:
    assert fold("ZAKON o  Porezu/na-dohodak!") == " zakon o porezu na dohodak "
    assert fold("Žalba, Đakovo, ČAŠA") == " zalba dakovo casa "
