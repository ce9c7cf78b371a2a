"""A Switchboard, and the backfill service alone, on each of the two databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from tests.support.backfills import BackfillRig
from tests.support.switchboards import Bench, open_bench


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> BackfillRig:
    return await BackfillRig(database, clock).prepare()


@pytest.fixture
async def bench(database: Database, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(database, tmp_path) as opened:
        yield opened
