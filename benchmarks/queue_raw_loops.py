"""The floor: the least that any queue must do on Postroom's own table, without a queue around it.

Claim a hundred by the index of ready jobs, decode their payloads, complete the hundred: two transactions, nothing else.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.queue_contract import Load, Measure, Stopwatch, Store, batches, check_all_done
from postroom.db import connect
from postroom.domain.clock import utc_text
from postroom.domain.ids import new_id

_CLAIMED_AT_ONCE = 100
_LEASE = timedelta(seconds=60)

_INSERT = """
    INSERT INTO jobs (id, type, queue_name, policy_tier, seq, payload_json, state, ready, repeatable,
                      created_at, queued_at, updated_at)
    VALUES ({id}, 'noop', 'live', 'default', {seq}, {payload}, 'queued', TRUE, FALSE, {now}, {now}, {now})"""
_CLAIM = """
    UPDATE jobs SET
        state = 'running', ready = FALSE, fence = fence + 1, attempts = attempts + 1, worker_id = 'raw',
        lease_expires_at = {lease}, heartbeat_at = {now}, started_at = {now}, updated_at = {now}
    WHERE id IN (
        SELECT id FROM jobs
        WHERE queue_name = 'live' AND policy_tier = 'default' AND state = 'queued' AND ready
        ORDER BY priority DESC, seq LIMIT {limit}{lock}
    )
    RETURNING id, payload_json"""
_COMPLETE = """
    UPDATE jobs SET state = 'completed', lease_expires_at = NULL, finished_at = {now}, updated_at = {now}
    WHERE {ids}"""


def sqlite_loop(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    asyncio.run(_migrate(store))
    watch = Stopwatch()
    with closing(sqlite3.connect(store.sqlite_path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=WAL", f"synchronous={store.synchronous}", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        with watch.time(Measure.ENQUEUE_SINGLE, load.single):
            for number in range(load.single):
                _sqlite_insert(connection, range(number, number + 1))
        with watch.time(Measure.ENQUEUE_BATCH, load.batched):
            for batch in batches(load.batched):
                _sqlite_insert(connection, range(load.single + batch.start, load.single + batch.stop))
        with watch.time(Measure.DRAIN, load.total):
            done = _sqlite_drain(connection)
    check_all_done(done, load.total)
    return watch.rates


def _sqlite_insert(connection: sqlite3.Connection, numbers: range) -> None:
    statement = _INSERT.format(id=":id", seq=":seq", payload=":payload", now=":now")
    now = utc_text(datetime.now(UTC))
    rows = [{"id": new_id(), "seq": n, "payload": json.dumps({"n": n}), "now": now} for n in numbers]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(statement, rows)
    connection.execute("COMMIT")


def _sqlite_drain(connection: sqlite3.Connection) -> int:
    claim = _CLAIM.format(lease=":lease", now=":now", limit=_CLAIMED_AT_ONCE, lock="")
    complete = _COMPLETE.format(now="?1", ids="id = ?2")
    done = 0
    while True:
        now = datetime.now(UTC)
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(claim, {"lease": utc_text(now + _LEASE), "now": utc_text(now)}).fetchall()
        connection.execute("COMMIT")
        if not rows:
            return done
        for _, payload in rows:
            json.loads(payload)
        finished = utc_text(datetime.now(UTC))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(complete, [(finished, job_id) for job_id, _ in rows])
        connection.execute("COMMIT")
        done += len(rows)


def asyncpg_loop(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    return asyncio.run(_asyncpg_loop(store, load))


async def _asyncpg_loop(store: Store, load: Load) -> dict[Measure, float]:
    import asyncpg  # an extra (`bench`), and only this contender needs it

    await _migrate(store)
    watch = Stopwatch()
    connection = await asyncpg.connect(store.url)
    try:
        with watch.time(Measure.ENQUEUE_SINGLE, load.single):
            for number in range(load.single):
                await _asyncpg_insert(connection, range(number, number + 1))
        with watch.time(Measure.ENQUEUE_BATCH, load.batched):
            for batch in batches(load.batched):
                await _asyncpg_insert(connection, range(load.single + batch.start, load.single + batch.stop))
        with watch.time(Measure.DRAIN, load.total):
            done = await _asyncpg_drain(connection)
    finally:
        await connection.close()
    check_all_done(done, load.total)
    return watch.rates


async def _asyncpg_insert(connection: Any, numbers: range) -> None:
    statement = _INSERT.format(id="$1", seq="$2", payload="$3", now="$4")
    now = datetime.now(UTC)
    await connection.executemany(statement, [(new_id(), n, json.dumps({"n": n}), now) for n in numbers])


async def _asyncpg_drain(connection: Any) -> int:
    claim = _CLAIM.format(lease="$1", now="$2", limit=_CLAIMED_AT_ONCE, lock=" FOR UPDATE SKIP LOCKED")
    complete = _COMPLETE.format(now="$1", ids="id = ANY($2::uuid[])")
    done = 0
    while True:
        now = datetime.now(UTC)
        rows = await connection.fetch(claim, now + _LEASE, now)
        if not rows:
            return done
        for row in rows:
            json.loads(row["payload_json"])
        await connection.execute(complete, datetime.now(UTC), [row["id"] for row in rows])
        done += len(rows)


async def _migrate(store: Store) -> None:
    database = await connect(store.url)
    await database.close()
