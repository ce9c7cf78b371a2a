"""Has documents read by a child process that is killed when one takes too long, and replaced when one breaks it.

Every document gets an answer: what it says, or a note on why that could not be found out.
"""

from __future__ import annotations

import asyncio
import math
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass

from postroom.domain.errors import Retryable
from postroom.telemetry import logs
from postroom.websources.extraction.model import Document, Extracted

log = logs.get(__name__)

_MODULE = "postroom.websources.extraction.child"
_START_S = 60.0
_LARGEST_ANSWER = 64 * 1024 * 1024
_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class ExtractionLimits:
    """What one document may cost."""

    seconds: float = 20.0
    memory_bytes: int = 1024 * 1024 * 1024
    documents: int = 500
    """After so many the child is replaced: libraries leak."""


class Extractor:
    def __init__(self, limits: ExtractionLimits = ExtractionLimits()) -> None:  # noqa: B008 - frozen
        self._limits = limits
        self._child: Process | None = None
        self._left = 0
        self._lock = asyncio.Lock()

    async def extract(self, document: Document) -> Extracted:
        async with self._lock:
            child = await self._ready_child()
            try:
                async with asyncio.timeout(self._limits.seconds):
                    answer = await _converse(child, document)
                self._left -= 1
                return Extracted.decode(answer)
            except TimeoutError:
                await self._end()
                return _given_up(document, f"it takes longer than {self._limits.seconds:g} s to read")
            except (asyncio.IncompleteReadError, ConnectionError):
                await self._end()
                return _given_up(document, "it breaks whatever reads it")
            except asyncio.CancelledError:
                await self._end()  # in the middle of an answer: nothing more can be asked of this child
                raise

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    async def _ready_child(self) -> Process:
        if self._child is not None and self._child.returncode is None and self._left > 0:
            return self._child
        await self._end()
        limits = (str(self._limits.memory_bytes), str(math.ceil(self._limits.seconds)))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", _MODULE, *limits),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={},
        )
        self._child, self._left = child, self._limits.documents
        try:
            async with asyncio.timeout(_START_S):
                await _answer(child)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await self._end()
            raise Retryable("The process that reads pages does not start; is there enough memory?") from error
        return child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def _converse(child: Process, document: Document) -> bytes:
    if child.stdin is None:
        raise ConnectionError("the child has no standard input")
    header = document.header()
    child.stdin.write(_SIZES.pack(len(header), len(document.body)) + header)
    child.stdin.write(document.body)
    await child.stdin.drain()
    return await _answer(child)


async def _answer(child: Process) -> bytes:
    if child.stdout is None:
        raise ConnectionError("the child has no standard output")
    (size,) = _SIZE.unpack(await child.stdout.readexactly(_SIZE.size))
    if size > _LARGEST_ANSWER:
        raise ConnectionError("the child's answer makes no sense")
    return await child.stdout.readexactly(size)


def _given_up(document: Document, why: str) -> Extracted:
    log.warning("web.extraction_given_up", content_type=document.content_type, bytes=len(document.body), reason=why)
    return Extracted("none", problem=f"given up: {why}")
