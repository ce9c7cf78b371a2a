"""Retrying a failed job does its work again: the action that it stands for goes back with it."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from postroom.actions import lifecycle, requests
from postroom.audit import AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs
from postroom.domain.actions import ActionStatus
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.domain.jobs import ACTION, OUTBOUND_SEND
from postroom.queue import FailedJobs, JobState
from postroom.queue.inspection import show_job
from postroom.sim.gmail.faults import GmailFault
from tests.support.actions import A_TEST, ActionScene, action_scene

pytestmark = pytest.mark.req("JB-4")


async def failed_archive(scene: ActionScene) -> tuple[str, str, str]:
    """Gmail's id, the action and its job, which failed for good."""
    gmail_id, _ = await scene.message("INBOX")
    fault = scene.fail("messages.modify", GmailFault(kind="error", code=400, reason="failedPrecondition"))
    action_id = await scene.want(gmail_id, "archive")
    await scene.work_through()
    scene.sim.control.clear_faults(fault)
    action = await scene.action(action_id)
    assert action.status is ActionStatus.FAILED
    return gmail_id, action_id, str(action.job_id)


async def retry(scene: ActionScene, job_id: str) -> None:
    await scene.database.write(lambda tx: requests.retry_job(tx, scene.queue, job_id, A_TEST))


async def test_a_retried_job_does_the_work_of_its_action(database: Database, clock: ManualClock) -> None:
    async with action_scene(database, clock) as scene:
        gmail_id, action_id, job_id = await failed_archive(scene)
        await retry(scene, job_id)
        assert (await scene.action(action_id)).status is ActionStatus.QUEUED
        await scene.work()
        assert (await scene.action(action_id)).status is ActionStatus.COMPLETED
        assert "INBOX" not in (scene.labels(gmail_id) or set())
        page = await database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=job_id)))
        assert [entry.action for entry in page.entries] == ["job.retry"]


async def test_all_failed_jobs_of_a_type_do_their_work(database: Database, clock: ManualClock) -> None:
    async with action_scene(database, clock) as scene:
        failed = [await failed_archive(scene) for _ in range(3)]
        which = FailedJobs(type=ACTION.name)
        retried = await database.write(lambda tx: requests.retry_failed_jobs(tx, scene.queue, which, A_TEST))
        assert retried.queued == [job_id for _, _, job_id in failed]
        assert not retried.left
        await scene.work()
        for gmail_id, action_id, _ in failed:
            assert (await scene.action(action_id)).status is ActionStatus.COMPLETED
            assert "INBOX" not in (scene.labels(gmail_id) or set())


async def test_a_job_whose_action_is_over_is_left_with_the_reason(database: Database, clock: ManualClock) -> None:
    async with action_scene(database, clock) as scene:
        gmail_id, _ = await scene.message("INBOX")
        action_id = await scene.want(gmail_id, "archive")
        await database.write(lambda tx: requests.cancel_action(tx, scene.queue, action_id, A_TEST))
        job_id = str((await scene.action(action_id)).job_id)
        with pytest.raises(BadInput, match="its action was cancelled"):
            await retry(scene, job_id)
        job, _ = await database.read(lambda tx: show_job(tx, job_id))
        assert job.state is JobState.CANCELED


async def test_a_cancelled_job_takes_its_action_up_again(database: Database, clock: ManualClock) -> None:
    async with action_scene(database, clock) as scene:
        gmail_id, _ = await scene.message("INBOX")
        action_id = await scene.want(gmail_id, "archive")
        job_id = str((await scene.action(action_id)).job_id)
        await scene.queue.cancel(job_id)
        await retry(scene, job_id)
        await scene.work()
        assert (await scene.action(action_id)).status is ActionStatus.COMPLETED
        assert "INBOX" not in (scene.labels(gmail_id) or set())


async def test_a_retried_sending_goes_through_its_action(database: Database, clock: ManualClock) -> None:
    """The action hands over to the same job, whose record says how far it came: nothing is sent twice."""
    async with action_scene(database, clock) as scene:
        gmail_id, _ = await scene.message("INBOX")
        action_id = await scene.want(gmail_id, "auto_reply", body="Thank you.")
        await scene.work()
        job_id = str((await scene.action(action_id)).job_id)

        def fail(tx: Tx) -> None:
            values = {"state": JobState.FAILED, "ready": False, "finished_at": clock.now()}
            tx.execute(update(jobs).where(jobs.c.id == job_id).values(values))
            lifecycle.move_action(tx, action_id, ActionStatus.EXECUTING, ActionStatus.FAILED, clock.now(), error="x")

        await database.write(fail)
        clock.advance(60)
        await retry(scene, job_id)
        await scene.work()
        action = await scene.action(action_id)
        assert (action.status, action.job_id) == (ActionStatus.EXECUTING, job_id)
        job, _ = await database.read(lambda tx: show_job(tx, job_id))
        assert (job.type, job.finished_at) == (OUTBOUND_SEND.name, clock.now())  # it ran again, in this scene in vain
