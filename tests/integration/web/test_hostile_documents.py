"""A hostile document is given up within its limits, and the next one is read as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from postroom.domain.errors import Retryable
from postroom.reading.limited import LimitedReader, ReadingLimits
from postroom.sim.web import hostile
from postroom.sim.web.gazette import Gazette
from postroom.web.extraction.web_reader import WebDocument, WebReader

GAZETTE = Gazette(10, seed=3)
GOOD = WebDocument(
    GAZETTE.page(GAZETTE.documents[0], {}).body, "text/html", "utf-8", "https://gazette.test/documents/1"
)
HUNGRY = WebDocument(hostile.HOSTILE["/bombs/hungry.pdf"]().body, "application/pdf", None, "https://gazette.test/x.pdf")
pytestmark = pytest.mark.req("WB-13", "HW-2")


@pytest.fixture
def limited() -> Iterator[LimitedReader]:
    opened = LimitedReader()
    yield opened
    opened.close()


def _child(limited: LimitedReader) -> int:
    [child] = limited._children
    return child.pid


async def _reads(
    limited: LimitedReader, document: WebDocument = GOOD, limits: ReadingLimits | None = None
) -> str | None:
    """What is wrong with the document."""
    return (await WebReader(limits or ReadingLimits(), limited).extract(document)).problem


async def _still_reads(limited: LimitedReader) -> None:
    assert (await WebReader(reader=limited).extract(GOOD)).title == GAZETTE.documents[0].title


async def _begun(limited: LimitedReader) -> None:
    while limited._idle or not limited._busy:
        await asyncio.sleep(0)


async def test_documents_are_read_by_one_child_after_the_other(limited: LimitedReader) -> None:
    await _still_reads(limited)
    child = _child(limited)
    assert child != os.getpid()
    await _still_reads(limited)
    assert _child(limited) == child


async def test_a_document_that_takes_too_long_is_given_up(limited: LimitedReader) -> None:
    slow = ReadingLimits(wall_seconds=0.5)
    assert await _reads(limited, HUNGRY, slow) == "given up: it takes longer than 0.5 s to read"
    busy = ReadingLimits(cpu_seconds=0.3)
    assert await _reads(limited, HUNGRY, busy) == "given up: it takes more than 0.3 s of processor time to read"
    await _still_reads(limited)


async def test_a_document_that_takes_too_much_memory_is_given_up(limited: LimitedReader) -> None:
    """And the next, innocent one is read, by another child."""
    await _still_reads(limited)
    child = _child(limited)
    problem = await _reads(limited, HUNGRY, ReadingLimits(memory_bytes=50 * 1024 * 1024))
    assert problem == "given up: it needs more memory than one reading may use"
    await _still_reads(limited)
    assert _child(limited) != child


async def test_a_child_that_dies_at_once_is_replaced(limited: LimitedReader) -> None:
    reading = asyncio.create_task(_reads(limited, HUNGRY))
    while not limited._children:
        await asyncio.sleep(0)
    await asyncio.to_thread(_kill_while_reading, limited)
    assert await reading == "given up: it breaks whatever reads it"
    await _still_reads(limited)


def _kill_while_reading(limited: LimitedReader) -> None:
    [child] = limited._children
    while not child._has_read:
        pass
    os.kill(child.pid, 9)


async def test_a_caller_that_goes_away_leaves_no_half_answer_behind(limited: LimitedReader) -> None:
    await _still_reads(limited)
    reading = asyncio.create_task(_reads(limited, HUNGRY))
    await _begun(limited)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await _still_reads(limited)


async def test_a_broken_installation_is_told_with_what_the_child_said() -> None:
    broken = LimitedReader(program=(*LimitedReader()._program[:2], "-c", "import lxml_html_clean_is_missing"))
    with pytest.raises(Retryable, match="No module named 'lxml_html_clean_is_missing'"):
        await WebReader(reader=broken).extract(GOOD)
    broken.close()


@pytest.mark.parametrize("path", ["/bombs/deep", "/bombs/long-line", "/bombs/entities.xml", "/odd/picture"])
async def test_odd_documents_get_an_answer(path: str) -> None:
    reply = hostile.HOSTILE[path]()
    document = WebDocument(reply.body, reply.content_type.split(";")[0], None, "https://x/")
    extracted = await WebReader().extract(document)
    assert extracted.text or extracted.problem
