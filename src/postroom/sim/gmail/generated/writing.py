"""A message written out as the bytes that Gmail would hand over: its words, its headers and its parts, in the many ways
in which mail programs write them.

Files are made byte by byte, so that no library version changes them.
"""

from __future__ import annotations

import base64
import binascii
import html
import struct
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from urllib.parse import quote

from postroom.sim.gmail.generated import drafting
from postroom.sim.gmail.generated.correspondents import Correspondent
from postroom.sim.gmail.generated.seeded_random import SeededRandom

_STORED_BLOCK = 65_535


def pdf(dice: SeededRandom, size: int) -> bytes:
    """A PDF of one page that holds incompressible bytes."""
    filling = dice.data(max(16, size - 300))
    return b"".join(
        (
            b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n",
            b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n",
            b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]>>endobj\n",
            b"4 0 obj<</Length %d>>stream\n" % len(filling),
            filling,
            b"\nendstream endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n",
        )
    )


def png(dice: SeededRandom, size: int) -> bytes:
    """A grey picture of noise, 64 pixels wide."""
    height = max(1, size // 65)
    rows = b"".join(b"\0" + dice.data(64) for _ in range(height))
    header = struct.pack(">IIBBBBB", 64, height, 8, 0, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", _stored(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _stored(data: bytes) -> bytes:
    """A zlib stream that compresses nothing."""
    blocks = [data[start : start + _STORED_BLOCK] for start in range(0, len(data), _STORED_BLOCK)] or [b""]
    out = [b"\x78\x01"]
    for number, block in enumerate(blocks, 1):
        out += [struct.pack("<BHH", number == len(blocks), len(block), len(block) ^ 0xFFFF), block]
    return b"".join((*out, struct.pack(">I", zlib.adler32(data))))


def zip_file(dice: SeededRandom, size: int) -> bytes:
    """An archive of one stored file."""
    name, data = b"contents.bin", dice.data(max(16, size - 150))
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0x5A21, zlib.crc32(data), len(data), len(data), len(name), 0)
    local = b"PK\x03\x04" + fields + name + data
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


MAKERS = {"application/pdf": pdf, "image/png": png, "application/zip": zip_file}


_SPECIAL = frozenset('",:;<>@()[]\\')
_WORD_CHARS = 10  # short enough for any charset to stay within an encoded word's 75 characters


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part: its Content headers and its body."""

    headers: bytes
    body: bytes

    def __bytes__(self) -> bytes:
        return self.headers + b"\r\n" + self.body


def header_text(text: str, charset: str) -> str:
    """ASCII as it is, anything else as encoded words in this charset."""
    if text.isascii():
        return text
    chunks = (text[start : start + _WORD_CHARS] for start in range(0, len(text), _WORD_CHARS))
    words = (f"=?{charset}?b?{base64.b64encode(chunk.encode(charset)).decode()}?=" for chunk in chunks)
    return "\r\n ".join(words)


def mailbox_text(party: Correspondent) -> str:
    if not party.name:
        return party.address
    name = party.name
    if _SPECIAL & set(name):
        return f'"{name}" <{party.address}>'
    return f"{header_text(name, 'utf-8')} <{party.address}>"


def text_piece(
    text: str, subtype: str, charset: str, dice: SeededRandom, *, declared: str = "", damaged: bool = False
) -> WrittenPart:
    data = text.encode(charset)
    encoding = "base64" if damaged else _transfer_encoding(data, charset, dice)
    if encoding == "base64":
        body = base64.encodebytes(data).replace(b"\n", b"\r\n")
    elif encoding == "quoted-printable":
        body = binascii.b2a_qp(data, istext=True)
    else:
        body = data
    if damaged:
        # One digit too many: six bits that make no byte.
        body = body.rstrip(b"=\r\n")
        body += b"A" * ((1 - len(b"".join(body.split()))) % 4)
    head = f"Content-Type: text/{subtype}; charset={declared or charset}\r\nContent-Transfer-Encoding: {encoding}\r\n"
    return WrittenPart(head.encode("ascii"), body)


def _transfer_encoding(data: bytes, charset: str, dice: SeededRandom) -> str:
    if charset == "iso-2022-jp" or (data.isascii() and dice.chance(700)):
        return "7bit"
    return dice.pick(("quoted-printable", "quoted-printable", "base64", "8bit"))


def file_piece(file: drafting.AttachedFile, dice: SeededRandom) -> WrittenPart:
    content = MAKERS[file.content_type](dice, file.size)
    disposition = "inline" if file.inline else "attachment"
    head = (
        f"Content-Type: {file.content_type}\r\nContent-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: {disposition}; {_file_name(file.name, dice)}\r\n"
    )
    return WrittenPart(head.encode("ascii"), base64.encodebytes(content).replace(b"\n", b"\r\n"))


def _file_name(name: str, dice: SeededRandom) -> str:
    if name.isascii():
        return f'filename="{name}"'
    if dice.chance(500):
        return f"filename*=utf-8''{quote(name)}"
    return f'filename="=?utf-8?b?{base64.b64encode(name.encode()).decode()}?="'


def multipart(
    kind: str, pieces: list[WrittenPart], dice: SeededRandom, *, closed: bool = True, extra: str = ""
) -> WrittenPart:
    boundary = f"=_{dice.draw():016x}"
    line = f"--{boundary}".encode("ascii")
    body = b"".join(line + b"\r\n" + bytes(piece) + b"\r\n" for piece in pieces) + (line + b"--\r\n" if closed else b"")
    return WrittenPart(f'Content-Type: multipart/{kind}; boundary="{boundary}"{extra}\r\n'.encode("ascii"), body)


_STYLE = "<style>body{font-family:sans-serif;color:#222}td{padding:8px}.foot{color:#888;font-size:11px}</style>"


def paragraphs_of(letter: drafting.LetterDraft, dice: SeededRandom, *, answers: bool, huge: bool) -> list[str]:
    language = letter.language
    lines: list[str] = []
    if letter.personal:
        lines.append(language.greeting.format(name=letter.to[0].name.partition(" ")[0] or "you"))
    lines += letter.facts
    for _ in range(letter.paragraphs):
        lines.append(" ".join(dice.pick(language.sentences) for _ in range(dice.between(2, 4))))
    if huge:
        sentence = dice.pick(language.sentences)
        lines += [sentence * 20] * (drafting.HUGE_CHARS // (20 * len(sentence)))
    if letter.personal:
        lines += [language.closing, letter.sender.name.partition(" ")[0]]
    if answers and dice.chance(600):
        lines += ["", *(f"> {dice.pick(language.sentences)}" for _ in range(dice.between(1, 3)))]
    return lines


def as_html(lines: list[str], letter: drafting.LetterDraft, dice: SeededRandom) -> str:
    body = "".join(f"<p>{html.escape(line)}</p>\r\n" for line in lines if line)
    if not letter.unsubscribe:
        return f"<html><head><title>{html.escape(letter.subject)}</title></head><body>{body}</body></html>\r\n"
    pixel = f'<img src="https://{letter.sender.domain}/o/{dice.draw():x}.gif" width="1" height="1" alt="">'
    foot = f'<p class="foot"><a href="https://{letter.sender.domain}/u">Unsubscribe</a>&nbsp;&middot; {pixel}</p>'
    return (
        f"<!DOCTYPE html><html><head>{_STYLE}<!-- tracked --></head><body>"
        f"<table><tr><td>\r\n{body}</td></tr></table>{foot}</body></html>\r\n"
    )


def as_calendar(letter: drafting.LetterDraft, dice: SeededRandom) -> str:
    start = f"20{dice.between(17, 26)}{dice.between(1, 12):02d}{dice.between(1, 28):02d}T{dice.between(8, 18):02d}0000Z"
    lines = (
        *("BEGIN:VCALENDAR", "PRODID:-//Postroom//Stand-in//EN", "VERSION:2.0", "METHOD:REQUEST", "BEGIN:VEVENT"),
        *(f"UID:{dice.draw():016x}@{letter.sender.domain}", f"DTSTAMP:{start}", f"DTSTART:{start}", "DURATION:PT1H"),
        *(f"SUMMARY:{letter.subject}", f"ORGANIZER:mailto:{letter.sender.address}", "END:VEVENT", "END:VCALENDAR", ""),
    )
    return "\r\n".join(lines)


_ZONES = (-8, -5, 0, 0, 1, 1, 1, 2, 3, 8, 9)


@dataclass(frozen=True, slots=True)
class GeneratedEnvelope:
    """What a letter gets when it takes its place in the mailbox."""

    owner: Correspondent
    internal_date: int
    message_id: str
    references: tuple[str, ...]
    ugly: drafting.MailDefect | None


def write(letter: drafting.LetterDraft, envelope: GeneratedEnvelope, dice: SeededRandom) -> bytes:
    charset = _charset(letter, dice)
    body = _body(letter, envelope, charset, dice)
    lines = [*_transport(letter, envelope, dice), *_addressing(letter, envelope, dice), *_threading(letter, envelope)]
    head = "".join(f"{line}\r\n" for line in lines).encode("ascii")
    return b"".join((head, _subject(letter, envelope, charset), b"MIME-Version: 1.0\r\n", bytes(body)))


def _charset(letter: drafting.LetterDraft, dice: SeededRandom) -> str:
    """One of the language's charsets; UTF-8 where names or facts do not fit into it."""
    charset = dice.pick(letter.language.charsets)
    text = "".join((letter.subject, *letter.facts, letter.sender.name, letter.to[0].name))
    return charset if _fits(text, charset) else "utf-8"


def _fits(text: str, charset: str) -> bool:
    try:
        text.encode(charset)
    except UnicodeEncodeError:
        return False
    return True


def _transport(letter: drafting.LetterDraft, envelope: GeneratedEnvelope, dice: SeededRandom) -> list[str]:
    """What the servers on the way have added; the owner's own mail has come no way."""
    if letter.sent:
        return []
    domain, address = letter.sender.domain, letter.sender.address
    received = format_datetime(datetime.fromtimestamp(envelope.internal_date // 1000, UTC))
    host = f"203.0.113.{dice.below(256)}"
    spf = f"spf={'fail' if letter.forged else 'pass'} (sender IP is {host}) smtp.mailfrom={address}"
    dkim = "dkim=none" if letter.forged else f"dkim=pass header.i=@{domain} header.s=s{dice.below(9)}"
    dmarc = f"dmarc={'fail' if letter.forged else 'pass'} header.from={domain}"
    lines = [
        f"Delivered-To: {envelope.owner.address}",
        f"Received: from mail.{domain} (mail.{domain} [{host}])\r\n        by mx.google.com with ESMTPS id "
        f"{dice.draw():016x}\r\n        for <{envelope.owner.address}>; {received}",
        f"Authentication-Results: mx.google.com;\r\n       {dkim};\r\n       {spf};\r\n       {dmarc}",
        f"Return-Path: <{address}>",
    ]
    if letter.forged and dice.chance(400):
        # Written by the forger; only the topmost verdict is the receiving server's.
        lines.append(f"Authentication-Results: mx.google.com; dkim=pass header.i=@{domain}; spf=pass; dmarc=pass")
    return lines


def _addressing(letter: drafting.LetterDraft, envelope: GeneratedEnvelope, dice: SeededRandom) -> list[str]:
    lines = [f"From: {mailbox_text(letter.sender)}", f"To: {_joined(letter.to)}"]
    if letter.cc:
        lines.append(f"Cc: {_joined(letter.cc)}")
    if letter.reply_to:
        lines.append(f"Reply-To: <{letter.reply_to}>")
    if envelope.ugly is drafting.MailDefect.BROKEN_DATE:
        return [*lines, f"Date: {dice.pick(drafting.BROKEN_DATES)}"]
    seconds = envelope.internal_date // 1000 - dice.between(0, 90)
    zone = timezone(timedelta(hours=dice.pick(_ZONES)))
    return [*lines, f"Date: {format_datetime(datetime.fromtimestamp(seconds, zone))}"]


def _joined(parties: tuple[Correspondent, ...]) -> str:
    return ",\r\n ".join(mailbox_text(party) for party in parties)


def _threading(letter: drafting.LetterDraft, envelope: GeneratedEnvelope) -> list[str]:
    lines: list[str] = []
    if envelope.message_id:
        lines.append(f"Message-ID: {envelope.message_id}")
    if envelope.references:
        lines.append(f"In-Reply-To: {envelope.references[-1]}")
        lines.append("References: " + "\r\n ".join(envelope.references))
    for name, value in (
        ("List-ID", letter.list_id),
        ("List-Unsubscribe", letter.unsubscribe),
        ("Precedence", letter.precedence),
        ("Auto-Submitted", letter.auto_submitted),
    ):
        if value:
            lines.append(f"{name}: {value}")
    return lines


def _subject(letter: drafting.LetterDraft, envelope: GeneratedEnvelope, charset: str) -> bytes:
    if envelope.ugly is drafting.MailDefect.EIGHT_BIT_HEADER:
        raw = "cp1252" if _fits(letter.subject, "cp1252") else "utf-8"
        return b"Subject: " + letter.subject.encode(raw) + b"\r\n"
    return f"Subject: {header_text(letter.subject, charset)}\r\n".encode("ascii")


def _body(letter: drafting.LetterDraft, envelope: GeneratedEnvelope, charset: str, dice: SeededRandom) -> WrittenPart:
    huge = envelope.ugly is drafting.MailDefect.HUGE
    lines = paragraphs_of(letter, dice, answers=bool(envelope.references), huge=huge)
    if letter.bounce:
        return _bounce(lines, envelope, dice)
    piece = _wrapped(letter, envelope, _readable(letter, lines, envelope.ugly, charset, dice), dice)
    if envelope.ugly is drafting.MailDefect.DEEP:
        for _ in range(drafting.DEEP_LEVELS):
            piece = multipart("mixed", [piece], dice)
    return piece


def _readable(
    letter: drafting.LetterDraft, lines: list[str], ugly: drafting.MailDefect | None, charset: str, dice: SeededRandom
) -> list[WrittenPart]:
    """The body in its plain form, its HTML form, or both."""
    text = "\r\n".join(lines) + "\r\n"
    declared = ""
    if ugly is drafting.MailDefect.WRONG_CHARSET:
        text, charset, declared = f"{text}Übergrößen für Männer, schöne Grüße\r\n", "cp1252", "utf-8"
        text = text.encode("cp1252", "replace").decode("cp1252")
    elif ugly is drafting.MailDefect.UNKNOWN_CHARSET:
        declared = "x-unknown-charset"
    elif ugly is drafting.MailDefect.NUL:
        text = f"{text}\0\0\r\n"
    plain = text_piece(
        text, "plain", charset, dice, declared=declared, damaged=ugly is drafting.MailDefect.DAMAGED_BASE64
    )
    if letter.style is drafting.LetterStyle.PLAIN or (letter.style is drafting.LetterStyle.HTML and declared):
        return [plain]
    rich = text_piece(as_html(lines, letter, dice), "html", "utf-8", dice)
    return [rich] if letter.style is drafting.LetterStyle.HTML and ugly is None else [plain, rich]


def _wrapped(
    letter: drafting.LetterDraft, envelope: GeneratedEnvelope, readable: list[WrittenPart], dice: SeededRandom
) -> WrittenPart:
    """The body with what hangs on it: invitation, attachments."""
    cut = envelope.ugly is drafting.MailDefect.CUT_OFF
    outer: list[WrittenPart] = []
    if letter.invitation:
        calendar = as_calendar(letter, dice)
        invite = text_piece(calendar, "calendar", "utf-8", dice)
        readable = [
            *readable,
            WrittenPart(invite.headers.replace(b"text/calendar;", b"text/calendar; method=REQUEST;"), invite.body),
        ]
        attached = text_piece(calendar, "calendar", "utf-8", dice)
        outer.append(
            WrittenPart(attached.headers + b'Content-Disposition: attachment; filename="invite.ics"\r\n', attached.body)
        )
    outer += [file_piece(file, dice) for file in letter.files]
    if len(readable) == 1 and not outer and not cut:
        return readable[0]
    inner = (
        readable[0] if len(readable) == 1 else multipart("alternative", readable, dice, closed=not cut or bool(outer))
    )
    if not outer and len(readable) > 1:
        return inner
    return multipart("mixed", [inner, *outer], dice, closed=not cut)


def _bounce(lines: list[str], envelope: GeneratedEnvelope, dice: SeededRandom) -> WrittenPart:
    status = b"Reporting-MTA: dns; mx.google.com\r\n\r\nAction: failed\r\nStatus: 5.1.1\r\n"
    lost = f"From: {envelope.owner.address}\r\nTo: nobody@gone.example\r\nSubject: Hello\r\n\r\nAre you there?\r\n"
    pieces = [
        text_piece("\r\n".join(lines) + "\r\n", "plain", "utf-8", dice),
        WrittenPart(b"Content-Type: message/delivery-status\r\n", status),
        WrittenPart(b"Content-Type: message/rfc822\r\n", lost.encode("ascii")),
    ]
    return multipart("report", pieces, dice, extra="; report-type=delivery-status")
