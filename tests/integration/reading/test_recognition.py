"""What recognises words in pictures: its bounds, and the real thing in the confined child where the extra is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest

from postroom.domain.extras import Extra, is_installed
from postroom.reading import recognition
from postroom.reading.documents import DocumentKind, Unread, end_recognition, read_document
from postroom.reading.recognition import MOST_PAGES, recognised
from tests.support.hostile_documents import pdf_of_pages

pytestmark = pytest.mark.req("FD-1")
real = pytest.mark.skipif(not is_installed(Extra.OCR), reason=f"the ocr extra is not installed: {Extra.OCR.command}")


def test_the_pages_of_a_scan_are_bounded_in_number_pixels_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def recognise(pixels: Any) -> list[str]:
        shapes.append(pixels.shape)
        return ["one line", "another"]

    found = recognised(pdf_of_pages(MOST_PAGES + 5), DocumentKind.PDF, recognise)
    assert found.text == "\n\n".join(["one line\nanother"] * MOST_PAGES)
    assert found.note == f"by its looks, the first {MOST_PAGES} of {MOST_PAGES + 5} pages"
    assert {max(shape) for shape in shapes} == {recognition.LARGEST_SIDE}
    monkeypatch.setattr(recognition, "MOST_SECONDS", -1.0)
    assert recognised(pdf_of_pages(3), DocumentKind.PDF, recognise).note == "by its looks, the first 1 of 3 pages"


@pytest.mark.parametrize(
    ("width", "height", "unread"),
    [
        (1, 1, Unread.UNSUPPORTED),
        (600, 40, Unread.UNSUPPORTED),
        (150, 150, Unread.UNSUPPORTED),
        (200, 200, None),
        (20_000, 20_000, Unread.TOO_LARGE),
    ],
)
@pytest.mark.req("FD-2")
def test_a_picture_too_small_for_words_or_too_large_has_a_reason(
    width: int, height: int, unread: Unread | None
) -> None:
    if unread is None:
        recognition._check_size(width, height)
        return
    with pytest.raises(recognition._NotRead) as refused:
        recognition._check_size(width, height)
    assert refused.value.unread is unread
    assert f"{width:,} x {height:,} pixels" in refused.value.note


def picture(*lines: str, kind: str = "PNG", **how: Any) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    shown = Image.new("RGB", (900, 60 + 60 * len(lines)), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(shown).text((40, 30 + 60 * number), line, "black", ImageFont.load_default(36))
    out = BytesIO()
    shown.save(out, kind, **how)
    return out.getvalue()


@pytest.fixture
def recogniser() -> Iterator[None]:
    yield
    end_recognition()


@real
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("recogniser")
def test_words_in_pictures_and_scans_are_read_in_the_confined_child() -> None:
    for content, kind in (
        (picture("Invoice for rhubarb", "due on 12 March"), DocumentKind.PICTURE),
        (picture("Invoice for rhubarb", "due on 12 March", kind="JPEG", quality=80), DocumentKind.PICTURE),
        (picture("Invoice for rhubarb", "due on 12 March", kind="PDF", resolution=100), DocumentKind.PDF),
    ):
        found = read_document(content, "a.bin", "application/octet-stream", with_ocr=True)
        assert (found.kind, found.unread, found.note) == (kind, None, "by its looks")
        assert "rhubarb" in found.text
        assert "12 March" in found.text
        assert read_document(content).text == ""


@real
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("recogniser")
@pytest.mark.req("FD-2")
def test_a_picture_that_cannot_be_read_has_a_reason_and_the_next_one_is_read() -> None:
    from PIL import Image

    tiny = BytesIO()
    Image.new("RGB", (88, 31), "red").save(tiny, "GIF")
    large = BytesIO()
    Image.new("1", (30_000, 30_000)).save(large, "TIFF", compression="group4")
    whole = picture("Invoice for rhubarb")
    for content, unread in (
        (tiny.getvalue(), Unread.UNSUPPORTED),
        (large.getvalue(), Unread.TOO_LARGE),
        (whole[: len(whole) // 2], Unread.UNREADABLE),
        (b"\x89PNG\r\n\x1a\n" + os.urandom(100), Unread.UNSUPPORTED),
    ):
        found = read_document(content, with_ocr=True)
        assert (found.unread, found.text, bool(found.note)) == (unread, "", True)
    assert "rhubarb" in read_document(whole, with_ocr=True).text
