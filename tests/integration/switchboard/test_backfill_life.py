"""The whole life of backfill jobs, from every state, with everybody acting at will."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from postroom.db import connect
from postroom.settings import DatabaseSettings
from postroom.switchboard.backfill.transitions import Status
from tests.support.backfill_machine import BackfillLife
from tests.support.databases import DatabaseFactory, PostgresFactory, SqliteFactory

PROVEN = ("BF-4", "BF-5", "BF-6", "BF-7", "BF-8", "BF-9", "BF-10", "BF-22", "WB-6")


@pytest.mark.req(*PROVEN)
@pytest.mark.parametrize("start", list(Status))
def test_nothing_that_anybody_does_breaks_a_promise_from_any_state(
    sqlite_factory: SqliteFactory, start: Status
) -> None:
    live(sqlite_factory, start, examples=8, steps=25)


@pytest.mark.req(*PROVEN)
def test_the_same_holds_on_postgresql(postgres_factory: PostgresFactory) -> None:
    live(postgres_factory, Status.ACTIVE, examples=8, steps=25)


def live(factory: DatabaseFactory, start: Status, *, examples: int, steps: int) -> None:
    with asyncio.Runner() as runner:
        database = runner.run(connect(factory.url(), DatabaseSettings(synchronous="normal")))
        life = type("Life", (BackfillLife,), {"database": database, "runner": runner, "start": start})
        how = settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(life, settings=how)
        finally:
            runner.run(database.close())
