"""A message written out as the bytes that Gmail would hand over: its words, its headers and its parts."""

from __future__ import annotations

import html
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

from postroom.sim.gmail.generated.correspondents import Correspondent
from postroom.sim.gmail.generated.drafting import (
    BROKEN_DATES,
    DEEP_LEVELS,
    HUGE_CHARS,
    LetterDraft,
    LetterStyle,
    MailDefect,
)
from postroom.sim.gmail.generated.mime_parts import (
    WrittenPart,
    file_piece,
    header_text,
    mailbox_text,
    multipart,
    text_piece,
)
from postroom.sim.gmail.generated.seeded_random import SeededRandom

_STYLE = "<style>body{font-family:sans-serif;color:#222}td{padding:8px}.foot{color:#888;font-size:11px}</style>"


def paragraphs_of(letter: LetterDraft, dice: SeededRandom, *, answers: bool, huge: bool) -> list[str]:
    language = letter.language
    lines: list[str] = []
    if letter.personal:
        lines.append(language.greeting.format(name=letter.to[0].name.partition(" ")[0] or "you"))
    lines += letter.facts
    for _ in range(letter.paragraphs):
        lines.append(" ".join(dice.pick(language.sentences) for _ in range(dice.between(2, 4))))
    if huge:
        sentence = dice.pick(language.sentences)
        lines += [sentence * 20] * (HUGE_CHARS // (20 * len(sentence)))
    if letter.personal:
        lines += [language.closing, letter.sender.name.partition(" ")[0]]
    if answers and dice.chance(600):
        lines += ["", *(f"> {dice.pick(language.sentences)}" for _ in range(dice.between(1, 3)))]
    return lines


def as_html(lines: list[str], letter: LetterDraft, dice: SeededRandom) -> str:
    body = "".join(f"<p>{html.escape(line)}</p>\r\n" for line in lines if line)
    if not letter.unsubscribe:
        return f"<html><head><title>{html.escape(letter.subject)}</title></head><body>{body}</body></html>\r\n"
    pixel = f'<img src="https://{letter.sender.domain}/o/{dice.draw():x}.gif" width="1" height="1" alt="">'
    foot = f'<p class="foot"><a href="https://{letter.sender.domain}/u">Unsubscribe</a>&nbsp;&middot; {pixel}</p>'
    return (
        f"<!DOCTYPE html><html><head>{_STYLE}<!-- tracked --></head><body>"
        f"<table><tr><td>\r\n{body}</td></tr></table>{foot}</body></html>\r\n"
    )


def as_calendar(letter: LetterDraft, dice: SeededRandom) -> str:
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
    ugly: MailDefect | None


def write(letter: LetterDraft, envelope: GeneratedEnvelope, dice: SeededRandom) -> bytes:
    charset = _charset(letter, dice)
    body = _body(letter, envelope, charset, dice)
    lines = [*_transport(letter, envelope, dice), *_addressing(letter, envelope, dice), *_threading(letter, envelope)]
    head = "".join(f"{line}\r\n" for line in lines).encode("ascii")
    return b"".join((head, _subject(letter, envelope, charset), b"MIME-Version: 1.0\r\n", bytes(body)))


def _charset(letter: LetterDraft, dice: SeededRandom) -> str:
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


def _transport(letter: LetterDraft, envelope: GeneratedEnvelope, dice: SeededRandom) -> list[str]:
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


def _addressing(letter: LetterDraft, envelope: GeneratedEnvelope, dice: SeededRandom) -> list[str]:
    lines = [f"From: {mailbox_text(letter.sender)}", f"To: {_joined(letter.to)}"]
    if letter.cc:
        lines.append(f"Cc: {_joined(letter.cc)}")
    if letter.reply_to:
        lines.append(f"Reply-To: <{letter.reply_to}>")
    if envelope.ugly is MailDefect.BROKEN_DATE:
        return [*lines, f"Date: {dice.pick(BROKEN_DATES)}"]
    seconds = envelope.internal_date // 1000 - dice.between(0, 90)
    zone = timezone(timedelta(hours=dice.pick(_ZONES)))
    return [*lines, f"Date: {format_datetime(datetime.fromtimestamp(seconds, zone))}"]


def _joined(parties: tuple[Correspondent, ...]) -> str:
    return ",\r\n ".join(mailbox_text(party) for party in parties)


def _threading(letter: LetterDraft, envelope: GeneratedEnvelope) -> list[str]:
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


def _subject(letter: LetterDraft, envelope: GeneratedEnvelope, charset: str) -> bytes:
    if envelope.ugly is MailDefect.EIGHT_BIT_HEADER:
        raw = "cp1252" if _fits(letter.subject, "cp1252") else "utf-8"
        return b"Subject: " + letter.subject.encode(raw) + b"\r\n"
    return f"Subject: {header_text(letter.subject, charset)}\r\n".encode("ascii")


def _body(letter: LetterDraft, envelope: GeneratedEnvelope, charset: str, dice: SeededRandom) -> WrittenPart:
    huge = envelope.ugly is MailDefect.HUGE
    lines = paragraphs_of(letter, dice, answers=bool(envelope.references), huge=huge)
    if letter.bounce:
        return _bounce(lines, envelope, dice)
    piece = _wrapped(letter, envelope, _readable(letter, lines, envelope.ugly, charset, dice), dice)
    if envelope.ugly is MailDefect.DEEP:
        for _ in range(DEEP_LEVELS):
            piece = multipart("mixed", [piece], dice)
    return piece


def _readable(
    letter: LetterDraft, lines: list[str], ugly: MailDefect | None, charset: str, dice: SeededRandom
) -> list[WrittenPart]:
    """The body in its plain form, its HTML form, or both."""
    text = "\r\n".join(lines) + "\r\n"
    declared = ""
    if ugly is MailDefect.WRONG_CHARSET:
        text, charset, declared = f"{text}Übergrößen für Männer, schöne Grüße\r\n", "cp1252", "utf-8"
        text = text.encode("cp1252", "replace").decode("cp1252")
    elif ugly is MailDefect.UNKNOWN_CHARSET:
        declared = "x-unknown-charset"
    elif ugly is MailDefect.NUL:
        text = f"{text}\0\0\r\n"
    plain = text_piece(text, "plain", charset, dice, declared=declared, damaged=ugly is MailDefect.DAMAGED_BASE64)
    if letter.style is LetterStyle.PLAIN or (letter.style is LetterStyle.HTML and declared):
        return [plain]
    rich = text_piece(as_html(lines, letter, dice), "html", "utf-8", dice)
    return [rich] if letter.style is LetterStyle.HTML and ugly is None else [plain, rich]


def _wrapped(
    letter: LetterDraft, envelope: GeneratedEnvelope, readable: list[WrittenPart], dice: SeededRandom
) -> WrittenPart:
    """The body with what hangs on it: invitation, attachments."""
    cut = envelope.ugly is MailDefect.CUT_OFF
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
