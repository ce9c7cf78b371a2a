"""The reader's process: documents in on standard input, what they say out on standard output, within hard limits.

It may use so much memory and no more, write no file and start no process. Its parent kills it when a document takes too
long; should the parent be gone by then, the system does.
"""

from __future__ import annotations

import logging
import resource
import struct
import sys
from contextlib import suppress
from typing import BinaryIO

from postroom.websources.extraction.model import Document, Extracted
from postroom.websources.extraction.reading import read_document

READY = b"ready"
_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")


def main(memory_bytes: int, seconds: int) -> None:
    logging.disable(logging.CRITICAL)
    _limit(memory_bytes)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    _send(outgoing, READY)
    while (document := _receive(incoming)) is not None:
        _limit_time(seconds)
        try:
            extracted = read_document(document)
        except MemoryError:
            _send(outgoing, _given_up(f"it needs more than the {memory_bytes // 1_048_576} MB that one document may"))
            return  # what is left of this process is not to be trusted
        except RecursionError:
            extracted = Extracted("none", problem="given up: it is nested too deeply")
        except Exception as error:
            extracted = Extracted("none", problem=f"cannot be read: {type(error).__name__}: {str(error)[:200]}")
        _send(outgoing, extracted.encoded())


def _limit(memory_bytes: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        with suppress(ValueError, OSError):  # not every system knows every limit; the time limit holds everywhere
            resource.setrlimit(what, (most, most))


def _limit_time(seconds: int) -> None:
    """So much processor time from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 1, hard))


def _given_up(why: str) -> bytes:
    return Extracted("none", problem=f"given up: {why}").encoded()


def _receive(incoming: BinaryIO) -> Document | None:
    sizes = incoming.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    header, body = _SIZES.unpack(sizes)
    return Document.read(incoming.read(header), incoming.read(body))


def _send(outgoing: BinaryIO, answer: bytes) -> None:
    outgoing.write(_SIZE.pack(len(answer)) + answer)
    outgoing.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
