"""A message passed on whole, as a new conversation: a note, who wrote what and when, and below it the message with its
HTML, its pictures and its files, each in the bytes that it came in. Pure.

A message that taking it apart would spoil, or that cannot be taken apart for certain, is enclosed as it is.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import unquote_to_bytes

from postroom.mail.addresses import Address
from postroom.mail.composing import (
    CHARSET,
    MEDIA_TYPE,
    MESSAGE_ID,
    WHOLE_MESSAGE,
    HtmlBytes,
    OutgoingAttachment,
    OutgoingMail,
    marked_subject,
)
from postroom.mail.mime import MimePart, attachment_of, decode_transfer, transfer_encoding_of
from postroom.mail.parsing import MAX_TEXT_BYTES, ParsedMail, is_body, leaves_of

_SEALED = re.compile(r"(?i)\s*(multipart/(signed|encrypted)|application/(x-)?pkcs7-mime)\b")
_MARK = re.compile(r"(?i)^\s*(fwd?|wg|tr)\s*:")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CID = re.compile(rb"(?i)cid:([^\s\"'<>()]{1,990})")


@dataclass(frozen=True, slots=True)
class ForwardNote:
    """What its sender writes above a forward."""

    text: str = ""
    html: str | None = None


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A message taken apart, with nothing left out."""

    html: HtmlBytes | None
    files: tuple[OutgoingAttachment, ...]


def forward_of(
    original: ParsedMail,
    raw: bytes,
    *,
    from_: Address,
    to: tuple[Address, ...],
    cc: tuple[Address, ...] = (),
    subject: str | None = None,
    note: ForwardNote | None = None,
    attachments: tuple[OutgoingAttachment, ...] = (),
    extra_headers: tuple[tuple[str, str], ...] = (),
) -> OutgoingMail:
    """`raw` is the original, exactly as it came; `attachments` are sent along with it."""
    note = note or ForwardNote()
    pieces = None if travels_whole(original) else _taken_apart(raw)
    head = _introduction(original)
    html: str | HtmlBytes | None
    if pieces is None:
        quoted, html = "", _html_around(note, head, "")
        carried: tuple[OutgoingAttachment, ...] = (OutgoingAttachment("forwarded message.eml", WHOLE_MESSAGE, raw),)
    else:
        quoted, carried = f"\n\n{original.best_text}", pieces.files
        html = _html_of(note, head, pieces, original)
    return OutgoingMail(
        from_=from_,
        to=to,
        cc=cc,
        subject=subject or marked_subject("Fwd:", original.subject, _MARK),
        text=f"{note.text}\n\n{head}{quoted}".lstrip("\n"),
        html=html,
        attachments=(*carried, *attachments),
        extra_headers=extra_headers,
    )


def travels_whole(original: ParsedMail) -> bool:
    """Whether taking the message apart would spoil it: it could not be read, is signed or encrypted, invites to a
    meeting, holds messages of its own, or has nothing that could be quoted."""
    if original.trouble or _SEALED.match(original.headers.get("Content-Type") or "") or original.calendars:
        return True
    holds_mail = any(attachment.content_type.startswith("message/") for attachment in original.attachments)
    return holds_mail or not (original.best_text.strip() or original.attachments)


def _taken_apart(raw: bytes) -> _Pieces | None:
    """None where something would be lost or shown in another place than before."""
    problems: list[str] = []
    leaves = leaves_of(raw, problems)
    bodies = [part for part in leaves if is_body(part)]
    pages = [part for part in bodies if part.content_type == "text/html"]
    texts = [part for part in bodies if part.content_type == "text/plain"]
    if problems or not _are_one_body(pages, texts):
        return None
    html = _page(pages[0], problems) if pages else None
    shown = _shown(html)
    rest = [part for part in leaves if not is_body(part)]
    files = tuple(_file(number, part, shown, problems) for number, part in enumerate(rest, 1))
    return None if problems else _Pieces(html, files)


def _are_one_body(pages: Sequence[MimePart], texts: Sequence[MimePart]) -> bool:
    """Whether there is one page, or plain text, or both as two forms of the same."""
    if sum(part.end - part.start for part in texts) > MAX_TEXT_BYTES:
        return False
    if not pages or not texts:
        return len(pages) <= 1
    is_pair = len(pages) == len(texts) == 1
    return is_pair and texts[0].alternative is not None and texts[0].alternative == pages[0].alternative


def _page(part: MimePart, problems: list[str]) -> HtmlBytes:
    content, problem = decode_transfer(part.body, transfer_encoding_of(part))
    charset = part.parameters.get("charset") or None
    if problem or not _is_like_ascii(charset) or bytes(content[:2]) in _UTF_16:
        problems.append(problem or "no ASCII can stand before this page")
    return HtmlBytes(bytes(content), charset)


def _is_like_ascii(charset: str | None) -> bool:
    """Whether ASCII may stand before a text in this charset."""
    if charset is None:
        return True
    if not CHARSET.fullmatch(charset):
        return False
    try:
        return "<a> &#1;".encode(charset) == b"<a> &#1;"
    except (LookupError, ValueError):
        return False


def _shown(html: HtmlBytes | None) -> frozenset[bytes]:
    """The Content-IDs that the page refers to."""
    return frozenset(unquote_to_bytes(found) for found in _CID.findall(html.content)) if html else frozenset()


def _file(number: int, part: MimePart, shown: frozenset[bytes], problems: list[str]) -> OutgoingAttachment:
    found = attachment_of(part, problems)
    kind = found.content_type if MEDIA_TYPE.fullmatch(found.content_type) else "application/octet-stream"
    cid = f"<{found.content_id}>"
    is_shown = MESSAGE_ID.fullmatch(cid) is not None and found.content_id.encode("utf-8", "replace") in shown
    charset = part.parameters.get("charset") or None
    return OutgoingAttachment(
        found.filename or f"attachment-{number}",
        kind,
        found.content(),
        content_id=cid if is_shown else None,
        charset=charset if _is_like_ascii(charset) else None,
    )


def _html_of(note: ForwardNote, head: str, pieces: _Pieces, original: ParsedMail) -> HtmlBytes | str | None:
    if pieces.html is None:
        return _html_around(note, head, f"<pre>{escape(original.best_text)}</pre>\n")
    above = _above(note.html or _as_html(note.text), head).encode("ascii", "xmlcharrefreplace")
    return HtmlBytes(above + pieces.html.content, pieces.html.charset)


def _html_around(note: ForwardNote, head: str, below: str) -> str | None:
    """Where the original has no HTML, there is only as much as the note asks for."""
    return None if note.html is None else _above(note.html, head) + below


def _above(note: str, head: str) -> str:
    return f"<div>{note}</div>\n<br>\n<div>{_as_html(head)}</div>\n<br>\n"


def _as_html(text: str) -> str:
    return escape(text).replace("\n", "<br>\n")


def _introduction(original: ParsedMail) -> str:
    lines = ["---------- Forwarded message ---------", f"From: {_listed(original.from_)}"]
    if original.date is not None:
        lines.append(f"Date: {original.date:%Y-%m-%d %H:%M} UTC")
    lines += [f"Subject: {original.subject}", f"To: {_listed(original.to)}"]
    return "\n".join(lines + ([f"Cc: {_listed(original.cc)}"] if original.cc else []))


def _listed(addresses: tuple[Address, ...]) -> str:
    return ", ".join(str(address) for address in addresses)
