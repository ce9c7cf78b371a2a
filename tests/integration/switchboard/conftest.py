from __future__ import annotations

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from tests.support.backfills import Rig


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return await Rig(database, clock).prepare()
