"""Everything outside, simulated on loopback: a mailbox, a model, a web site."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from postroom.demo.post import scripts
from postroom.gmail.sim.command import build
from postroom.gmail.sim.server import Sim, running_sim
from postroom.triage.sim.server import ModelSim, running_model
from postroom.websources.sim.server import SiteSim, running_site

EMAIL = "you@simulated.example"
DOCUMENTS = 24
_SEED = 7


@dataclass(frozen=True)
class StandIns:
    gmail: Sim
    model: ModelSim
    site: SiteSim


@asynccontextmanager
async def open_stand_ins(messages: int, documents: int = DOCUMENTS) -> AsyncIterator[StandIns]:
    """On free ports, until the block ends."""
    async with AsyncExitStack() as stack:
        gmail = await stack.enter_async_context(running_sim(build(messages, _SEED, EMAIL)))
        model = await stack.enter_async_context(running_model(_SEED))
        site = await stack.enter_async_context(running_site(documents, _SEED))
        for script in scripts():
            model.desk.stage.add_script(script)
        yield StandIns(gmail, model, site)
