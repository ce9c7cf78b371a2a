"""Makes small documents of every kind that people attach to mail, sound and hostile."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def zipped(members: Mapping[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


def tarred(members: Mapping[str, bytes], *, packed: bool = False) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0) if packed else out.getvalue()


def pdf(*pages: str, password: str | None = None) -> bytes:
    """A page for each text; an empty one has no text."""
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(600, 800)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 40 700 Td ({text}) Tj ET".encode() if text else b"")
        page[NameObject("/Contents")] = writer._add_object(stream)
    if password is not None:
        writer.encrypt(password)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def docx(*paragraphs: str, prologue: str = "") -> bytes:
    runs = "".join(f"<w:p><w:r><w:t>{escape(text)}</w:t></w:r></w:p>" for text in paragraphs)
    body = f'{prologue}<w:document xmlns:w="{W}"><w:body>{runs}</w:body></w:document>'
    footer = f'<w:ftr xmlns:w="{W}"><w:p><w:r><w:t>Footer line</w:t></w:r></w:p></w:ftr>'
    return zipped({"word/document.xml": body, "word/footer1.xml": footer, "word/styles.xml": "<s>Heading style</s>"})


def pptx(*slides: str) -> bytes:
    made = {
        f"ppt/slides/slide{number}.xml": f'<p:sld xmlns:p="p" xmlns:a="{A}"><a:p><a:r><a:t>{escape(text)}</a:t></a:r>'
        "</a:p></p:sld>"
        for number, text in enumerate(slides, 1)
    }
    return zipped({"ppt/presentation.xml": "<p/>", **made})


def xlsx(rows: Sequence[Sequence[str | float]], sheet: str = "Costs") -> bytes:
    def cell(value: str | float) -> str:
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        return f"<c><v>{value}</v></c>"

    data = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
            f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
            f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{kind}.worksheet+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
            f'Type="{R}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{S}" xmlns:r="{R}"><sheets>'
            f'<sheet name="{escape(sheet)}" sheetId="1" r:id="rId1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
            f'Type="{R}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{S}"><sheetData>{data}</sheetData></worksheet>',
        }
    )


def odt(*paragraphs: str, encrypted: bool = False) -> bytes:
    office, text = "urn:oasis:names:tc:opendocument:xmlns:office:1.0", "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
    body = "".join(f"<text:p>{escape(each)}</text:p>" for each in paragraphs)
    content = (
        f'<office:document-content xmlns:office="{office}" xmlns:text="{text}"><office:styles>Style</office:styles>'
        f"<office:body>{body}</office:body></office:document-content>"
    )
    manifest = "<manifest><encryption-data/></manifest>" if encrypted else "<manifest/>"
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": content,
            "META-INF/manifest.xml": manifest,
        }
    )


def ole(*streams: str) -> bytes:
    """As much of an office document from before 2007, or of an encrypted one, as tells what it is."""
    return OLE + bytes(504) + b"".join(name.encode("utf-16-le").ljust(64, b"\0") for name in streams)


def locked_zip(name: str, content: bytes) -> bytes:
    """A zip file whose entry says that it is encrypted."""
    made = bytearray(zipped({name: content}))
    made[6] |= 1
    made[made.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(made)


def zip_bomb(size: int) -> bytes:
    return zipped({"bomb.txt": b"0" * size})


def entity_bomb() -> bytes:
    """A Word document of ten lines that stand for a billion."""
    entities = '<!ENTITY a0 "lol">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    return docx("x", prologue=f"<!DOCTYPE d [{entities}]>")
