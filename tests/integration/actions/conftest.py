from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from tests.support.actions import ActionScene, action_scene
from tests.support.kill_points import KilledWorker, killed_worker


@pytest.fixture
async def scene(database: Database, clock: ManualClock) -> AsyncIterator[ActionScene]:
    async with action_scene(database, clock, Label_7="Receipts", Label_8="Travel") as opened:
        yield opened


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledWorker]:
    """One for all tests: it takes seconds to import everything, and each of its lives is a fork of its own."""
    with killed_worker(tmp_path_factory.mktemp("mortal")) as worker:
        yield worker
