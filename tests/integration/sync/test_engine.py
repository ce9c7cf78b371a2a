"""Whole runs against the stand-in, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.db import Database
from tests.support.sync_trace import check
from tests.support.sync_world import captured_log, letters, served_world, settings_with


@pytest.mark.req("SY-1", "SY-8", "SY-14")
async def test_a_sync_brings_the_whole_mailbox_and_moves_the_watermark_to_its_end(
    database: Database, tmp_path: Path
) -> None:
    async with served_world(letters(300), database, tmp_path) as world:
        with captured_log() as events:
            engine = await world.sync(settings_with(granularity="week"))
        state = await world.state()
        assert world.archived() == world.truth()
        assert not state.is_walking
        assert state.watermark == state.frontier == state.until
        progress = engine.progress()
        assert (progress.stored, progress.bad, progress.messages_total) == (300, 0, 300)
        assert state.counters["processed"] == 300
    trace = check([events])
    assert trace.watermark == state.watermark
    assert trace.moves > 1
