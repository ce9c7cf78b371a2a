"""Reads files of people in the confined child process: PDF, office documents, HTML, plain text, calendars, enclosed
mail and archives of such files. What a file is, its content says; its name and declared type are asked only among kinds
of text.

Every file has an answer: its text, or the reason why there is none. Text beyond a limit, pages and files of an archive
beyond their number are left out, and the note says so.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from io import BytesIO
from typing import IO, Any
from xml.parsers import expat

import pypdfium2
import python_calamine
from striprtf.striprtf import rtf_to_text

from postroom.domain.extras import Extra
from postroom.mail.charsets import decode_text
from postroom.mail.html import html_to_text
from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.reading.documents import DocumentKind, DocumentText, Unread

MOST_TEXT = 1_000_000
MOST_PAGES = 2_000
MOST_MEMBERS = 200
DEEPEST = 3
_LARGEST_MEMBER = 32 << 20
_CHUNK = 64 << 10
_LOOKED_AT = 8 << 10
_HOW_TO_READ_PICTURES = f"the ocr extra reads it: {Extra.OCR.command}"


def answer(header: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """The task of the child process."""
    found = extract(content, header["filename"], header["content_type"])
    return {"kind": found.kind, "unread": found.unread, "note": found.note}, found.text.encode("utf-8", "replace")


def warm_up() -> None:
    """Loads what the libraries load late, before the child may open no more files."""
    extract(b"%PDF-1.4\n%%EOF")
    extract(b"{\\rtf1 \\'e4}")
    extract(b"From: a@b.example\nSubject: a\n\n<b>a</b>", content_type="message/rfc822")
    python_calamine.CalamineError()


class _Unreadable(Exception):
    """A file of which nothing can be read, and why."""

    def __init__(self, unread: Unread, note: str = "") -> None:
        super().__init__(note)
        self.unread, self.note = unread, note


class _Enough(Exception):
    """As much text as is kept has been read."""


class _Text:
    """Gathers text up to a limit."""

    def __init__(self, most: int) -> None:
        self._parts: list[str] = []
        self.left = most
        self.notes: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text[: self.left])
        self.left -= len(text)
        if self.left <= 0:
            self.left = 0
            raise _Enough

    def __str__(self) -> str:
        return "".join(self._parts).replace("\0", " ")


def extract(content: bytes, filename: str = "", content_type: str = "", *, depth: int = 0) -> DocumentText:
    """Within limits of text and number, but not of time and memory: those are the child's."""
    kind = kind_of(content, filename.lower(), content_type.lower())
    text = _Text(MOST_TEXT)
    try:
        _READERS[kind](content, text, depth)
    except _Enough:
        text.notes.append(f"the first {MOST_TEXT:,} characters")
    except _Unreadable as error:
        return DocumentText(kind, unread=error.unread, note=error.note)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a broken file makes a library raise nearly anything
        if not str(text).strip():
            return DocumentText(kind, unread=Unread.UNREADABLE, note=type(error).__name__)
        text.notes.append(f"as far as it can be read ({type(error).__name__})")
    return DocumentText(kind, str(text), note="; ".join(text.notes))


_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"BM")
_ARCHIVES = (b"\x1f\x8b", b"PK\x05\x06")
_MAIL_START = re.compile(rb"(?:[!-9;-~]+:[^\r\n]*\r?\n(?:[ \t][^\r\n]*\r?\n)*){2,}", re.ASCII)
_MAIL_HEADERS = re.compile(rb"^(?:from|received|message-id|mime-version):", re.IGNORECASE | re.MULTILINE)


def kind_of(content: bytes, filename: str = "", content_type: str = "") -> DocumentKind:
    """`filename` and `content_type` in lower case."""
    start = content[:_LOOKED_AT]
    if b"%PDF-" in start[:1024]:
        return DocumentKind.PDF
    if start.startswith(b"PK\x03\x04"):
        return _kind_of_zip(content)
    if start.startswith(_OLE):
        return _kind_of_ole(content)
    if start.lstrip().startswith(b"{\\rtf"):
        return DocumentKind.RTF
    if start.startswith(_ARCHIVES) or start[257:262] == b"ustar":
        return DocumentKind.ARCHIVE
    if start.startswith(_PICTURES) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP") or start[4:8] == b"ftyp":
        return DocumentKind.PICTURE
    return _kind_of_text(start, filename, content_type)


def _kind_of_zip(content: bytes) -> DocumentKind:
    try:
        with zipfile.ZipFile(BytesIO(content)) as file:
            names = set(file.namelist())
            mimetype = _beginning(file, "mimetype", 200)
    except Exception:  # damaged, or encrypted: its reader says which
        return DocumentKind.ARCHIVE
    if b"opendocument.spreadsheet" in mimetype or any(name.startswith("xl/") for name in names):
        return DocumentKind.SHEET
    if b"opendocument" in mimetype:
        return DocumentKind.OPEN_DOCUMENT
    if "word/document.xml" in names:
        return DocumentKind.WORD
    return DocumentKind.SLIDES if "ppt/presentation.xml" in names else DocumentKind.ARCHIVE


def _beginning(file: zipfile.ZipFile, name: str, size: int) -> bytes:
    if name not in file.NameToInfo:
        return b""
    with file.open(name) as member:
        return member.read(size)


def _kind_of_ole(content: bytes) -> DocumentKind:
    """By the names of its streams, which stand in it as UTF-16."""
    names = {
        "WordDocument": DocumentKind.WORD,
        "Workbook": DocumentKind.SHEET,
        "PowerPoint Document": DocumentKind.SLIDES,
        "EncryptedPackage": DocumentKind.WORD,
    }
    return next((kind for name, kind in names.items() if name.encode("utf-16-le") in content), DocumentKind.OTHER)


def _kind_of_text(start: bytes, filename: str, content_type: str) -> DocumentKind:
    is_wide = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    odd = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in start)
    if not is_wide and (b"\0" in start or odd > len(start) // 50):
        return DocumentKind.OTHER
    is_named_mail = content_type == "message/rfc822" or filename.endswith(".eml")
    if is_named_mail or (_MAIL_START.match(start) and len(_MAIL_HEADERS.findall(start)) >= 2):
        return DocumentKind.MAIL
    looks_html = re.match(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype html|html|head|body)\b", start, re.I | re.S)
    is_named_html = content_type == "text/html" or filename.endswith((".html", ".htm"))
    return DocumentKind.HTML if looks_html or is_named_html else DocumentKind.TEXT


def _read_pdf(content: bytes, text: _Text, depth: int) -> None:
    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        is_locked = "password" in str(error).lower()
        raise _Unreadable(Unread.ENCRYPTED if is_locked else Unread.UNREADABLE) from None
    broken, count = 0, len(document)
    for number in range(min(count, MOST_PAGES)):
        try:
            page = document[number]
            piece = page.get_textpage().get_text_bounded()
            page.close()
        except pypdfium2.PdfiumError:
            broken += 1
            continue
        text.add(piece.strip() + "\n\n")
    if broken:
        text.notes.append(f"{broken} of {count} pages cannot be read")
    if count > MOST_PAGES:
        text.notes.append(f"the first {MOST_PAGES:,} of {count:,} pages")
    if not str(text).strip():
        if broken:
            raise _Unreadable(Unread.UNREADABLE, "; ".join(text.notes))
        raise _Unreadable(Unread.PICTURES, "; ".join(["scanned pages", _HOW_TO_READ_PICTURES, *text.notes]))


def _read_word(content: bytes, text: _Text, depth: int) -> None:
    _refuse_old_office(content)
    wanted = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
    _read_xml_members(content, wanted, text, within="t")


def _read_slides(content: bytes, text: _Text, depth: int) -> None:
    _refuse_old_office(content)
    wanted = re.compile(r"ppt/(?:slides/slide|notesSlides/notesSlide)\d+\.xml")
    _read_xml_members(content, wanted, text, within="t")


def _read_open_document(content: bytes, text: _Text, depth: int) -> None:
    with zipfile.ZipFile(BytesIO(content)) as file:
        if b"encryption-data" in _beginning(file, "META-INF/manifest.xml", _CHUNK):
            raise _Unreadable(Unread.ENCRYPTED)
    _read_xml_members(content, re.compile(r"content\.xml"), text, within="body")


def _refuse_old_office(content: bytes) -> None:
    if content.startswith(_OLE):
        is_locked = "EncryptedPackage".encode("utf-16-le") in content
        raise _Unreadable(
            Unread.ENCRYPTED if is_locked else Unread.UNSUPPORTED, "" if is_locked else "a format from before 2007"
        )


def _read_xml_members(content: bytes, wanted: re.Pattern[str], text: _Text, *, within: str) -> None:
    with zipfile.ZipFile(BytesIO(content)) as file:
        for name in sorted(filter(wanted.fullmatch, file.namelist()), key=_by_number):
            with file.open(name) as member:
                _read_xml(member, text, within)


def _by_number(name: str) -> tuple[str, int]:
    """So that slide 10 comes after slide 9."""
    digits = re.findall(r"\d+", name)
    return re.sub(r"\d+", "", name), int(digits[-1][:9]) if digits else 0


_LINES = frozenset({"p", "h", "br", "cr", "tr", "line-break", "table-row"})
_SPACES = frozenset({"tab", "s", "tc"})


def _read_xml(stream: IO[bytes], text: _Text, within: str) -> None:
    """The character data in elements of this local name. A document that declares entities is refused."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    open_elements = 0

    def start(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal open_elements
        open_elements += name.rpartition(":")[2] == within

    def end(name: str) -> None:
        nonlocal open_elements
        local = name.rpartition(":")[2]
        open_elements -= local == within
        if local in _LINES:
            text.add("\n")
        elif local in _SPACES:
            text.add(" ")

    def data(found: str) -> None:
        if open_elements:
            text.add(found)

    def refuse(*declared: Any) -> None:
        raise _Unreadable(Unread.UNREADABLE, "it declares entities")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, data
    parser.EntityDeclHandler = refuse
    while chunk := stream.read(_CHUNK):
        parser.Parse(chunk)
    parser.Parse(b"", True)


def _read_sheet(content: bytes, text: _Text, depth: int) -> None:
    if content.startswith(_OLE) and "EncryptedPackage".encode("utf-16-le") in content:
        raise _Unreadable(Unread.ENCRYPTED)
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(BytesIO(content))
    except python_calamine.PasswordError:
        raise _Unreadable(Unread.ENCRYPTED) from None
    for name in book.sheet_names:
        text.add(f"{name}\n")
        for row in book.get_sheet_by_name(name).iter_rows():
            cells = [_cell(value) for value in row if value != ""]
            if cells:
                text.add("\t".join(cells) + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)


def _read_rtf(content: bytes, text: _Text, depth: int) -> None:
    text.add(rtf_to_text(content.decode("latin-1"), errors="ignore"))  # type: ignore[no-untyped-call]


def _read_html(content: bytes, text: _Text, depth: int) -> None:
    text.add(html_to_text(_decoded(content)))


def _read_text(content: bytes, text: _Text, depth: int) -> None:
    if content.lstrip().startswith(b"-----BEGIN PGP MESSAGE-----"):
        raise _Unreadable(Unread.ENCRYPTED)
    text.add(_decoded(content))


def _decoded(content: bytes) -> str:
    is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return decode_text(content, "utf-16" if is_wide else None)[0]


def _read_mail(content: bytes, text: _Text, depth: int) -> None:
    mail = parse_mail(content)
    people = ", ".join(str(each) for each in mail.from_ + mail.to + mail.cc)
    calendars = "\n".join(each.text for each in mail.calendars)
    text.add("\n".join(filter(None, (mail.subject, people, mail.best_text, calendars))) + "\n")
    _read_members(_attached(mail), text, depth)


def _attached(mail: ParsedMail) -> Iterator[_Member]:
    for attachment in mail.attachments:
        yield _Member(attachment.filename, attachment.content, attachment.content_type)


def _read_archive(content: bytes, text: _Text, depth: int) -> None:
    if content.startswith(b"\x1f\x8b"):
        with gzip.open(BytesIO(content)) as packed:
            inner = _bounded(packed)
        if inner[257:262] == b"ustar":
            _read_archive(inner, text, depth)
        else:
            _read_members(iter([_Member("", lambda: inner)]), text, depth)
    elif content[257:262] == b"ustar":
        with tarfile.open(fileobj=BytesIO(content), mode="r:") as file:
            _read_members(_in_tar(file), text, depth)
    else:
        with zipfile.ZipFile(BytesIO(content)) as packed_files:
            _read_members(_in_zip(packed_files), text, depth)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    content: Callable[[], bytes]
    content_type: str = ""


def _in_zip(file: zipfile.ZipFile) -> Iterator[_Member]:
    for entry in file.infolist():
        if not entry.is_dir():
            yield _Member(entry.filename, lambda entry=entry: _from_zip(file, entry))  # type: ignore[misc]


def _from_zip(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.flag_bits & 1:
        raise _Unreadable(Unread.ENCRYPTED)
    with file.open(entry) as member:
        return _bounded(member)


def _in_tar(file: tarfile.TarFile) -> Iterator[_Member]:
    for entry in file:
        if entry.isfile() and (member := file.extractfile(entry)) is not None:
            yield _Member(entry.name, lambda member=member: _bounded(member))  # type: ignore[misc]


def _bounded(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    content = stream.read(_LARGEST_MEMBER + 1)
    if len(content) > _LARGEST_MEMBER:
        raise _Unreadable(Unread.TOO_LARGE, f"unpacked it has more than {_LARGEST_MEMBER >> 20} MB")
    return content


def _read_members(members: Iterator[_Member], text: _Text, depth: int) -> None:
    """All that can be read. If there is nothing, the first reason why not is the reason of the whole."""
    reasons: list[_Unreadable] = []
    has_text = bool(str(text).strip())
    for number, member in enumerate(members):
        if number >= MOST_MEMBERS or depth >= DEEPEST:
            text.notes.append(f"the first {number} files" if number else f"files nested {DEEPEST} deep are not read")
            break
        text.add(f"{member.name}\n" if member.name else "")
        try:
            found = extract(member.content(), member.name, member.content_type, depth=depth + 1)
        except _Unreadable as error:
            reasons.append(error)
            continue
        if found.unread:
            reasons.append(_Unreadable(found.unread, found.note))
            continue
        text.notes += filter(None, [found.note])
        has_text = True
        text.add(found.text + "\n")
    if reasons and not has_text:
        raise reasons[0]
    if reasons:
        text.notes.append(f"{len(reasons)} of its files cannot be read ({reasons[0].unread})")


def _read_picture(content: bytes, text: _Text, depth: int) -> None:
    raise _Unreadable(Unread.UNSUPPORTED, f"a picture; {_HOW_TO_READ_PICTURES}")


def _read_nothing(content: bytes, text: _Text, depth: int) -> None:
    is_sealed = content.startswith(b"0\x82") and b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x03" in content[:64]
    raise _Unreadable(Unread.ENCRYPTED if is_sealed else Unread.UNSUPPORTED)


_READERS: dict[DocumentKind, Callable[[bytes, _Text, int], None]] = {
    DocumentKind.PDF: _read_pdf,
    DocumentKind.WORD: _read_word,
    DocumentKind.SHEET: _read_sheet,
    DocumentKind.SLIDES: _read_slides,
    DocumentKind.OPEN_DOCUMENT: _read_open_document,
    DocumentKind.RTF: _read_rtf,
    DocumentKind.HTML: _read_html,
    DocumentKind.TEXT: _read_text,
    DocumentKind.MAIL: _read_mail,
    DocumentKind.ARCHIVE: _read_archive,
    DocumentKind.PICTURE: _read_picture,
    DocumentKind.OTHER: _read_nothing,
}
