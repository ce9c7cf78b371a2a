"""The queue of jobs: full means wait, idle means closed."""

from __future__ import annotations

import asyncio

import pytest

from postroom.domain.errors import Retryable
from postroom.sync.context import OutageBackoff
from postroom.sync.slice_ledger import FetchJob
from postroom.sync.walk import Dispatcher, Supervisor
from tests.support import virtual_time
from tests.support.virtual_time import VirtualClock

A, B, C = (FetchJob(number, (f"m{number}",)) for number in range(3))


@pytest.mark.req("SY-2")
async def test_new_jobs_wait_while_the_queue_is_full_and_retried_ones_do_not() -> None:
    dispatcher = Dispatcher(most_waiting=1)
    await dispatcher.put(A)
    waiting = asyncio.create_task(dispatcher.put(B))
    await asyncio.sleep(0)
    assert (dispatcher.waiting, waiting.done()) == (1, False)
    assert await dispatcher.take() is A
    await waiting
    await dispatcher.put_back(A)
    assert dispatcher.waiting == 2


@pytest.mark.req("SY-2")
async def test_the_queue_closes_when_idle_splits_included() -> None:
    dispatcher = Dispatcher(most_waiting=5)
    await dispatcher.put(A)
    await dispatcher.close_when_idle()
    assert await dispatcher.take() is A
    next_job = asyncio.create_task(dispatcher.take())
    await asyncio.sleep(0)
    assert not next_job.done()  # A may still be split
    await dispatcher.replace(B, C)
    assert await next_job is B
    assert await dispatcher.take() is C
    end = asyncio.create_task(dispatcher.take())
    await dispatcher.replace()
    await asyncio.sleep(0)
    assert not end.done()
    await dispatcher.replace()
    assert await end is None


@pytest.mark.req("SY-6")
def test_only_the_silent_are_cancelled() -> None:
    async def story() -> None:
        supervisor = Supervisor(VirtualClock(), 600)

        async def work(*, beats: bool) -> bool:
            with supervisor.watching() as attempt:
                try:
                    for _ in range(10):
                        await asyncio.sleep(300)
                        if beats:
                            supervisor.heartbeat(attempt)
                except asyncio.CancelledError:
                    return attempt.is_stalled
            return False

        watch = asyncio.create_task(supervisor.run())
        lively, silent = asyncio.create_task(work(beats=True)), asyncio.create_task(work(beats=False))
        assert (await lively, await silent) == (False, True)
        watch.cancel()

    virtual_time.run(story())


def test_patience_has_an_end() -> None:
    async def story() -> None:
        clock = VirtualClock()
        outage = OutageBackoff(clock, patience_s=100)

        async def endure() -> None:
            while True:
                outage.failed(Retryable("it is down"))
                await outage.wait()

        with pytest.raises(Retryable, match="down"):
            await endure()
        assert 100 <= clock.monotonic() < 200

    virtual_time.run(story())


def test_many_failures_of_one_outage_count_as_one() -> None:
    async def story() -> None:
        clock = VirtualClock()
        outage = OutageBackoff(clock, patience_s=1_000)
        for _ in range(50):
            outage.failed(Retryable("it is down"))
        await outage.wait()
        assert clock.monotonic() == pytest.approx(1.0)
        assert outage.is_down
        outage.succeeded()
        assert not outage.is_down

    virtual_time.run(story())
