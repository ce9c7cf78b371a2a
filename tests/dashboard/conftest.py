"""A running dashboard, on each of the two databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.dashboards import Site, open_site
from tests.support.switchboards import in_a_task


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", database_url)) as opened:
        yield opened
