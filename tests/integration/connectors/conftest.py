"""The Switchboard's own tests run its SQL on both databases; a connector cannot tell them apart."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postroom.db import Database, connect
from tests.support.databases import SqliteFactory


@pytest.fixture
async def database(sqlite_factory: SqliteFactory) -> AsyncIterator[Database]:
    opened = await connect(sqlite_factory.url())
    yield opened
    await opened.close()
