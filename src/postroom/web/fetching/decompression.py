"""Decompresses bodies within bounds of size and time."""

from __future__ import annotations

import zlib

from postroom.web.fetching.interface import BadAnswer, TooLarge, Unavailable

_GZIP, _ZLIB, _BARE = 31, 15, -15
_MOST_LAYERS = 2
_MOST_MEMBERS = 64
"""Each member of a gzip file costs a copy of the rest, so a file of empty members would take quadratic time."""
_GZIP_MAGIC = b"\x1f\x8b"


def decode_body(body: bytes, content_encoding: str, most: int) -> bytes:
    """Undo the `Content-Encoding`; the result has at most `most` bytes."""
    layers = [name.strip().lower() for name in content_encoding.split(",")]
    layers = [name for name in layers if name not in ("", "identity")]
    if len(layers) > _MOST_LAYERS:
        raise BadAnswer(f"The answer is compressed {len(layers)} times over, which no honest server does.")
    for name in reversed(layers):
        match name:
            case "gzip" | "x-gzip":
                body = gunzip(body, most)
            case "deflate":
                body = _deflated(body, most)
            case _:
                raise BadAnswer(f"The answer is encoded as {name[:40]!r}, which was not asked for.")
    return body


def gunzip(data: bytes, most: int) -> bytes:
    """All members of a gzip file, at most `most` bytes of them. What follows the last member is ignored."""
    if not data:
        return b""
    pieces: list[bytes] = []
    for _ in range(_MOST_MEMBERS):
        piece, data = _inflate(data, _GZIP, most)
        pieces.append(piece)
        most -= len(piece)
        if not data.startswith(_GZIP_MAGIC):
            return b"".join(pieces)
    raise BadAnswer("The gzip file is made of too many parts.")


def _deflated(data: bytes, most: int) -> bytes:
    """With zlib's header, as the standard says, or without it, as some servers send it."""
    if not data:
        return b""
    try:
        return _inflate(data, _ZLIB, most)[0]
    except BadAnswer:
        return _inflate(data, _BARE, most)[0]


def _inflate(data: bytes, kind: int, most: int) -> tuple[bytes, bytes]:
    """One compressed stream, and what follows it."""
    stream = zlib.decompressobj(kind)
    try:
        piece = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise BadAnswer(f"The compressed data is damaged: {error}") from None
    if len(piece) > most:
        raise TooLarge(f"Uncompressed it is larger than the {most:,} bytes that are left for it.")
    if not stream.eof:
        raise Unavailable("The compressed data is cut off.")
    return piece, stream.unused_data
