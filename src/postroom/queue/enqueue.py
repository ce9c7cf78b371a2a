"""The way into the queue: every job is checked before anything is written, and a repeated key writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, union_all

from postroom.db import Dialect, Tx
from postroom.db.database import bind_time
from postroom.db.tables.queue import job_tombstones, jobs
from postroom.domain.clock import require_utc, utc_text
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.domain.jobs import JobCatalogue, KeyUse
from postroom.domain.terms import Tier
from postroom.queue.job import Enqueued, NewJob, QueueName
from postroom.queue.sql import bind_ids, statements

LOWEST_PRIORITY, HIGHEST_PRIORITY = -1_000, 1_000
LONGEST_KEY = 512
LARGEST_PAYLOAD = 1_048_576

_KEYS_PER_LOOKUP = 500


def encode_payload(payload: Any) -> str:
    if not isinstance(payload, Mapping):
        raise BadInput("payload", f"must be an object, not {type(payload).__name__}")
    try:
        encoded = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(encoded.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput("payload", f"is not JSON: {error}") from None
    if size > LARGEST_PAYLOAD:
        raise BadInput("payload", f"is {size:,} bytes; the most is {LARGEST_PAYLOAD:,}. Store the data and refer to it")
    return encoded


def insert(tx: Tx, catalogue: JobCatalogue, new_jobs: Sequence[NewJob], now: datetime) -> list[Enqueued]:
    """Enqueue within the caller's transaction; the answers are in the order of the jobs."""
    rows = [_row(job, catalogue, now) for job in new_jobs]
    first_of_key = {_name(row): row for row in reversed(rows)}
    distinct = [row for row in rows if first_of_key[_name(row)] is row]
    for row, seq in zip(distinct, reserve(tx, len(distinct)), strict=True):
        row["seq"] = seq
    written = _write(tx, distinct, now)
    holders = written | _holders(tx, [key for row in distinct if (key := _name(row)) not in written])
    return [
        Enqueued(holders[_name(row)], duplicate=not (_name(row) in written and first_of_key[_name(row)] is row))
        for row in rows
    ]


def _write(tx: Tx, rows: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, str]:
    """Insert, or arm again; returns the ids by name of what is queued now. Sorted, so that rivals cannot deadlock."""
    sql = statements(tx.dialect)
    encoded = json.dumps(sorted(rows, key=_name), ensure_ascii=False)
    written = {
        key or job_id: job_id
        for job_id, key in tx.rows(sql.enqueue, {"rows": encoded, "now": bind_time(tx.dialect, now)})
    }
    fresh = {str(row["id"]) for row in rows}
    if armed_again := [job_id for job_id in written.values() if job_id not in fresh]:
        tx.rows(sql.forget_steps, {"ids": bind_ids(tx.dialect, armed_again)})
    # On SQLite nothing can be pruned while an enqueue waits for a row.
    can_be_spent = tx.dialect is Dialect.POSTGRESQL
    keyed = [job_id for name, job_id in written.items() if can_be_spent and name != job_id]
    spent = {job_id for (job_id,) in tx.rows(sql.exhume, {"ids": bind_ids(tx.dialect, keyed)})} if keyed else set()
    return {name: job_id for name, job_id in written.items() if job_id not in spent}


def _name(row: Mapping[str, Any]) -> str:
    """What identifies this job: its key, or its own id if it has none."""
    return str(row["idempotency_key"] or row["id"])


def _row(job: NewJob, catalogue: JobCatalogue, now: datetime) -> dict[str, Any]:
    job_type = catalogue[job.type]
    queue = _member(QueueName, job.queue, "queue")
    tier = _member(Tier, job.tier, "tier")
    _check_priority(job.priority, queue)
    _check_key(job.key)
    not_before = None if job.not_before is None else require_utc(job.not_before, "not_before")
    return {
        "id": new_id(),
        "type": job_type.name,
        "queue_name": queue,
        "policy_tier": tier,
        "priority": job.priority,
        "payload_json": encode_payload(job.payload),
        "ready": not_before is None or not_before <= now,
        "max_attempts": job_type.retry.max_attempts,
        "not_before": not_before and utc_text(not_before),
        "idempotency_key": job.key,
        "repeatable": job_type.key_use is KeyUse.REPEATABLE,
    }


def _member(kind: type[QueueName] | type[Tier], value: str, field: str) -> str:
    try:
        return kind(value)
    except ValueError:
        raise BadInput(field, f"{value!r} is not one of {', '.join(kind)}") from None


def _check_priority(priority: int, queue: str) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise BadInput("priority", f"{priority!r} is not a whole number")
    if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise BadInput("priority", f"{priority} is not within {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}")
    if priority and queue != QueueName.WORK:
        raise BadInput("priority", f"the {queue} queue holds mail, which is served by tier and arrival; leave it at 0")


def _check_key(key: str | None) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not key.isprintable() or not key.strip():
        raise BadInput("key", "must be a text of printable characters that is not blank")
    if len(key) > LONGEST_KEY:
        raise BadInput("key", f"is {len(key)} characters long; the most is {LONGEST_KEY}")


def reserve(tx: Tx, count: int) -> list[int]:
    """Numbers of the accepted order. PostgreSQL's sequence is shared, so its numbers may leave gaps."""
    numbers = [number for (number,) in tx.rows(statements(tx.dialect).next_seqs, {"n": count})]
    return numbers if tx.dialect is Dialect.POSTGRESQL else list(range(numbers[0], numbers[0] + count))


def _holders(tx: Tx, keys: Sequence[str]) -> dict[str, str]:
    """The job of each key, whether it still exists or was pruned."""
    found: dict[str, str] = {}
    for start in range(0, len(keys), _KEYS_PER_LOOKUP):
        some = keys[start : start + _KEYS_PER_LOOKUP]
        living = select(jobs.c.idempotency_key, jobs.c.id).where(jobs.c.idempotency_key.in_(some))
        pruned = select(job_tombstones.c.idempotency_key, job_tombstones.c.job_id).where(
            job_tombstones.c.idempotency_key.in_(some)
        )
        found.update((key, job_id) for key, job_id in tx.execute(union_all(pruned, living)))
    return found
