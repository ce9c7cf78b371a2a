"""A question by an agent, answered from the mailbox itself: Switchboard and worker are two processes (BF-17)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.db.tables.access import access_tokens, connectors
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs as queued
from postroom.domain.clock import SystemClock
from postroom.domain.roles import Role
from tests.support.deployment import Deployment, deployment
from tests.support.switchboards import stranger

LONG_AGO = datetime(2019, 5, 6, 9, 0, tzinfo=UTC)


async def failed(place: Deployment) -> list[Any]:
    return await place.rows(select(queued.c.type, queued.c.last_error).where(queued.c.state == "failed"))


async def results(place: Deployment, job_type: str) -> list[Any]:
    query = select(queued.c.result_json).where(queued.c.type == job_type, queued.c.state == "completed")
    return [row.result_json for row in await place.rows(query)]


@pytest.mark.req("BF-17", "BF-2", "BF-3", "PL-3")
async def test_what_only_the_mailbox_has_is_found_and_taken_in_while_the_agent_waits(tmp_path: Path) -> None:
    async with deployment(tmp_path, 30, POSTROOM_RECURRING__LIVE="every 2s") as place:
        wanted = await place.gmail.deliver("Zyzzyva visit with Dr. Smith", labels=["INBOX"], received=LONG_AGO)
        await place.open()
        agent = await place.switchboard.token(Role.AGENT)
        await place.worker.start()
        async with stranger(place.switchboard.url, agent) as call:
            began = SystemClock().monotonic()
            found = await call("email_search_and_ingest", query="zyzzyva", max_results=5)
            took = SystemClock().monotonic() - began
            again = await call("email_search_and_ingest", query="zyzzyva", max_results=5)
            read = await call("read_message", id=found["messages"][0]["key"])
        assert took < 30
        assert (found["is_complete"], found["newly_ingested"], found["in_archive"]) == (True, 1, 0)
        assert [(mail["gmail_id"], mail["newly_ingested"]) for mail in found["messages"]] == [(wanted, True)]
        assert (again["newly_ingested"], again["in_archive"]) == (0, 1)
        assert "Zyzzyva" in str(read)
        assert len(await place.rows(select(messages))) == 1
        await beside_the_switchboard(place)


async def beside_the_switchboard(place: Deployment) -> None:
    """The worker's own passes go through the Switchboard too, which alone writes to the archive."""

    async def has_looked() -> bool:
        return bool(await results(place, "history.sync.gmail"))

    await place.until(has_looked)
    new = await place.gmail.deliver("Lunch?")

    async def is_in() -> bool:
        return new in {row.external_event_id for row in await place.rows(select(messages))}

    await place.until(is_in)
    assert await failed(place) == []
    code, _ = await place.worker.end()
    tokens = await place.rows(select(access_tokens).where(access_tokens.c.role == "connector"))
    [mine] = [token for token in tokens if token.name.startswith("worker on ")]
    assert (code, mine.revoked_at is not None) == (0, True), "it gives its token back"


@pytest.mark.req("BF-11", "PL-5")
async def test_a_worker_leaves_the_mailbox_to_a_running_connector(tmp_path: Path) -> None:
    async with deployment(tmp_path, 10, POSTROOM_RECURRING__SYNC="every 15m") as place:
        await place.open()
        await place.connector.start()
        await place.worker.start()
        kinds = ("history.sync.gmail", "backfill.gmail", "sync.gmail", "sync.bad.gmail")

        async def all_ran() -> bool:
            return all([await results(place, kind) for kind in kinds])

        await place.until(all_ran)
        for kind in kinds[:2]:
            assert all("Another connector for this mailbox" in result for result in await results(place, kind))
        for kind in kinds[2:]:
            assert all("being written by `postroom switchboard`" in result for result in await results(place, kind))
        new = await place.gmail.deliver("Lunch?")

        async def is_in() -> bool:
            return [row.external_event_id for row in await place.rows(select(messages))] == [new]

        await place.until(is_in)
        [registered] = await place.rows(select(connectors))
        assert registered.instance != "worker"
        assert await failed(place) == []
        assert (await place.connector.end())[0] == 0
        assert (await place.worker.end())[0] == 0
