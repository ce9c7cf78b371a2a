"""Raw bytes made small, and back to exactly what they were.

Large attachments are cut out as they stand in the message, still encoded, and stored once for all messages that carry
them. Cutting is by position and never by meaning, so putting them back gives the same bytes whatever the message is.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import zstandard

from postroom.domain.errors import Fatal

PLAIN, ZSTD = "plain", "zstd"
LARGE_BYTES = 64 << 10
_LEVEL = 3
_of_thread = threading.local()
_LARGEST_UNPACKED = 1 << 31  # a damaged header must not make us allocate the machine


def _compressor() -> zstandard.ZstdCompressor:
    """One for each thread: making one costs more than most messages take, and they cannot be shared."""
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return cast(zstandard.ZstdCompressor, _of_thread.compressor)


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = zstandard.ZstdDecompressor()
    return cast(zstandard.ZstdDecompressor, _of_thread.decompressor)


class Packed(NamedTuple):
    codec: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece that was taken out, and where it belongs in what is left."""

    position: int
    content: bytes

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.content).digest()


def pack(data: bytes) -> Packed:
    compressed = _compressor().compress(data)
    return Packed(ZSTD, compressed) if len(compressed) < len(data) else Packed(PLAIN, data)


def unpack(packed: Packed) -> bytes:
    if packed.codec == PLAIN:
        return packed.data
    if packed.codec != ZSTD:
        raise Fatal(f"stored bytes are packed as {packed.codec!r}, which this Postroom does not know; upgrade it")
    try:
        return _decompressor().decompress(packed.data, max_output_size=_LARGEST_UNPACKED)
    except zstandard.ZstdError as error:
        raise Fatal(f"stored bytes cannot be unpacked: {error}") from error


def cut(raw: bytes, parts: Iterable[tuple[int, int]]) -> tuple[bytes, list[Cut]]:
    """Take the large ones of these parts (where they start and end, in order) out of it."""
    rest: list[bytes] = []
    cuts: list[Cut] = []
    done = kept = 0
    for start, end in parts:
        if end - start < LARGE_BYTES or start < done:
            continue
        rest.append(raw[done:start])
        kept += start - done
        cuts.append(Cut(kept, raw[start:end]))
        done = end
    rest.append(raw[done:])
    return b"".join(rest), cuts


def join(rest: bytes, cuts: Sequence[Cut]) -> bytes:
    """Put the pieces back; they come in the order in which they were cut."""
    parts: list[bytes] = []
    done = 0
    for piece in cuts:
        parts += (rest[done : piece.position], piece.content)
        done = piece.position
    parts.append(rest[done:])
    return b"".join(parts)
