"""A tiny site for every test that wants one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.web_servers import TinySite, tiny_site


@pytest.fixture
async def site() -> AsyncIterator[TinySite]:
    async with tiny_site() as served:
        yield served
