"""Whole runs against the stand-in, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.db import Database
from postroom.gmail.sim.mailbox import GeneratedMailbox
from tests.support.sync_trace import check
from tests.support.sync_world import captured_log, hurried, sync_world, truth

ME = "me@example.org"


@pytest.mark.req("SY-1", "SY-8", "SY-14")
async def test_a_sync_brings_the_whole_mailbox_and_moves_the_watermark_to_its_end(
    database: Database, tmp_path: Path
) -> None:
    async with sync_world(GeneratedMailbox(700, 1, ME), database, tmp_path) as world:
        with captured_log() as events:
            engine = await world.sync(hurried(granularity="month"))
        state = await world.state()
        assert world.archived() == truth(world.sim)
        assert not state.is_walking
        assert state.watermark == state.frontier == state.until
        progress = engine.progress()
        assert (progress.stored, progress.bad, progress.messages_total) == (700, 0, 700)
        assert state.counters["processed"] == 700
    trace = check([events])
    assert trace.watermark == state.watermark
    assert trace.moves > 1
