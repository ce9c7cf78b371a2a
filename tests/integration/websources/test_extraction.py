"""A hostile document is given up within its limits, and the next one is read as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator

import pytest

from postroom.websources.extraction.model import Document
from postroom.websources.extraction.process import ExtractionLimits, Extractor
from postroom.websources.sim import hostile
from postroom.websources.sim.documents import Gazette

GAZETTE = Gazette(10, seed=3)
GOOD = Document(GAZETTE.page(GAZETTE.documents[0], {}).body, "text/html", "utf-8", "https://gazette.test/documents/1")
HUNGRY = Document(hostile.HOSTILE["/bombs/hungry.pdf"]().body, "application/pdf", None, "https://gazette.test/x.pdf")
pytestmark = pytest.mark.req("WB-13")


@pytest.fixture
async def extractor() -> AsyncIterator[Extractor]:
    opened = Extractor(ExtractionLimits(seconds=1.5, memory_bytes=400 * 1024 * 1024))
    yield opened
    await opened.close()


def _child(extractor: Extractor) -> int:
    assert extractor._child is not None
    return extractor._child.pid


async def _still_reads(extractor: Extractor) -> None:
    # On a busy machine the first document after a start may need longer than a document should.
    extractor._limits = ExtractionLimits(seconds=30)
    assert (await extractor.extract(GOOD)).title == GAZETTE.documents[0].title


async def test_documents_are_read_by_one_child_after_the_other(extractor: Extractor) -> None:
    await _still_reads(extractor)
    child = _child(extractor)
    assert child != os.getpid()
    await _still_reads(extractor)
    assert _child(extractor) == child


async def test_a_document_that_takes_too_long_is_given_up(extractor: Extractor) -> None:
    extracted = await extractor.extract(HUNGRY)
    assert extracted.text == ""
    assert extracted.problem is not None
    assert extracted.problem.startswith("given up: it takes longer than 1.5 s")
    await _still_reads(extractor)


async def test_a_document_that_takes_too_much_memory_is_given_up() -> None:
    extractor = Extractor(ExtractionLimits(seconds=60, memory_bytes=150 * 1024 * 1024))
    extracted = await extractor.extract(HUNGRY)
    assert extracted.problem is not None
    assert extracted.problem.startswith("given up")
    await _still_reads(extractor)
    await extractor.close()


async def test_a_child_whose_parent_is_gone_does_not_run_on() -> None:
    """Nobody reads its answer or kills it: the system ends it."""
    arguments = ("-I", "-m", "postroom.websources.extraction.child", str(1 << 30), "1")
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
    header = HUNGRY.header()
    await child.communicate(struct.pack(">II", len(header), len(HUNGRY.body)) + header + HUNGRY.body)
    assert child.returncode == -signal.SIGXCPU


async def test_a_child_that_dies_is_replaced(extractor: Extractor) -> None:
    await _still_reads(extractor)
    reading = asyncio.create_task(extractor.extract(HUNGRY))
    await asyncio.sleep(0.05)
    os.kill(_child(extractor), 9)
    assert (await reading).problem == "given up: it breaks whatever reads it"
    await _still_reads(extractor)


async def test_a_caller_that_goes_away_leaves_no_half_answer_behind(extractor: Extractor) -> None:
    await _still_reads(extractor)
    reading = asyncio.create_task(extractor.extract(HUNGRY))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await _still_reads(extractor)


@pytest.mark.parametrize("path", ["/bombs/deep", "/bombs/long-line", "/bombs/entities.xml", "/odd/picture"])
async def test_odd_documents_get_an_answer(extractor: Extractor, path: str) -> None:
    reply = hostile.HOSTILE[path]()
    extractor._limits = ExtractionLimits(seconds=30)
    extracted = await extractor.extract(Document(reply.body, reply.content_type.split(";")[0], None, "https://x/"))
    assert extracted.text or extracted.problem


async def test_the_child_is_replaced_after_its_share_of_documents() -> None:
    extractor = Extractor(ExtractionLimits(documents=1))
    await extractor.extract(GOOD)
    first = _child(extractor)
    await extractor.extract(GOOD)
    assert _child(extractor) != first
    await extractor.close()
