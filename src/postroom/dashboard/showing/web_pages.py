"""A kept web page as it may be shown: its letters, and whether they are markup. Its bytes are left as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from postroom.domain.extras import Extra, is_installed
from postroom.mail.charsets import decode_text

LONGEST = 512 << 10
_MARKUP = re.compile(rb"\s*(?:<!--|<!doctype|<html|<head|<body|<\?xml)", re.IGNORECASE)
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Kind(StrEnum):
    MARKUP = "markup"
    TEXT = "text"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Shown:
    kind: Kind
    text: str
    """Empty where the page is made of bytes and not of letters: a PDF, a picture."""
    is_cut: bool


def shown_page(body: bytes, content_type: str | None) -> Shown:
    """By what the bytes are; what the server said decides only where they do not say."""
    start = body[:LONGEST]
    if start.startswith(b"%PDF-") or (b"\0" in start[:4096] and not start.startswith(_MARKS)):
        return Shown(Kind.BYTES, "", False)
    is_markup = content_type in _HTML_TYPES or _MARKUP.match(start) is not None
    text, _ = decode_text(start, _declared(start) if is_markup else None)
    return Shown(Kind.MARKUP if is_markup else Kind.TEXT, text, len(body) > LONGEST)


def _declared(start: bytes) -> str | None:
    """The charset that the page names; a page kept before the web extra was removed is still shown, by its bytes."""
    if not is_installed(Extra.WEB):
        return None
    from w3lib.encoding import html_body_declared_encoding

    return html_body_declared_encoding(start[:4096])
