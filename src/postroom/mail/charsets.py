"""Bytes of mail to text, whatever the sender claims about them; and encoded words in headers (RFC 2047), both ways.

Never raises, never yields NULs or surrogates, takes linear time. Charset names come from strangers, so they are looked
up in a fixed table: Python's own registry would import modules, remember every unknown name for ever, and offer codecs
(`unicode_escape`, `idna`) that no mail should reach.
"""

from __future__ import annotations

import binascii
import codecs
import re
import threading
from encodings.aliases import aliases
from functools import lru_cache

_SINGLE_BYTE = (
    *(f"iso8859_{n}" for n in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)),
    *(f"cp{n}" for n in (1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258, 437, 850, 852, 855, 858, 866, 874)),
    *("koi8_r", "koi8_u", "koi8_t", "kz1048", "tis_620", "mac_roman", "mac_cyrillic", "mac_latin2", "hp_roman8"),
)
_MULTI_BYTE = (
    *("utf_8", "utf_8_sig", "utf_7", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le"),
    *("gbk", "gb18030", "hz", "big5", "big5hkscs", "cp950", "cp932", "cp949", "johab", "euc_jp", "euc_jis_2004"),
    *("euc_jisx0213", "iso2022_jp", "iso2022_jp_1", "iso2022_jp_2", "iso2022_jp_2004", "iso2022_jp_3"),
    *("iso2022_jp_ext", "iso2022_kr", "shift_jisx0213", "shift_jis_2004"),
)
# The older name is what senders write, the wider set is what they mean (the practice of browsers and mail programs).
_MEANT = {
    "ascii": "cp1252",
    "latin_1": "cp1252",
    "iso8859_1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "utf_8_sig": "utf_8",
}
_NOT_A_NAME = re.compile(r"[^a-z0-9]+")
_NAME = re.compile(r"[A-Za-z0-9._:+\- ]{1,40}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACE = "postroom.replace"
_MOST_ERRORS = 10_000
_errors = threading.local()
_UTF_8 = "utf_8"
_WESTERN = "cp1252"


def _codec_table() -> dict[str, str]:
    safe = {*_SINGLE_BYTE, *_MULTI_BYTE, *_MEANT}
    names = {alias: codec for alias, codec in aliases.items() if codec in safe} | {codec: codec for codec in safe}
    names |= {
        "utf8": _UTF_8,
        "unicode_1_1_utf_7": "utf_7",
        "ks_c_5601": "euc_kr",
        "x_sjis": "shift_jis",
        "x_gbk": "gbk",
    }
    return {_NOT_A_NAME.sub("", alias): _MEANT.get(codec, codec) for alias, codec in names.items()}


_CODECS = _codec_table()


def codec_for(charset: str) -> str | None:
    """The codec that decodes this charset, or None where we know of none."""
    return _codec_named(charset[:40])


@lru_cache(256)
def _codec_named(charset: str) -> str | None:
    return _CODECS.get(_NOT_A_NAME.sub("", charset.lower()))


def decode_text(data: bytes, charset: str | None) -> tuple[str, str | None]:
    """The text, and what was wrong with it (None when it was as declared)."""
    if data.isascii() and (charset is None or codec_for(charset) in (_UTF_8, _WESTERN)):
        return _clean(data.decode("ascii"))
    if charset is None:
        return _with_clean(*_undeclared(data))
    codec = codec_for(charset)
    if codec is None:
        text, _ = _undeclared(data)
        return _with_clean(text, f"charset {_shown(charset)} is unknown")
    return _with_clean(*_declared(data, codec, charset))


def guess_text(data: bytes) -> str:
    """Text of undeclared 8-bit data: UTF-8 where it is valid, Western otherwise."""
    return _clean(_undeclared(data)[0])[0]


def _undeclared(data: bytes) -> tuple[str, str | None]:
    try:
        return data.decode(_UTF_8), None
    except UnicodeDecodeError:
        return _western(data), "8-bit text without a charset that is not UTF-8"


def _declared(data: bytes, codec: str, charset: str) -> tuple[str, str | None]:
    problem = f"text is not in its declared charset {_shown(charset)}"
    if codec == _WESTERN:
        # Western codecs accept nearly anything; valid UTF-8 with a multi-byte sequence is hardly ever an accident.
        try:
            return data.decode(_UTF_8), problem
        except UnicodeDecodeError:
            return _western(data), None
    try:
        text = data.decode(codec)
        return text if codec == _UTF_8 else _without_surrogates(text), None
    except (UnicodeError, ValueError):
        pass
    try:
        return data.decode(_UTF_8), problem
    except UnicodeDecodeError:
        return _mostly(data, codec), problem


def _mostly(data: bytes, codec: str) -> str:
    """What the declared codec can read of it, unless it reads less than it loses."""
    _errors.left = _MOST_ERRORS
    try:
        text = _without_surrogates(data.decode(codec, _REPLACE))
    except (UnicodeError, ValueError):
        return _western(data)
    lost = text.count("\N{REPLACEMENT CHARACTER}")
    read = len(text) - len(text.encode("ascii", "ignore")) - lost
    return text if read >= lost else _western(data)


def _replace(error: UnicodeError) -> tuple[str, int]:
    """As "replace" does, for a bounded number of times: each costs as much as decoding a page of good text."""
    _errors.left -= 1
    if _errors.left < 0 or not isinstance(error, UnicodeDecodeError):
        raise error
    return "\N{REPLACEMENT CHARACTER}", error.end


codecs.register_error(_REPLACE, _replace)


def _western(data: bytes) -> str:
    try:
        return data.decode(_WESTERN)
    except UnicodeDecodeError:
        return data.decode("latin_1")


def _without_surrogates(text: str) -> str:
    """Some codecs (UTF-7, not UTF-8) let lone surrogates through, which nothing after us could store."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text) if not text.isascii() else text


def _clean(text: str) -> tuple[str, str | None]:
    if "\0" not in text:
        return text, None
    return text.replace("\0", ""), "NUL characters were left out"


def _with_clean(text: str, problem: str | None) -> tuple[str, str | None]:
    cleaned, nul_problem = _clean(text)
    return cleaned, problem or nul_problem


def _shown(charset: str) -> str:
    """A charset name fit for a report: strangers wrote it."""
    return charset if _NAME.fullmatch(charset) else "with an impossible name"


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
