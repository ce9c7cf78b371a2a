from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from tests.support.actions import ActionScene, action_scene


@pytest.fixture
async def scene(database: Database, clock: ManualClock) -> AsyncIterator[ActionScene]:
    async with action_scene(database, clock, Label_7="Receipts", Label_8="Travel") as opened:
        yield opened
