"""RFC 2047: text in headers that speaks more than ASCII, read leniently and written strictly. Linear time."""

from __future__ import annotations

import binascii
import re

from postroom.mail.charsets import decode_text

# A raw "?" inside is forbidden but common; the bounds keep the search linear on hostile input.
_WORD = re.compile(
    r"=\?([^?\s*]{1,40})(?:\*[^?\s]{0,20})?\?([bBqQ])\?([^?]{0,1000}+(?:\?(?!=)[^?]{0,1000}+){0,10}+)\?="
)
_CHUNK_BYTES = 39  # 64 characters with the envelope: a line with a word and its header's name stays within 76


def decode_words(value: str) -> str:
    """A header value with its encoded words read. What cannot be read stays as it was written."""
    if "=?" not in value:
        return value
    out: list[str] = []
    charset, end = "", 0
    pending = bytearray()
    for match in _WORD.finditer(value):
        gap = value[end : match.start()]
        data = _word_bytes(match[2], match[3])
        if data is None:
            continue
        adjacent = bool(end) and gap.isspace()
        # Senders split a character's bytes over two words, so neighbours are joined before they are decoded.
        if pending and not ((adjacent or not gap) and charset == match[1].lower()):
            out.append(decode_text(bytes(pending), charset)[0])
            pending.clear()
        if not adjacent:
            out.append(gap)
        pending += data
        charset, end = match[1].lower(), match.end()
    if pending:
        out.append(decode_text(bytes(pending), charset)[0])
    return "".join(out) + value[end:]


def _word_bytes(encoding: str, payload: str) -> bytes | None:
    try:
        raw = payload.encode("ascii")
        if encoding in "qQ":
            return binascii.a2b_qp(raw, header=True)
        return binascii.a2b_base64(raw.rstrip(b"=") + b"==")
    except (UnicodeEncodeError, binascii.Error):
        return None


def encode_words(text: str) -> list[str]:
    """The text as encoded words short enough for one line each, none of which splits a character."""
    words: list[str] = []
    chunk = b""
    for char in text:
        data = char.encode("utf-8")
        if len(chunk) + len(data) > _CHUNK_BYTES:
            words.append(_as_word(chunk))
            chunk = b""
        chunk += data
    return [*words, _as_word(chunk)] if chunk else words


def _as_word(chunk: bytes) -> str:
    return f"=?utf-8?b?{binascii.b2a_base64(chunk, newline=False).decode('ascii')}?="
