"""What an operator may do with a backfill job, from every state."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import select, text

from postroom.db import Database
from postroom.db.tables.queue import jobs as queued
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.money import Micros
from postroom.domain.terms import BackfillMode, BackfillStatus
from postroom.kill_switch import SwitchedOff
from postroom.queue import QueueName
from postroom.switchboard.backfill.job import TRANSITIONS, BackfillEvent, BackfillJob, IllegalTransition
from postroom.switchboard.backfill.operations import BackfillFilter
from tests.support.backfills import CATEGORIES, CENT, EMAIL, OPERATOR, BackfillRig, new_backfill, put_job

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"connector_type": "imap"}, "connector_type"),
    ({"endpoint_identity": "stranger@example.com"}, "endpoint_identity"),
    ({"date_from": date(2025, 1, 1)}, "date_from"),
    ({"date_from": date(1969, 12, 31)}, "date_from"),
    ({"date_to": "2024-12-31"}, "date_to"),
    ({"rate_limit_per_hour": 0}, "rate_limit_per_hour"),
    ({"rate_limit_per_hour": -5}, "rate_limit_per_hour"),
    ({"rate_limit_per_hour": True}, "rate_limit_per_hour"),
    ({"rate_limit_per_hour": 2**31}, "rate_limit_per_hour"),
    ({"daily_cost_cap_cents": 0}, "daily_cost_cap_cents"),
    ({"daily_cost_cap_cents": 1.5}, "daily_cost_cap_cents"),
    ({"target_categories": ["finance", "gossip"]}, "target_categories"),
    ({"target_categories": "finance"}, "target_categories"),
    ({"includes": ["inbox"]}, "includes"),
    ({"mode": "eager"}, "mode"),
]


async def test_a_job_is_created_pending_with_the_limits_of_the_settings_and_the_consent_of_its_maker(
    rig: BackfillRig,
) -> None:
    job = await rig.create(estimate={"messages": 12})
    assert (job.status, job.rate_limit_per_hour, job.daily_cost_cap_cents) == (BackfillStatus.PENDING, 100, 500)
    assert (job.target_categories, job.estimate) == (["finance"], {"messages": 12})
    assert (job.consent_at, job.consent_by) == (rig.now, "dashboard olivia")
    assert job.started_at is None
    assert await rig.service.list(BackfillFilter()) == [job]


@pytest.mark.req("BF-18")
async def test_background_mode_has_a_low_rate_and_a_tight_cap(rig: BackfillRig) -> None:
    job = await rig.create(mode=BackfillMode.BACKGROUND)
    assert (job.rate_limit_per_hour, job.daily_cost_cap_cents) == (20, 50)


@pytest.mark.req("BF-23")
async def test_each_failing_check_names_its_field_and_nothing_is_written(rig: BackfillRig) -> None:
    for changes, field in REFUSED:
        with pytest.raises(BadInput) as refusal:
            await rig.create(**changes)
        assert refusal.value.field == field, changes
    assert await rig.service.list(BackfillFilter()) == []


@pytest.mark.req("BF-23")
async def test_the_identity_is_written_as_its_account_is(rig: BackfillRig) -> None:
    assert (await rig.create(endpoint_identity="  Me@Example.COM ")).endpoint_identity == EMAIL


@pytest.mark.req("WB-6")
async def test_nothing_is_created_while_backfill_is_switched_off(database: Database, clock: ManualClock) -> None:
    rig = await BackfillRig(database, clock, enabled=False).prepare()
    with pytest.raises(SwitchedOff, match="BACKFILL_ENABLED=true"):
        await rig.create()


async def test_a_dry_run_checks_everything_and_changes_nothing(rig: BackfillRig) -> None:
    shown = await rig.service.create(OPERATOR, new_backfill(), dry_run=True)
    assert shown.status is BackfillStatus.PENDING
    assert await rig.service.list(BackfillFilter()) == []
    job = await rig.create()
    assert (await rig.service.pause(OPERATOR, job.id, dry_run=True)).status is BackfillStatus.PAUSED
    assert await rig.job(job.id) == job
    assert await rig.actions(job.id) == ["create"]


@pytest.mark.req("BF-7", "BF-22")
async def test_an_operator_moves_a_job_exactly_as_the_table_says_from_every_state(rig: BackfillRig) -> None:
    for status, event in product(BackfillStatus, (BackfillEvent.PAUSE, BackfillEvent.RESUME, BackfillEvent.CANCEL)):
        job = await rig.create()
        error = "why" if status is BackfillStatus.ERROR else None
        await rig.database.write(partial(put_job, job_id=job.id, status=status, error=error))
        if status in TRANSITIONS[event].sources:
            await _is_moved(rig, job.id, status, event)
        else:
            await _is_refused(rig, job.id, status, event)


async def _act(rig: BackfillRig, job_id: str, event: BackfillEvent) -> BackfillJob:
    act = {
        BackfillEvent.PAUSE: rig.service.pause,
        BackfillEvent.RESUME: rig.service.resume,
        BackfillEvent.CANCEL: rig.service.cancel,
    }[event]
    return await act(OPERATOR, job_id)


async def _is_moved(rig: BackfillRig, job_id: str, status: BackfillStatus, event: BackfillEvent) -> None:
    moved = await _act(rig, job_id, event)
    assert moved.status is TRANSITIONS[event].target
    assert moved.error is None or event is BackfillEvent.CANCEL
    entry = (await rig.entries(job_id))[-1]
    assert (entry.action, entry.actor.role, entry.actor.name) == (f"backfill.{event}", "dashboard", "olivia")
    assert (entry.before or {})["status"] == status
    assert (entry.after or {})["status"] == TRANSITIONS[event].target


async def _is_refused(rig: BackfillRig, job_id: str, status: BackfillStatus, event: BackfillEvent) -> None:
    before = await rig.job(job_id)
    with pytest.raises(IllegalTransition, match=f"a job that is {status} cannot be"):
        await _act(rig, job_id, event)
    assert await rig.job(job_id) == before
    assert await rig.actions(job_id) == ["create"]


async def test_a_job_that_does_not_exist_is_named(rig: BackfillRig) -> None:
    missing = "01990000-0000-7000-8000-000000000000"
    for act in (rig.service.pause, rig.service.resume, rig.service.cancel):
        with pytest.raises(NotFound, match=missing):
            await act(OPERATOR, missing)
    with pytest.raises(BadInput, match="job_id: 'nonsense' is not an id"):
        await rig.service.show("nonsense")


async def test_jobs_are_listed_newest_first_and_by_what_they_are(rig: BackfillRig) -> None:
    first = await rig.create()
    rig.clock.advance(1)
    second = await rig.create(target_categories=list(CATEGORIES))
    paused = await rig.service.pause(OPERATOR, first.id)
    assert await rig.service.list(BackfillFilter()) == [second, paused]
    assert await rig.service.list(BackfillFilter(status="paused")) == [paused]
    assert await rig.service.list(BackfillFilter(endpoint_identity="other@example.com")) == []
    with pytest.raises(BadInput, match="'done' is not one of pending, active"):
        BackfillFilter(status="done")
    assert replace(paused, status=BackfillStatus.PENDING).cap == 5_000_000


@pytest.mark.req("BF-1")
async def test_the_table_has_its_place_and_refuses_an_eighth_status(rig: BackfillRig) -> None:
    name = "switchboard_backfill_jobs" if rig.database.dialect == "sqlite" else "switchboard.backfill_jobs"
    job = await rig.create()
    with pytest.raises(Exception, match=r"(?i)check"):
        await rig.database.write(lambda tx: tx.execute(text(f"UPDATE {name} SET status = 'asleep'")))  # noqa: S608
    assert (await rig.job(job.id)).status is BackfillStatus.PENDING


@pytest.mark.req("BF-8", "BF-10", "BF-22")
async def test_speed_and_cap_of_a_job_can_be_changed_and_the_change_is_audited(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=1, daily_cost_cap_cents=2)
    await rig.service.change(OPERATOR, work.job_id, rate=5)
    await rig.spend(work.job_id, Micros(2 * CENT))
    waiting = await rig.mail(work.job_id)
    await rig.reserve(waiting)
    assert (await rig.job(work.job_id)).status is BackfillStatus.COST_CAPPED
    job = await rig.service.change(OPERATOR, work.job_id, cap_cents=9)
    assert (job.status, job.rate_limit_per_hour, job.daily_cost_cap_cents) == (BackfillStatus.PENDING, 5, 9)
    assert await rig.is_released(waiting)
    changes = [entry for entry in await rig.entries(work.job_id) if entry.action == "backfill.change"]
    assert (changes[-1].before or {})["daily_cost_cap_cents"] == 2
    assert (changes[-1].after or {})["daily_cost_cap_cents"] == 9
    assert changes[-1].actor.name == OPERATOR.name


@pytest.mark.req("BF-7", "BF-23")
async def test_a_change_that_is_none_or_comes_too_late_is_refused(rig: BackfillRig) -> None:
    job = await rig.create()
    with pytest.raises(BadInput, match="new rate, a new cap, or both"):
        await rig.service.change(OPERATOR, job.id)
    with pytest.raises(BadInput, match="daily_cost_cap_cents"):
        await rig.service.change(OPERATOR, job.id, cap_cents=0)
    dry = await rig.service.change(OPERATOR, job.id, rate=3, dry_run=True)
    assert (dry.rate_limit_per_hour, (await rig.job(job.id)).rate_limit_per_hour) == (3, 100)
    await rig.service.cancel(OPERATOR, job.id)
    with pytest.raises(IllegalTransition, match="cancelled cannot be changed"):
        await rig.service.change(OPERATOR, job.id, rate=3)


@pytest.mark.req("BF-9")
async def test_a_job_says_how_many_messages_were_never_judged_and_judges_them_again(rig: BackfillRig) -> None:
    work = await rig.started()
    judged, failed, waiting = [await rig.mail(work.job_id) for _ in range(3)]
    await rig.decide(judged)
    gone = queued.c.id == failed.queue_job_id
    await rig.database.write(lambda tx: tx.execute(queued.update().where(gone).values(state="failed", ready=False)))
    await rig.service.upkeep()
    view = await rig.service.show(work.job_id)
    assert (view.taken_in, view.undecided, view.never_judged) == (3, 1, 1)
    assert await rig.service.judge_again(OPERATOR, work.job_id) == 1, "the other one is still on its way"
    assert await rig.service.judge_again(OPERATOR, work.job_id) == 0
    assert await rig.is_released(failed)
    assert (await rig.service.show(work.job_id)).undecided == 2
    assert waiting.message_id != failed.message_id


@pytest.mark.req("BF-9")
async def test_mail_whose_failed_job_the_queue_has_forgotten_is_judged_again_too(rig: BackfillRig) -> None:
    work = await rig.started()
    mail = await rig.mail(work.job_id)
    here = queued.c.id == mail.queue_job_id
    await rig.database.write(lambda tx: tx.execute(queued.delete().where(here)))
    await rig.service.upkeep()
    assert (await rig.service.show(work.job_id)).never_judged == 1
    assert await rig.service.judge_again(OPERATOR, work.job_id) == 1
    view = await rig.service.show(work.job_id)
    assert (view.undecided, view.never_judged) == (1, 0)
    found = await rig.database.read(lambda tx: tx.execute(select(queued.c.payload_json, queued.c.queue_name)).all())
    assert [(json.loads(row[0])["message_id"], row[1]) for row in found] == [(mail.message_id, QueueName.HISTORY)]
    await rig.service.upkeep()
    assert (await rig.service.show(work.job_id)).never_judged == 0, "the queue works on it"
