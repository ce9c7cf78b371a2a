"""Series over time on both databases: they add up, are exact after a crash, and are pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select

from postroom.app.series import SeriesWriter, derive
from postroom.db import Database, Tx
from postroom.db.series import add_amounts, prune_series, read_buckets
from postroom.db.tables.mail import messages
from postroom.db.tables.reports import series_buckets
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Retryable
from postroom.domain.ids import new_id
from postroom.telemetry.series import NO_BOUND, Amount, Resolution, Series, SeriesRecorder

NOW = datetime(2026, 3, 4, 10, 30, 20, tzinfo=UTC)
EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


async def counts(database: Database, series: Series, resolution: Resolution) -> dict[datetime, int]:
    found = await database.read(lambda tx: read_buckets(tx, [series], resolution, *EVER))
    return {bucket.start: bucket.amount.count for bucket in found}


@pytest.mark.req("UX-5")
async def test_processes_that_write_at_once_add_up(database: Database) -> None:
    writers = []
    for _ in range(4):
        recorder = SeriesRecorder()
        recorder.count(Series.JOBS_FAILED, 2)
        recorder.time(Series.WAIT_LIVE, 0.5)
        writers.append(SeriesWriter(database, ManualClock(NOW), recorder))
    await asyncio.gather(*(writer.flush() for writer in writers))
    for resolution in Resolution:
        assert await counts(database, Series.JOBS_FAILED, resolution) == {resolution.start_of(NOW): 8}
    (wait,) = await database.read(lambda tx: read_buckets(tx, [Series.WAIT_LIVE], Resolution.DAY, *EVER))
    assert wait.amount == Amount(4, 2.0, 0.5)


async def test_what_could_not_be_written_keeps_its_minute(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = ManualClock(NOW), SeriesRecorder()
    writer = SeriesWriter(database, clock, recorder)
    recorder.count(Series.SYNC_SPLITS)

    async def away(transaction: object) -> None:
        raise Retryable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", away)
        with pytest.raises(Retryable):
            await writer.flush()
    clock.advance(600)
    recorder.count(Series.SYNC_SPLITS)
    await writer.flush()
    await writer.flush()
    minute = Resolution.MINUTE.start_of(NOW)
    expected = {minute: 1, minute + timedelta(minutes=10): 1}
    assert await counts(database, Series.SYNC_SPLITS, Resolution.MINUTE) == expected


async def test_the_last_seconds_of_a_process_are_written(database: Database) -> None:
    recorder = SeriesRecorder()
    async with SeriesWriter(database, ManualClock(NOW), recorder).running():
        recorder.count(Series.SYNC_RETRIES, 3)
    assert await counts(database, Series.SYNC_RETRIES, Resolution.HOUR) == {Resolution.HOUR.start_of(NOW): 3}


@pytest.mark.req("UX-5")
async def test_mail_decisions_and_spend_are_counted_from_their_tables_however_often(database: Database) -> None:
    earlier = NOW - timedelta(hours=2)
    await database.write(lambda tx: _take_in(tx, NOW, NOW, earlier))
    await database.write(lambda tx: _take_in(tx, NOW, backfill_job_id=new_id(), source="llm"))
    for _ in range(3):
        await derive(database, NOW)
    hour, day = Resolution.HOUR, Resolution.DAY
    assert await counts(database, Series.MAIL_LIVE_DEFAULT, hour) == {hour.start_of(NOW): 2, hour.start_of(earlier): 1}
    assert await counts(database, Series.MAIL_LIVE_DEFAULT, day) == {day.start_of(NOW): 3}
    assert await counts(database, Series.MAIL_HISTORY_DEFAULT, day) == {day.start_of(NOW): 1}
    assert await counts(database, Series.DECIDED_BY_RULE, day) == {day.start_of(NOW): 3}
    assert await counts(database, Series.DECIDED_BY_MODEL, day) == {day.start_of(NOW): 1}
    (spend,) = await database.read(lambda tx: read_buckets(tx, [Series.SPEND], day, *EVER))
    assert spend.amount == Amount(4, 4 * 250.0, 0.0)


async def test_counting_goes_on_after_days_of_silence_and_a_prune(database: Database) -> None:
    start = datetime(2026, 3, 4, 10, 59, tzinfo=UTC)
    await database.write(lambda tx: _take_in(tx, start, start - timedelta(minutes=50)))
    await derive(database, start)
    later = start + timedelta(days=4)
    await database.write(lambda tx: _take_in(tx, *(start + timedelta(hours=hours) for hours in (1, 30, 96))))
    await database.write(lambda tx: prune_series(tx, later))
    assert await counts(database, Series.MAIL_LIVE_DEFAULT, Resolution.MINUTE) == {}
    await derive(database, later)
    found = await counts(database, Series.MAIL_LIVE_DEFAULT, Resolution.DAY)
    assert [(day.day, number) for day, number in sorted(found.items())] == [(4, 3), (5, 1), (8, 1)]
    assert sum((await counts(database, Series.MAIL_LIVE_DEFAULT, Resolution.HOUR)).values()) == 5


async def test_what_commits_late_is_still_counted(database: Database) -> None:
    await derive(database, NOW)
    await database.write(lambda tx: _take_in(tx, NOW - timedelta(minutes=2)))
    await derive(database, NOW + timedelta(minutes=1))
    assert sum((await counts(database, Series.MAIL_LIVE_DEFAULT, Resolution.DAY)).values()) == 1


@pytest.mark.req("UX-5")
async def test_each_resolution_is_kept_for_its_time(database: Database) -> None:
    ages = [timedelta(days=days) for days in (0, 1, 3, 59, 61, 1_000, 1_100)]
    amounts = {(NOW - age, Series.JOBS_FAILED, NO_BOUND): Amount(1, 1.0, 1.0) for age in ages}
    await database.write(lambda tx: add_amounts(tx, amounts))
    await database.write(lambda tx: prune_series(tx, NOW))
    kept = {each: len(await counts(database, Series.JOBS_FAILED, each)) for each in Resolution}
    assert kept == {Resolution.MINUTE: 2, Resolution.HOUR: 4, Resolution.DAY: 6}


async def test_names_in_the_table_are_of_the_closed_set(database: Database) -> None:
    await database.write(lambda tx: _take_in(tx, NOW, subject="A secret", sender_identity="ann@example.org"))
    await derive(database, NOW)
    names = await database.read(lambda tx: set(tx.execute(select(series_buckets.c.name)).scalars()))
    assert names <= set(Series)
    assert names


def _take_in(tx: Tx, *moments: datetime, **columns: Any) -> None:
    for at in moments:
        _take_in_one(tx, at, **columns)


def _take_in_one(tx: Tx, at: datetime, source: str = "deterministic", **columns: Any) -> None:
    message, event = new_id(), new_id()
    row: Mapping[str, Any] = {
        "id": message,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": "me@example.org",
        "external_event_id": event,
        "idempotency_key": event,
        "sender_identity": "ann@example.org",
        "ingestion_tier": "metadata",
        "policy_tier": "default",
        "observed_at": at,
        "received_at": at,
        "accepted_at": at,
    }
    tx.execute(insert(messages).values(**{**row, **columns}))
    decision = {"message_id": message, "source": source, "action": "none", "reason": "r", "created_at": at}
    tx.execute(insert(decisions).values(id=new_id(), **decision))
    call = {"provider": "sim", "model": "m", "input_tokens": 1, "output_tokens": 1, "latency_ms": 1, "outcome": "ok"}
    tx.execute(insert(model_calls).values(id=new_id(), cost_microdollars=250, created_at=at, **call))
