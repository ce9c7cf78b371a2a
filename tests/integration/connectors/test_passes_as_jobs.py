"""The same passes, driven by jobs; and live mail that waits for no history."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from postroom.connectors.passes import DRIVERS
from postroom.db import Database
from postroom.domain.errors import BadInput
from tests.integration.connectors.test_backfill_pass import FIRST, LAST, month_of
from tests.support.connectors import Losses, connector_rig, source_of


@pytest.mark.req("BF-11", "BF-17", "JB-18")
async def test_jobs_drive_the_passes(database: Database, tmp_path: Path) -> None:
    async with month_of(12, database, tmp_path) as stage:
        assert (await DRIVERS["history.sync.gmail"](stage.passes, {}))["ingested"] == 0
        assert stage.passes.sent_index_is_filled
        new = stage.deliver("New")
        assert (await DRIVERS["history.sync.gmail"](stage.passes, {}))["ingested"] == 1
        again = await DRIVERS["ingest.gmail"](stage.passes, {"message_ids": [new]})
        assert (again["ingested"], again["duplicates"]) == (0, 1)
        found = await DRIVERS["ondemand.gmail"](stage.passes, {"query": "subject:letter", "max_results": 5})
        assert found["ingested"] == 5
        await stage.create_job(FIRST, LAST)
        driven = await DRIVERS["backfill.gmail"](stage.passes, {})
        assert driven["status"] == "completed"
        assert len(await stage.rows()) == 13


@pytest.mark.req("BF-10")
async def test_a_backfill_that_has_to_wait_says_when_to_come_again(database: Database, tmp_path: Path) -> None:
    async with month_of(8, database, tmp_path) as stage:
        await stage.create_job(FIRST, LAST, rate_limit_per_hour=5)
        driven = await DRIVERS["backfill.gmail"](stage.passes, {})
        assert driven["status"] == "pending"
        assert driven["retry_after"] == 3_600
        assert len(await stage.rows()) == 5


@pytest.mark.req("BF-11")
async def test_jobs_ask_for_work_at_most_once_a_minute_however_often_they_are_started(
    database: Database, tmp_path: Path
) -> None:
    polled: list[float] = []
    losses = Losses(0, 0)
    async with month_of(8, database, tmp_path, losses=losses) as stage:

        async def watch(tool: str, arguments: Any) -> None:
            if tool == "backfill.poll":
                polled.append(stage.clock.monotonic())

        losses.before_call = watch
        for _ in range(40):
            await DRIVERS["backfill.gmail"](stage.passes, {})
            stage.clock.advance(9.5)
        assert len(polled) >= 5
        assert min(later - earlier for earlier, later in pairwise(polled)) >= 60


@pytest.mark.parametrize(
    ("job_type", "payload", "field"),
    [
        ("ingest.gmail", {}, "message_ids"),
        ("ingest.gmail", {"message_ids": [1]}, "message_ids"),
        ("ondemand.gmail", {}, "query"),
        ("ondemand.gmail", {"query": "x", "max_results": 51}, "max_results"),
        ("ondemand.gmail", {"query": "x", "max_results": "5"}, "max_results"),
        ("ondemand.gmail", {"query": "  "}, "query"),
    ],
)
async def test_a_bad_payload_is_refused_with_its_field(
    database: Database, tmp_path: Path, job_type: str, payload: dict[str, Any], field: str
) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        with pytest.raises(BadInput) as caught:
            await DRIVERS[job_type](stage.passes, payload)
        assert caught.value.field == field


@pytest.mark.req("BF-11")
async def test_live_mail_does_not_wait_for_a_backfill(database: Database, tmp_path: Path) -> None:
    losses = Losses(0, 0)
    async with month_of(30, database, tmp_path, losses=losses, progress_interval=5) as stage:
        await stage.passes.live()
        await stage.create_job(FIRST, LAST)
        stuck, go_on = asyncio.Event(), asyncio.Event()

        async def hold(tool: str, arguments: Any) -> None:
            if tool == "backfill.progress":
                stuck.set()
                await go_on.wait()

        losses.before_call = hold
        async with asyncio.TaskGroup() as group:
            running = group.create_task(stage.passes.backfill())
            await stuck.wait()
            new = stage.deliver("Urgent")
            assert (await stage.passes.live()).ingested == 1
            assert not running.done()
            go_on.set()
        assert running.result().status == "completed"
        rows = await stage.rows()
        assert rows[new].backfill_job_id is None
        assert {job.queue_name for job in await stage.queue()} == {"live", "history"}
