from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from tests.support.action_scene import Scene, scene_of


@pytest.fixture
async def scene(database: Database, clock: ManualClock) -> AsyncIterator[Scene]:
    async with scene_of(database, clock, Label_7="Receipts", Label_8="Travel") as opened:
        yield opened
