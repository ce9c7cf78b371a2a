"""What a person sees of money: a cap that is too small is refused, one that binds is used and never passed, one that is
large enough is no hindrance, jobs take turns, and mail is kept as long as was said before it was paid for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.domain.money import format_dollars, from_cents
from postroom.sim.model.answers import ModelFault
from tests.support.owner import Owner, living_at

MESSAGES = 100
MODEL = {"input_price": "0.05", "output_price": "400", "max_output_tokens": 60}
OLD, NEW = ("--from", "2016-01-01", "--to", "2023-12-31"), ("--from", "2024-01-01", "--to", "2026-11-01")
BACKFILL = "backfill.gmail"


async def create(owner: Owner, *days: str, cap_cents: int, rate: int) -> str:
    limits = ("--cap-cents", str(cap_cents), "--rate", str(rate), "--yes")
    created = await owner.reads("backfill", "create", *whole(owner), *days, *limits)
    return str(created["job_id"])


def whole(owner: Owner) -> tuple[str, ...]:
    return "--account", owner.email, "--all-mail"


async def lines_of(owner: Owner, job_id: str) -> dict[str, str]:
    """What `backfill show` prints, by its first word."""
    shown = await owner.types("backfill", "show", job_id)
    return {line[:11].strip(): line[11:].strip() for line in shown.split("\n\n")[0].splitlines()}


async def view_of(owner: Owner, job_id: str) -> Any:
    return await owner.reads("backfill", "show", job_id)


@pytest.mark.req("BF-8", "BF-9", "BF-11", "BF-21")
async def test_money_jobs_in_turn_and_retention_are_as_they_were_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living_at(home, monkeypatch, MESSAGES, model=MODEL) as owner:
        await owner.adds_the_account()
        await a_cap_below_one_message_is_refused(owner)
        capped = await create(owner, *OLD, cap_cents=6, rate=100_000)
        other = await create(owner, *NEW, cap_cents=500, rate=15)
        await a_cap_that_binds_is_used_and_not_passed(owner, capped)
        await a_job_that_waits_lets_the_other_work(owner, capped, other)
        await with_five_dollars_it_goes_on_and_a_slow_answer_stops_nothing(owner, capped)
        await owner.lets_it_work(BACKFILL, minutes=61)
        assert (await lines_of(owner, other))["status"] == "completed"
        await mail_is_kept_as_was_said_and_never_paid_for_twice(owner, capped)


async def a_cap_below_one_message_is_refused(owner: Owner) -> None:
    for command in ("estimate", "create"):
        said = await owner.is_refused("backfill", command, *whole(owner), *OLD, "--cap-cents", "2")
        assert "one message can cost up to 3 cents" in said
        assert "the least cap that works is 3 cents" in said
    assert await owner.reads("backfill", "list") == []


async def a_cap_that_binds_is_used_and_not_passed(owner: Owner, job_id: str) -> None:
    estimated = (await view_of(owner, job_id))["job"]["estimate"]
    assert (estimated["binds"], estimated["counted_in"]) == ("daily_cost_cap_cents", "archive")
    await owner.lets_it_work(BACKFILL, minutes=2)
    view, shown = await view_of(owner, job_id), await lines_of(owner, job_id)
    spent, refused, cap = view["today"]["settled"], view["job"]["refused_microdollars"], from_cents(6)
    assert cap - refused < spent <= cap, "the next message did not fit"
    assert view["today"]["reserved"] == 0
    assert shown["status"] == "cost_capped"
    assert shown["today"].startswith(f"{format_dollars(spent)} of $0.06 spent today")
    assert "lease" not in shown
    assert shown["until"].endswith("00:00:00"), "the next day"


async def a_job_that_waits_lets_the_other_work(owner: Owner, capped: str, other: str) -> None:
    await owner.lets_it_work(BACKFILL, minutes=2)
    shown = await lines_of(owner, other)
    assert shown["taken in"].startswith("15 ")
    assert shown["why"].startswith("This hour's limit of 15 messages is reached; it goes on from ")
    assert (await lines_of(owner, capped))["status"] == "cost_capped"


async def with_five_dollars_it_goes_on_and_a_slow_answer_stops_nothing(owner: Owner, job_id: str) -> None:
    said = await owner.types("backfill", "change", job_id, "--cap-cents", "500")
    assert "$5.00 a day" in said
    owner.outside.model.responder.stage.add_fault(ModelFault(kind="slow", seconds=1.5, times=1))
    working = asyncio.create_task(owner.lets_it_work(BACKFILL, minutes=2))
    statuses = set()
    while not working.done():
        view = await view_of(owner, job_id)
        if view["today"]["reserved"]:
            statuses.add(view["job"]["status"])
        await asyncio.sleep(0.2)
    await working
    assert statuses <= {"pending", "active"}, "what a call has reserved caps nothing"
    view, shown = await view_of(owner, job_id), await lines_of(owner, job_id)
    assert shown["status"] == "completed"
    assert shown["today"] == f"{format_dollars(view['today']['settled'])} of $5.00 spent today, $0.00 reserved"
    assert view["job"]["rows_processed"] == view["job"]["estimate"]["messages"]


async def mail_is_kept_as_was_said_and_never_paid_for_twice(owner: Owner, job_id: str) -> None:
    taken = (await view_of(owner, job_id))["job"]["rows_processed"]
    assert "kept for 90 days" in await owner.types("backfill", "estimate", *whole(owner), *OLD)
    assert (await owner.reads("backfill", "retention", "--dry-run"))["metadata"] == 0, "it came years ago, and in today"
    owner.later += timedelta(days=91)
    would = await owner.reads("backfill", "retention", "--dry-run")
    gone = await owner.reads("backfill", "retention")
    assert gone["metadata"] == would["metadata"] > 0
    assert gone["full"] == 0
    again = await owner.reads("backfill", "estimate", *whole(owner), *OLD)
    assert (again["messages"], again["messages_known"], again["cost_microdollars"]) == (0, taken, 0)
