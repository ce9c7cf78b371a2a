"""Attached files that are made to exhaust what reads them: bombs, loops, and more of everything than fits."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Sequence

from tests.support.documents import xlsx, zipped


def raw_pdf(objects: Sequence[str]) -> bytes:
    """A file of these objects, numbered from 1; the first is the catalogue."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode()
    return bytes(out)


def _stream(content: str, more: str = "") -> str:
    return f"<< /Length {len(content)} {more} >>\nstream\n{content}\nendstream"


_FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def pdf_of_pages(count: int) -> bytes:
    """Pages that share what they show."""
    kids = " ".join(f"{number} 0 R" for number in range(5, 5 + count))
    page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 3 0 R "
    page += "/Resources << /Font << /F1 4 0 R >> >> >>"
    pages = f"<< /Type /Pages /Count {count} /Kids [{kids}] >>"
    shown = _stream("BT /F1 12 Tf 40 700 Td (page of many) Tj ET")
    return raw_pdf(["<< /Type /Catalog /Pages 2 0 R >>", pages, shown, _FONT, *([page] * count)])


def pdf_whose_pages_hold_themselves() -> bytes:
    pages = "<< /Type /Pages /Count 1000000 /Kids [2 0 R 2 0 R] /Parent 2 0 R >>"
    return raw_pdf(["<< /Type /Catalog /Pages 2 0 R >>", pages])


def pdf_whose_form_draws_itself() -> bytes:
    page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources 6 0 R >>"
    form = _stream("/X Do /X Do", "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources 6 0 R")
    return raw_pdf(
        [
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            page,
            _stream("/X Do"),
            form,
            "<< /XObject << /X 5 0 R >> >>",
        ]
    )


def zip_of_one_file_many_times(count: int) -> bytes:
    """The directory names the same 20 MB so often."""
    whole = zipped({"a.txt": b"word " * (4 << 20)})
    start = whole.index(b"PK\x01\x02")
    end = whole.index(b"PK\x05\x06")
    entry = whole[start:end]
    directory = entry * count
    tail = bytearray(whole[end:])
    tail[8:10] = tail[10:12] = min(count, 0xFFFF).to_bytes(2, "little")
    tail[12:16] = len(directory).to_bytes(4, "little")
    return whole[:start] + directory + bytes(tail)


def packed_again_and_again(count: int) -> bytes:
    content = b"needle"
    for _ in range(count):
        content = gzip.compress(content, mtime=0)
    return content


def mail_in_mail(count: int) -> bytes:
    head = (
        b"From: a@b.example\r\nMessage-ID: <1@b.example>\r\nMIME-Version: 1.0\r\nContent-Type: message/rfc822\r\n\r\n"
    )
    return head * count + b"From: a@b.example\r\nMIME-Version: 1.0\r\nSubject: innermost\r\n\r\nneedle\r\n"


def sheet_with_a_far_cell() -> bytes:
    """Two cells, at the two ends of the largest sheet there can be."""
    sheet = io.BytesIO(xlsx([["PLACE", 1.0]]))
    with zipfile.ZipFile(sheet) as file:
        members = {name: file.read(name) for name in file.namelist()}
    cells = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>'
    name = "xl/worksheets/sheet1.xml"
    start, _, rest = members[name].partition(b"<sheetData>")
    return zipped(
        {**members, name: start + b"<sheetData>" + cells.encode() + b"</sheetData>" + rest.split(b">", 1)[-1]}
    )


def open_sheet(cells: str) -> bytes:
    office = "urn:oasis:names:tc:opendocument:xmlns:"
    content = (
        f'<office:document-content xmlns:office="{office}office:1.0" xmlns:table="{office}table:1.0" '
        f'xmlns:text="{office}text:1.0" office:version="1.2"><office:body><office:spreadsheet>'
        f'<table:table table:name="Costs">{cells}</table:table></office:spreadsheet></office:body>'
        "</office:document-content>"
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return zipped({"mimetype": kind, "content.xml": content, "META-INF/manifest.xml": "<manifest/>"})


def open_sheet_repeated() -> bytes:
    cell = (
        '<table:table-cell table:number-columns-repeated="16384" office:value-type="string">'
        "<text:p>word</text:p></table:table-cell>"
    )
    return open_sheet(f'<table:table-row table:number-rows-repeated="1048576">{cell}</table:table-row>')


def nested_word(depth: int) -> bytes:
    return zipped({"word/document.xml": "<a>" * depth + "<t>needle</t>" + "</a>" * depth})


def tar_of_links() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, target, kind in (
            ("a", "b", tarfile.SYMTYPE),
            ("b", "a", tarfile.SYMTYPE),
            ("c", "c", tarfile.LNKTYPE),
            ("d", "/etc/passwd", tarfile.SYMTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            file.addfile(entry)
        last = tarfile.TarInfo("last.txt")
        last.size = 6
        file.addfile(last, io.BytesIO(b"needle"))
    return out.getvalue()
