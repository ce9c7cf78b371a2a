"""A running stand-in, and a plain HTTP client with its token."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.gmail_sim import api_client
from tests.support.mail import mailbox


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(mailbox(30, Label_7="Bills")) as running:
        yield running


@pytest.fixture
async def api(sim: GmailSim) -> AsyncIterator[httpx2.AsyncClient]:
    async with api_client(sim.url, sim.token) as client:
        yield client
