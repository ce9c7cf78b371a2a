"""Reads the words in pictures and in PDF files of scanned pages, in the confined child process, with the `ocr` extra.

The weights come inside the package that recognises them. They are loaded before the process is confined, and named by
their files, so that nothing is ever downloaded. One thread, because a confined process can start none.

A picture that is too small to hold words, too large, or of a kind that is not read has a reason. Pages beyond their
number, and those that come after the time is up, are left out, and the note says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import pypdfium2

from postroom.domain.errors import Fatal
from postroom.reading.documents import DocumentKind, DocumentText, Unread

MOST_PAGES = 20
MOST_PIXELS = 50_000_000
"""Of a picture as it is packed."""
LARGEST_SIDE = 2_000
"""Pixels; a larger page is made smaller, because time and memory grow with its area."""
SMALLEST_SIDE = 50
SMALLEST_AREA = 40_000
"""Pixels: logos, tracking pixels and buttons have fewer."""
MOST_SECONDS = 120.0
"""Of processor time. The page that is being read then is finished."""
MOST_TEXT = 1_000_000
_POINTS_PER_INCH, _DOTS_PER_INCH = 72, 200
_NICENESS = 10
_MODELS = {"Det": "*det*.onnx", "Cls": "*cls*.onnx", "Rec": "*rec*.onnx"}

Pixels = Any
"""An array of rows of pixels of three bytes."""
Recognise = Callable[[Pixels], Sequence[str]]
"""The lines of text in a picture."""


class _NotRead(Exception):
    def __init__(self, unread: Unread, note: str) -> None:
        super().__init__(note)
        self.unread, self.note = unread, note


def answer(header: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """The task of the child process."""
    found = recognised(content, DocumentKind(header["kind"]), _engine())
    return {"kind": found.kind, "unread": found.unread, "note": found.note}, found.text.encode("utf-8", "replace")


def warm_up() -> None:
    """Loads everything that is loaded late, by reading a picture with a word. Lets other processes go first."""
    import cv2
    import numpy
    from PIL import Image

    os.nice(_NICENESS)
    cv2.setNumThreads(1)
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # ours is checked before a picture is unpacked
    shown: Pixels = numpy.full((120, 400, 3), 255, numpy.uint8)
    cv2.putText(shown, "Postroom", (20, 80), cv2.FONT_HERSHEY_SIMPLEX, 2.0, (0, 0, 0), 4)
    if "".join(_engine()(shown)).strip().lower() != "postroom":
        raise Fatal("The ocr extra does not recognise its own test picture; install it anew.")


@cache
def _engine() -> Recognise:
    from rapidocr import RapidOCR

    threads = dict.fromkeys(("intra_op_num_threads", "inter_op_num_threads"), 1)
    engine = RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": LARGEST_SIDE,
            **{f"EngineConfig.onnxruntime.{name}": count for name, count in threads.items()},
            **{f"{part}.model_path": str(path) for part, path in model_files().items()},
        }
    )

    def recognise(pixels: Pixels) -> Sequence[str]:
        return engine(pixels).txts or ()

    return recognise


def model_files() -> dict[str, Path]:
    """The weights, by the part of the work that they are for. Raises Fatal if the package lacks them."""
    spec = find_spec("rapidocr")
    folder = Path((spec and spec.origin) or "").parent / "models"
    found = {part: sorted(folder.glob(pattern)) for part, pattern in _MODELS.items()}
    if missing := [part for part, files in found.items() if not files]:
        raise Fatal(f"The ocr extra lacks its weights ({', '.join(missing)} in {folder}); install it anew.")
    return {part: files[0] for part, files in found.items()}


def recognised(content: bytes, kind: DocumentKind, recognise: Recognise) -> DocumentText:
    """Within limits of number, pixels and text, and about the time; the child's are the hard ones."""
    pages = _pdf_pages(content) if kind is DocumentKind.PDF else _picture_pages(content)
    texts: list[str] = []
    until = time.process_time() + MOST_SECONDS
    try:
        count, shown = next(pages), 0
        for pixels in pages:
            texts.append("\n".join(recognise(pixels)))
            shown += 1
            if time.process_time() > until or sum(map(len, texts)) > MOST_TEXT:
                break
    except _NotRead as error:
        return DocumentText(kind, unread=error.unread, note=error.note)
    note = f"by its looks, the first {shown} of {count} pages" if shown < count else "by its looks"
    return DocumentText(kind, "\n\n".join(filter(None, texts))[:MOST_TEXT], note=note)


def _pdf_pages(content: bytes) -> Iterator[Any]:
    """How many there are, then the pixels of each."""
    document = pypdfium2.PdfDocument(content)
    yield len(document)
    for number in range(min(len(document), MOST_PAGES)):
        page = document[number]
        largest = max(*page.get_size(), 1.0)
        scale = min(_DOTS_PER_INCH / _POINTS_PER_INCH, LARGEST_SIDE / largest)
        yield page.render(scale=scale).to_numpy()
        page.close()


def _picture_pages(content: bytes) -> Iterator[Any]:
    """The same for a picture; a fax has several."""
    import numpy
    from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

    try:
        picture = Image.open(BytesIO(content))
    except UnidentifiedImageError:
        raise _NotRead(Unread.UNSUPPORTED, "a kind of picture that is not read") from None
    _check_size(*picture.size)
    count = getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1
    yield count
    for number, frame in enumerate(ImageSequence.Iterator(picture)):
        if number >= min(count, MOST_PAGES):
            return
        _check_size(*frame.size)
        upright = ImageOps.exif_transpose(frame).convert("RGBA")
        upright.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        on_white = Image.new("RGBA", upright.size, "white")
        on_white.alpha_composite(upright)
        yield numpy.asarray(on_white.convert("RGB"))[:, :, ::-1]


def _check_size(width: int, height: int) -> None:
    size = f"a picture of {width:,} x {height:,} pixels"
    if min(width, height) < SMALLEST_SIDE or width * height < SMALLEST_AREA:
        raise _NotRead(Unread.UNSUPPORTED, f"{size}: too small to hold words")
    if width * height > MOST_PIXELS:
        raise _NotRead(Unread.TOO_LARGE, f"{size}; up to {MOST_PIXELS // 1_000_000} million are read")
