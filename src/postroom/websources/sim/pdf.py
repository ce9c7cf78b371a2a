"""As little of a PDF as has text in it."""

from __future__ import annotations

from collections.abc import Sequence

_LINES_A_PAGE = 40
_WIDTH = 90


def write_pdf(title: str, paragraphs: Sequence[str]) -> bytes:
    lines = [piece for paragraph in paragraphs for piece in _wrapped(paragraph)]
    pages = [lines[start : start + _LINES_A_PAGE] for start in range(0, len(lines), _LINES_A_PAGE)] or [[]]
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Lang (hr-HR) >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Title (" + _escaped(title) + b") >>",
    ]
    for number, page in enumerate(pages):
        content = (
            b"BT /F1 11 Tf 50 780 Td 14 TL\n" + b"".join(b"(" + _escaped(line) + b") Tj T*\n" for line in page) + b"ET"
        )
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            + f"/Contents {6 + 2 * number} 0 R >>".encode()
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n".encode() + content + b"\nendstream")
    return assemble(objects)


def _wrapped(paragraph: str) -> list[str]:
    lines, line = [], ""
    for word in paragraph.split():
        if len(line) + len(word) >= _WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line]


def _escaped(text: str) -> bytes:
    plain = text.translate(str.maketrans("čćđšžČĆĐŠŽ", "ccdszCCDSZ")).encode("cp1252", "replace")
    return plain.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def assemble(objects: Sequence[bytes]) -> bytes:
    """A file of these objects; the first is its catalogue, the fourth its title."""
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = b"".join(f"{offset:010} 00000 n \n".encode() for offset in offsets)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode() + table + trailer.encode()
