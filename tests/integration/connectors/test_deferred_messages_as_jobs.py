"""In a worker, a message that a live pass cannot take in becomes a job `ingest.gmail`, and holds up no other."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import Row, update

from postroom.accounts.troubled import ArrivalLane, TroubledMessage, TroubleKind, troubled_of
from postroom.app.worker import DeferredToJobs
from postroom.connectors.arrivals import DEFERRED_FILE
from postroom.connectors.state_files import folder_of, held
from postroom.db.tables.queue import jobs
from postroom.domain.errors import PostroomError
from postroom.domain.jobs import INGEST
from postroom.mailboxes.errors import MailboxThrottled, MailboxUnreachable
from postroom.queue import JobState
from postroom.sim.gmail.faults import FaultRule, GmailFault
from tests.integration.connectors.test_gap_job import Place, place
from tests.support.actions import rows_of
from tests.support.mail import letter

__all__ = ["place"]
pytestmark = pytest.mark.req("JB-18", "SY-13")


def break_one(place: Place, message_id: str) -> int:
    fault = FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({message_id}))
    return place.sim.control.add_fault(fault)


async def ingest_jobs(place: Place) -> list[Row[*tuple[object, ...]]]:
    return [row for row in await rows_of(place.app.database, jobs) if row.type == INGEST.name]


async def listed(place: Place) -> list[TroubledMessage]:
    return await place.app.database.read(lambda tx: troubled_of(tx, place.account.id))


async def make_due(place: Place) -> None:
    """As if the time of every deferred message had come."""
    now = place.app.clock.now() - timedelta(seconds=1)
    due = update(jobs).where(jobs.c.type == INGEST.name).values(not_before=now)
    await place.app.database.write(lambda tx: tx.execute(due))


async def test_a_message_that_fails_is_handed_to_a_job_and_the_pass_goes_on(place: Place) -> None:
    bad, good = place.sim.control.deliver(letter("Bad")), place.sim.control.deliver(letter("Good"))
    fault = break_one(place, bad)
    before = await place.cursor()
    await place.look()
    assert await place.taken_in() == [good]
    assert await place.cursor() != before
    [job] = await ingest_jobs(place)
    assert (job.state, json.loads(job.payload_json)["message_ids"]) == (JobState.QUEUED, [bad])
    [trouble] = await listed(place)
    assert (trouble.key, trouble.kind, trouble.lane) == (bad, TroubleKind.FETCH, ArrivalLane.LIVE)

    await make_due(place)
    await place.look()
    [again] = await ingest_jobs(place)
    assert (again.state, again.attempts) == (JobState.QUEUED, 1), "the queue waits longer before the next attempt"
    assert again.not_before > place.app.clock.now()
    assert [each.tries for each in await listed(place)] == [2], "listed once, however often it is tried"

    place.sim.control.clear_faults(fault)
    await make_due(place)
    await place.look()
    assert sorted(await place.taken_in()) == sorted([bad, good])
    assert [each.state for each in await ingest_jobs(place)] == [JobState.COMPLETED]
    assert await listed(place) == []


async def test_a_message_that_never_works_ends_among_the_failed_jobs_and_stays_listed(place: Place) -> None:
    bad = place.sim.control.deliver(letter("Bad"))
    break_one(place, bad)
    await place.look()
    last = update(jobs).where(jobs.c.type == INGEST.name).values(max_attempts=1)
    await place.app.database.write(lambda tx: tx.execute(last))
    await make_due(place)
    await place.look()
    assert [each.state for each in await ingest_jobs(place)] == [JobState.FAILED]
    assert [each.key for each in await listed(place)] == [bad]


@pytest.mark.parametrize("outage", [MailboxThrottled(), MailboxUnreachable()])
async def test_while_the_mailbox_cannot_be_reached_nothing_is_deferred(place: Place, outage: PostroomError) -> None:
    deferred = DeferredToJobs(place.app.queue, place.account.id)
    assert not await deferred.failed("18f0", outage, alone=True)
    assert await ingest_jobs(place) == []


async def test_a_connector_that_has_taken_over_the_mailbox_does_not_keep_a_deferred_message_out(place: Place) -> None:
    bad = place.sim.control.deliver(letter("Bad"))
    fault = break_one(place, bad)
    await place.look()
    place.sim.control.clear_faults(fault)
    await make_due(place)
    with held(folder_of(place.app.settings.home, "gmail", place.account.email)):
        await place.look()
    assert await place.taken_in() == [bad]
    assert [each.state for each in await ingest_jobs(place)] == [JobState.COMPLETED]


async def test_what_a_file_of_before_holds_is_taken_over_once(place: Place) -> None:
    old = place.sim.control.deliver(letter("Old"))
    folder = folder_of(place.app.settings.home, "gmail", place.account.email)
    entry = {"tries": 3, "first_seen": "2026-01-01T00:00:00+00:00", "due": "2026-01-01T01:00:00+00:00", "reason": "x"}
    holding_up = {**entry, "due": None}
    (folder / DEFERRED_FILE).write_text(json.dumps({old: entry, "18f0": holding_up}))
    await place.look()
    assert not (folder / DEFERRED_FILE).exists()
    assert [json.loads(each.payload_json)["message_ids"] for each in await ingest_jobs(place)] == [[old]]
    assert old in await place.taken_in()
