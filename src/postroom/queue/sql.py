"""The queue's hand-written statements, together and by name.

They are written once for both databases; what differs between the dialects is in the few functions at the top. Rows go
in as one JSON document, so that a hundred jobs cost one statement. `statements(dialect)` builds the set.

The literals `state = 'queued' AND ready` and their like repeat the predicates of the partial indexes word for word:
that is what lets the planners use those indexes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from postroom.db import Dialect, database
from postroom.domain.terms import Tier
from postroom.queue.job import QueueName


def _records(dialect: Dialect, columns: str) -> str:
    """The JSON parameter `:rows` (a list of objects) as a table `r` with these `name type` columns."""
    if dialect is Dialect.POSTGRESQL:
        return f"json_to_recordset(CAST(:rows AS json)) AS r({columns})"
    names = [column.split()[0] for column in columns.split(", ")]
    fields = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {fields} FROM json_each(:rows)) AS r"  # noqa: S608 (names from this module)


def _fences(dialect: Dialect) -> str:
    """The JSON parameter `:fences` (an object of job id to fence) as a table `f` with the columns key and value."""
    if dialect is Dialect.POSTGRESQL:
        return "json_each_text(CAST(:fences AS json)) AS f"
    return "json_each(:fences) AS f"


def _holds_claim(dialect: Dialect) -> str:
    """That the claim named in `f` is in force.

    It is looked up by its lease and not by `state = 'running'`: PostgreSQL would take the index of running jobs for
    that, and walk over the dead entries of every job just finished. The array keeps it from reading the whole table:
    by its statistics, next to no job has a lease.
    """
    if dialect is Dialect.POSTGRESQL:
        return (
            "jobs.id = ANY(ARRAY(SELECT CAST(key AS uuid) FROM json_each_text(CAST(:fences AS json)))) AND "
            "jobs.id = CAST(f.key AS uuid) AND jobs.fence = CAST(f.value AS bigint) "
            "AND jobs.lease_expires_at IS NOT NULL"
        )
    return "jobs.id = f.key AND jobs.fence = f.value AND jobs.lease_expires_at IS NOT NULL"


def _among_ids(dialect: Dialect) -> str:
    """That `id` is in the parameter `:ids`, as `bind_ids` makes it."""
    return (
        "id = ANY(CAST(:ids AS uuid[]))"
        if dialect is Dialect.POSTGRESQL
        else "id IN (SELECT value FROM json_each(:ids))"
    )


def bind_ids(dialect: Dialect, ids: Iterable[str | int]) -> str:
    """Ids as one parameter: an array of PostgreSQL, which is read faster than JSON there, or else JSON."""
    return "{" + ",".join(map(str, ids)) + "}" if dialect is Dialect.POSTGRESQL else json.dumps([*ids])


def _next_seqs(dialect: Dialect) -> str:
    """Reserve `:n` numbers of the accepted order; the first row is the first number.

    PostgreSQL evaluates such a condition first: a transaction has its xid before its numbers (`marks.py` needs that).
    """
    if dialect is Dialect.POSTGRESQL:
        return "SELECT nextval('jobs_seq') FROM generate_series(1, :n) WHERE pg_current_xact_id() IS NOT NULL"
    return "UPDATE queue_sequence SET value = value + :n WHERE name = 'jobs' RETURNING value - :n + 1"


def _guards(dialect: Dialect) -> str:
    """The guards of all queues, locked so that claims of several workers take turns (SQLite's are in turn anyway)."""
    if dialect is Dialect.SQLITE:
        return "SELECT queue_name, run_high_priority, run_interactive FROM queue_guards ORDER BY queue_name"
    return """
        SELECT queue_name, run_high_priority, run_interactive, (SELECT last_value FROM jobs_seq)
        FROM queue_guards ORDER BY queue_name FOR UPDATE"""


LINES = tuple((queue, tier) for queue in QueueName for tier in Tier)
"""What waits, by queue and tier; `heads` says a line by its place here."""


def mark_name(queue: str, tier: str) -> str:
    """How the mark of a line is called in the database."""
    return f"{queue}/{tier}"


# On PostgreSQL, only from a mark on (`marks.py`); its rows call a line as `mark_name` does.
_LINE_OF_JOB = "jobs.queue_name || '/' || jobs.policy_tier"
_FROM_MARK = " AND {column} >= COALESCE((SELECT value FROM queue_marks WHERE line = '{line}'), 0)"
_RUNNING = "running"

_HEAD = """
    SELECT * FROM (
        SELECT {line} AS line, -priority AS rank, seq, {row} AS row_id FROM jobs
        WHERE queue_name = '{queue}' AND policy_tier = '{tier}' AND state = 'queued' AND ready{from_mark}
        ORDER BY priority DESC, seq LIMIT {limit}
    ) AS {queue}_{tier}"""
_DEPTH = """
    SELECT '{queue}', '{tier}', count(*) FROM jobs
    WHERE queue_name = '{queue}' AND policy_tier = '{tier}' AND state = 'queued' AND ready{from_mark}"""

_ENQUEUE = """
    INSERT INTO jobs (
        id, type, queue_name, policy_tier, priority, seq, payload_json, state, ready, max_attempts,
        not_before, idempotency_key, repeatable, created_at, queued_at, updated_at
    )
    SELECT r.id, r.type, r.queue_name, r.policy_tier, r.priority, r.seq, r.payload_json, 'queued', r.ready,
           r.max_attempts, r.not_before, r.idempotency_key, r.repeatable, :now, :now, :now
    FROM {records}
    WHERE r.repeatable OR NOT EXISTS (
        SELECT 1 FROM job_tombstones AS t WHERE t.idempotency_key = r.idempotency_key
    )
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO UPDATE SET
        type = excluded.type, queue_name = excluded.queue_name, policy_tier = excluded.policy_tier,
        priority = excluded.priority, seq = excluded.seq, payload_json = excluded.payload_json,
        state = 'queued', ready = excluded.ready, attempts = 0, max_attempts = excluded.max_attempts,
        not_before = excluded.not_before, last_error = NULL, result_json = NULL, started_at = NULL,
        finished_at = NULL, queued_at = excluded.queued_at, updated_at = excluded.updated_at
        WHERE excluded.repeatable AND jobs.repeatable AND jobs.state IN ('completed', 'failed', 'canceled')
    RETURNING id, idempotency_key"""
_ENQUEUE_COLUMNS = (
    "id uuid, type text, queue_name text, policy_tier text, priority int, seq bigint, payload_json text, "
    "ready boolean, max_attempts int, not_before timestamptz, idempotency_key text, repeatable boolean"
)

# SQLite makes rows of an UPDATE slowly, and no one else writes meanwhile: there they are read before it, by the number
# of the row, which is part of the index that `heads` reads.
_CLAIMED = """
    SELECT rowid, id, type, payload_json, attempts + 1, max_attempts, fence + 1, queued_at, not_before
    FROM jobs WHERE rowid IN (SELECT value FROM json_each(:ids))"""

# By id alone: with `state = 'queued' AND ready`, PostgreSQL walks the whole index of ready jobs if it was empty when
# the table was last analyzed.
_CLAIM = """
    UPDATE jobs SET
        state = 'running', ready = FALSE, fence = {fence}, attempts = attempts + 1, worker_id = :worker_id,
        lease_expires_at = :lease_expires_at, heartbeat_at = :now, started_at = :now, updated_at = :now
    WHERE {rows}"""
_CLAIM_BY_ROW = _CLAIM.format(fence="fence + 1", rows="rowid IN (SELECT value FROM json_each(:ids))")
# Times come as texts: most jobs of a claim have the same, so each is read once.
# One number for all: claims take turns, so a later one has a higher number, which is what the index of running jobs and
# its mark rely on.
_CLAIM_BY_ID = _CLAIM.format(
    fence="(SELECT nextval('jobs_fence'))",
    rows="""id = ANY(CAST(:ids AS uuid[])) AND CASE WHEN ready THEN state END = 'queued'
    RETURNING id, id, type, payload_json, attempts, max_attempts, fence,
              CAST(queued_at AS text), CAST(not_before AS text)""",
)

# What most attempts end with, and so a statement of its own, for claims that have the same fence and result, as most
# have, or for a single one: there is little to parse, and nothing to join.
_COMPLETE = """
    UPDATE jobs SET
        state = 'completed', result_json = :result, lease_expires_at = NULL, finished_at = :now, updated_at = :now
    WHERE {among_ids} AND fence = :fence AND lease_expires_at IS NOT NULL
    RETURNING id"""

_SETTLE = """
    UPDATE jobs SET
        state = r.state, ready = r.ready, attempts = r.attempts, not_before = r.not_before,
        last_error = COALESCE(r.error, jobs.last_error), result_json = r.result, lease_expires_at = NULL,
        finished_at = r.finished_at, queued_at = CASE r.state WHEN 'queued' THEN :now ELSE jobs.queued_at END,
        updated_at = :now
    FROM {records}
    WHERE jobs.{among_ids} AND jobs.id = r.id AND jobs.fence = r.fence AND jobs.lease_expires_at IS NOT NULL
    RETURNING jobs.id"""
_SETTLE_BELOW_MARK = """
    WITH settled AS ({settle}, {line} AS line, jobs.seq, jobs.ready),
    returned AS (INSERT INTO queue_returned (line, seq) SELECT line, seq FROM settled WHERE ready)
    SELECT id FROM settled"""
_SETTLE_COLUMNS = (
    "id uuid, fence bigint, state text, ready boolean, attempts int, not_before timestamptz, "
    "error text, result text, finished_at timestamptz"
)

_HELD = "SELECT jobs.id FROM jobs, {fences} WHERE {holds_claim}"

# A row that is locked is in the middle of a transaction of its own handler: it is left alone.
_HEARTBEAT = """
    UPDATE jobs SET heartbeat_at = :now, lease_expires_at = :lease_expires_at, updated_at = :now
    WHERE id IN ({held} {skip_locked_jobs})"""

# Another prune may have buried the key of a job that slipped in while this one waited; the first grave counts.
_BURY = """
    INSERT INTO job_tombstones (idempotency_key, job_id, type, state, finished_at)
    SELECT idempotency_key, id, type, state, finished_at FROM jobs
    WHERE {among_ids} AND idempotency_key IS NOT NULL AND NOT repeatable
    ON CONFLICT (idempotency_key) DO NOTHING"""

# A `once` key may be buried, and its job deleted, while an enqueue waits for that very row: the insert then succeeds
# although the key is spent. A second look, with the eyes of a new statement, takes it back.
_EXHUME = """
    DELETE FROM jobs WHERE {among_ids} AND NOT repeatable
        AND idempotency_key IN (SELECT idempotency_key FROM job_tombstones)
    RETURNING id"""

_FORGET_STEPS = "DELETE FROM job_steps WHERE {job_among_ids}"

_PROMOTE = """
    UPDATE jobs SET ready = TRUE WHERE state = 'queued' AND NOT ready AND not_before <= :now"""

_LOWER_MARKS = """
    UPDATE queue_marks SET value = earliest.seq
    FROM (SELECT line, min(seq) AS seq FROM {jobs} AS again GROUP BY line) AS earliest
    WHERE queue_marks.line = earliest.line AND queue_marks.value > earliest.seq"""
_PROMOTE_BELOW_MARK = """
    WITH promoted AS ({promote} RETURNING {line} AS line, seq),
    returned AS (DELETE FROM queue_returned RETURNING line, seq)
    {lower_marks}"""

_NEXT_RIPE = "SELECT min(not_before) AS not_before FROM jobs WHERE state = 'queued' AND NOT ready"
_NEXT_RIPE_AND_XIDS = """
    SELECT ({next_ripe}), CAST(CAST(pg_snapshot_xmin(now) AS text) AS bigint),
           CAST(CAST(pg_snapshot_xmax(now) AS text) AS bigint)
    FROM pg_current_snapshot() AS now"""

_RECOVER = """
    UPDATE jobs SET
        state = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
        ready = attempts < max_attempts,
        finished_at = CASE WHEN attempts < max_attempts THEN finished_at ELSE :now END,
        last_error = 'worker ' || worker_id || ' went silent in attempt ' || attempts,
        lease_expires_at = NULL, queued_at = :now, updated_at = :now
    WHERE id IN (
        SELECT id FROM jobs
        WHERE state = 'running'{from_mark} AND (lease_expires_at < :now OR heartbeat_at > :absurd) AND NOT {among_ids}
        {skip_locked}
    )
    RETURNING id, type, state, last_error"""
_RECOVER_BELOW_MARK = """
    WITH recovered AS ({recover}, {line} AS line, seq, ready), lowered AS ({lower_marks})
    SELECT id, type, state, last_error FROM recovered"""

# Claims are numbered under the lock that is held now: none can come to be running below what is found.
_MOVE_RUNNING_MARK = """
    UPDATE queue_marks SET value = earliest.fence
    FROM (
        SELECT COALESCE(min(fence), (SELECT last_value FROM jobs_fence)) AS fence FROM jobs
        WHERE state = 'running'{from_mark}
    ) AS earliest
    WHERE line = 'running' AND value < earliest.fence"""
_TAKE_MARKS_BACK = "UPDATE queue_marks SET value = 0"
_MOVE_MARK = "UPDATE queue_marks SET value = :value WHERE line = :line AND value <= :value - :step"

_SET_GUARD = """
    UPDATE queue_guards SET run_high_priority = :run_high_priority, run_interactive = :run_interactive
    WHERE queue_name = :queue_name"""

# Several workers declare the same schedules when they start together; the first adds a row, the others find it.
_DECLARE_SCHEDULE = """
    INSERT INTO schedules (name, job_type, payload_json, idempotency_key, cadence, next_at)
    VALUES (:name, :job_type, :payload_json, :idempotency_key, :cadence, :next_at)
    ON CONFLICT (name) DO UPDATE SET
        job_type = excluded.job_type, payload_json = excluded.payload_json,
        idempotency_key = excluded.idempotency_key, cadence = excluded.cadence,
        next_at = CASE WHEN schedules.cadence = excluded.cadence THEN schedules.next_at ELSE excluded.next_at END"""


@dataclass(frozen=True)
class Statements:
    next_seqs: str
    enqueue: str
    guards: str
    set_guard: str
    claim: tuple[str, ...]
    """To be run one after the other; the first returns the claimed rows."""
    complete: str
    settle: str
    held: str
    heartbeat: str
    bury: str
    exhume: str
    forget_steps: str
    next_ripe: str
    promote: str
    depth: str
    recover: tuple[str, ...]
    """To be run one after the other; the first returns the recovered rows."""
    move_mark: str
    take_marks_back: str
    declare_schedule: str


@cache
def statements(dialect: Dialect) -> Statements:
    claim = {"fences": _fences(dialect), "holds_claim": _holds_claim(dialect)}
    among_ids = _among_ids(dialect)
    is_postgres = dialect is Dialect.POSTGRESQL
    held = _HELD.format(**claim)
    texts = {
        "next_seqs": _next_seqs(dialect),
        "enqueue": _ENQUEUE.format(records=_records(dialect, _ENQUEUE_COLUMNS)),
        "guards": _guards(dialect),
        "set_guard": _SET_GUARD,
        "depth": _for_each_line(dialect, _DEPTH),
        "complete": _COMPLETE.format(among_ids=among_ids),
        "settle": _SETTLE.format(records=_records(dialect, _SETTLE_COLUMNS), among_ids=among_ids),
        "held": held,
        "heartbeat": _HEARTBEAT.format(
            held=held, skip_locked_jobs="FOR UPDATE OF jobs SKIP LOCKED" if is_postgres else ""
        ),
        "bury": _BURY.format(among_ids=among_ids),
        "exhume": _EXHUME.format(among_ids=among_ids),
        "forget_steps": _FORGET_STEPS.format(job_among_ids=f"job_{among_ids}"),
        "next_ripe": _NEXT_RIPE,
        "promote": _PROMOTE,
        "move_mark": _MOVE_MARK,
        "take_marks_back": _TAKE_MARKS_BACK,
        "declare_schedule": _DECLARE_SCHEDULE,
    }
    recover, claims = [_recover(dialect)], [_CLAIMED, _CLAIM_BY_ROW]
    if is_postgres:
        texts |= _with_marks(texts)
        from_mark = _FROM_MARK.format(column="fence", line=_RUNNING)
        recover, claims = [*recover, _MOVE_RUNNING_MARK.format(from_mark=from_mark)], [_CLAIM_BY_ID]
    return Statements(
        **{name: database.driver_sql(dialect, sql) for name, sql in texts.items()},
        recover=tuple(database.driver_sql(dialect, sql) for sql in recover),
        claim=tuple(database.driver_sql(dialect, sql) for sql in claims),
    )


def heads(dialect: Dialect, count: int) -> tuple[database.Statement, int]:
    """The statement that reads the first jobs of each line, at least so many; and how many of a line it reads at most.

    For PostgreSQL the number is part of the text, and one of a few: a statement without parameters is planned once for
    a connection. With one, this longest of all statements was planned a dozen times, and then as if most were read.
    """
    if dialect is Dialect.SQLITE:
        return (_heads(dialect, ":limit"), {"limit": count}), count
    most = 1 << (count - 1).bit_length()
    return (_heads(dialect, str(most)), {}), most


@cache
def _heads(dialect: Dialect, limit: str) -> str:
    return database.driver_sql(dialect, _for_each_line(dialect, _HEAD, limit=limit))


def _for_each_line(dialect: Dialect, query: str, **values: str) -> str:
    is_postgres = dialect is Dialect.POSTGRESQL
    return "\n    UNION ALL".join(
        query.format(
            line=line,
            row="id" if is_postgres else "rowid",
            queue=queue,
            tier=tier,
            from_mark=_FROM_MARK.format(column="seq", line=mark_name(queue, tier)) if is_postgres else "",
            **values,
        )
        for line, (queue, tier) in enumerate(LINES)
    )


def _recover(dialect: Dialect) -> str:
    among_ids = _among_ids(dialect)
    if dialect is Dialect.SQLITE:
        return _RECOVER.format(among_ids=among_ids, from_mark="", skip_locked="")
    from_mark = _FROM_MARK.format(column="fence", line=_RUNNING)
    recover = _RECOVER.format(among_ids=among_ids, from_mark=from_mark, skip_locked="FOR UPDATE SKIP LOCKED")
    lower_marks = _LOWER_MARKS.format(jobs="(SELECT line, seq FROM recovered WHERE ready)")
    return _RECOVER_BELOW_MARK.format(recover=recover, line=_LINE_OF_JOB, lower_marks=lower_marks)


def _with_marks(texts: Mapping[str, str]) -> dict[str, str]:
    """Those that make jobs ready at an old place, as they are on PostgreSQL, and what its marks are moved by."""
    again = "(SELECT line, seq FROM promoted UNION ALL SELECT line, seq FROM returned)"
    return {
        "settle": _SETTLE_BELOW_MARK.format(settle=texts["settle"], line=_LINE_OF_JOB),
        "promote": _PROMOTE_BELOW_MARK.format(
            promote=texts["promote"], line=_LINE_OF_JOB, lower_marks=_LOWER_MARKS.format(jobs=again)
        ),
        "next_ripe": _NEXT_RIPE_AND_XIDS.format(next_ripe=texts["next_ripe"]),
    }
