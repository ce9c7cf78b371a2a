"""SIGKILL between every two steps of every handler: nothing is lost, nothing is done twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroom.db.tables.triage import decisions
from postroom.domain import jobs
from postroom.queue import NewJob
from tests.support.databases import DatabaseFactory
from tests.support.mortal_world import MortalWorld, Scenario, Scene, mortal_world
from tests.support.mortality import MortalWorker, mortal_worker


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalWorker]:
    with mortal_worker(tmp_path_factory.mktemp("mortal")) as worker:
        yield worker


@pytest.fixture
async def world(tmp_path: Path, worker: MortalWorker, database_factory: DatabaseFactory) -> AsyncIterator[MortalWorld]:
    async with mortal_world(tmp_path, worker, database_factory) as world:
        yield world


async def _judge(scene: Scene) -> None:
    payload = {"account_id": scene.account.id, "message_id": scene.message_id}
    key = f"classify:{scene.account.id}:{scene.message_id}"
    await scene.enqueue(NewJob(jobs.CLASSIFY, payload, key=key))


async def _one_decision(scene: Scene) -> None:
    assert len(await scene.rows(decisions)) == 1


SCENARIOS = [Scenario("classify", _judge, _one_decision)]


@pytest.mark.req("JB-8")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_a_worker_killed_at_any_step_leaves_nothing_half_done(world: MortalWorld, scenario: Scenario) -> None:
    assert await world.sweep(scenario) > 3
