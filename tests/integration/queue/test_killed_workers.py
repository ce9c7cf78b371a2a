"""Worker processes killed with SIGKILL while they work: nothing is lost and nothing is done twice."""

from __future__ import annotations

import asyncio
import sys
from random import Random

import pytest
from sqlalchemy import func, select

from postroom.db import Tx, connect
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.domain.terms import TIERS
from postroom.queue import JobQueue, JobState, NewJob, QueueName
from tests.support.queues import KILLED_WORKER_DATABASE, count_jobs, effects, make_queue

WORKERS = 3


class Crew:
    """Real worker processes on one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._processes: list[asyncio.subprocess.Process] = []

    async def hire(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.queues", self._url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        self._processes.append(process)

    async def kill_one(self, random: Random) -> None:
        process = self._processes.pop(random.randrange(len(self._processes)))
        process.kill()
        await process.wait()

    async def dismiss(self) -> None:
        for process in self._processes:
            process.kill()
            await process.wait()


async def survive(url: str, total: int, kills: int, seed: int) -> None:
    random = Random(seed)
    database = await connect(url, KILLED_WORKER_DATABASE)
    queue = make_queue(database, SystemClock())
    await database.write(lambda tx: effects.create(tx.connection))
    await enqueue_all(queue, total)
    deaths = sorted(random.sample(range(total // 20, total), kills))
    crew = Crew(url)
    try:
        for _ in range(WORKERS):
            await crew.hire()
        while (done := await count_jobs(database, state=JobState.COMPLETED)) < total:
            if deaths and done >= deaths[0]:
                deaths.pop(0)
                await crew.kill_one(random)
                await crew.hire()
            await asyncio.sleep(0.02)
    finally:
        await crew.dismiss()
    recorded, distinct = await database.read(count_effects)
    assert recorded == distinct == total
    assert await database.read(lambda tx: tx.execute(select(func.count()).select_from(jobs)).scalar_one()) == total
    await database.close()


async def enqueue_all(queue: JobQueue, total: int) -> None:
    for start in range(0, total, 1_000):
        new = [
            NewJob("noop", {"n": n}, list(QueueName)[n // 3 % 3], TIERS[n % 3], key=f"job:{n}")
            for n in range(start, min(start + 1_000, total))
        ]
        await queue.enqueue(*new)


def count_effects(tx: Tx) -> tuple[int, int]:
    recorded, distinct = tx.execute(select(func.count(), func.count(effects.c.job_id.distinct()))).one()
    return recorded, distinct


@pytest.mark.req("JB-2", "JB-3")
async def test_every_job_ends_with_its_effect_recorded_once(database_url: str) -> None:
    await survive(database_url, total=2_000, kills=4, seed=1)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.req("JB-2", "JB-3")
@pytest.mark.parametrize("seed", [1, 2])
async def test_twenty_thousand_jobs_survive_twenty_kills(database_url: str, seed: int) -> None:
    await survive(database_url, total=20_000, kills=20, seed=seed)
