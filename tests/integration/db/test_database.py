"""Opening, migrating and using the control database, on both kinds."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import SchemaItem

from postroom.db import Database, Dialect, Tx, connect, opening
from postroom.db.database import Statement, Topic, driver_sql
from postroom.db.opening import unmigrated
from postroom.db.plain_sqlite import sqlite_reader
from postroom.db.tables import all_tables
from postroom.db.tables.access import connectors
from postroom.db.tables.triage import decisions, rules
from postroom.db.tables.web import EVIDENCE_INDEX
from postroom.domain.errors import BadInput, Fatal, NewerSchema, Retryable
from postroom.domain.roles import Permission, Role, all_permissions
from postroom.settings import DatabaseSettings
from postroom.switchboard.tokens import list_tokens
from tests.support.databases import DatabaseFactory, PostgresFactory, SqliteFactory


def script_directory() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(opening.__file__).parent / "migrations"))
    return ScriptDirectory.from_config(config)


def test_the_head_that_the_code_names_is_the_last_migration() -> None:
    assert script_directory().get_current_head() == opening.SCHEMA_HEAD


async def test_the_migrations_make_exactly_the_tables_that_the_code_knows(database: Database) -> None:
    def belongs_here(item: SchemaItem, name: str | None, kind: str, reflected: bool, other: SchemaItem | None) -> bool:
        made_by_hand = reflected and str(name).startswith(EVIDENCE_INDEX)
        return not made_by_hand and bool(item.info.get("only", database.dialect) == database.dialect)

    def differences(tx: Tx) -> list[object]:
        options = {
            "compare_type": True,
            "compare_server_default": True,
            "include_object": belongs_here,
            "include_schemas": True,
        }
        return list(compare_metadata(MigrationContext.configure(tx.connection, opts=options), all_tables()))

    assert await database.read(differences) == []


SEEDS = {
    "0001": """
        INSERT INTO jobs (id, type, queue_name, policy_tier, seq, payload_json, state, ready, repeatable,
                          created_at, queued_at, updated_at)
        VALUES ('01990000-0000-7000-8000-000000000000', 'noop', 'live', 'default', 1, '{"n": 1}', 'queued', TRUE, FALSE,
                '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')""",
    "0002": """
        INSERT INTO accounts (id, provider, email, api_base, scopes, status, created_at, updated_at)
        VALUES ('01990000-0000-7000-8000-000000000001', 'gmail', 'me@example.com', 'https://gmail.googleapis.com', '',
                'active', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')""",
    "0003": """
        INSERT INTO sync_states (account_id, walk, walk_started_at, compared_walk, granularity, until, frontier,
                                 watermark, counters, updated_at)
        VALUES ('01990000-0000-7000-8000-000000000001', 1, '2026-01-01T00:00:00.000000Z', 0, 'week', 1, 1, 1, '{}',
                '2026-01-01T00:00:00.000000Z')""",
    "0004": """
        INSERT INTO messages (id, account_id, channel, provider, endpoint_identity, external_event_id, idempotency_key,
                              sender_identity, ingestion_tier, policy_tier, observed_at, received_at, accepted_at)
        VALUES ('01990000-0000-7000-8000-000000000002', '01990000-0000-7000-8000-000000000001', 'email', 'gmail',
                'me@example.com', '18c0', 'gmail:me@example.com:18c0', 'you@example.com', 'metadata', 'default',
                '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')""",
    "0005": """
        INSERT INTO actions (id, account_id, gmail_id, origin, type, status, wanted_by, created_at, updated_at)
        VALUES ('01990000-0000-7000-8000-000000000003', '01990000-0000-7000-8000-000000000001', '18c0', 'person',
                'archive', 'queued', 'me', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')""",
    "0006": """
        INSERT INTO backfill_runs (id, created_at, updated_at, sources, mode, max_urls, max_urls_per_source,
                                   concurrency, delay_ms, dry_run)
        VALUES ('01990000-0000-7000-8000-000000000004', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z',
                '["gazette"]', 'SITEMAP', 1000, 500, 2, 5000, FALSE);
        INSERT INTO backfill_run_urls (run_id, url_hash) VALUES ('01990000-0000-7000-8000-000000000004', 'abc');
        INSERT INTO web_endpoints (id, source_slug, name, mode, url, created_at)
        VALUES ('01990000-0000-7000-8000-000000000005', 'gazette', 'main', 'SITEMAP', 'https://gazette.example/s.xml',
                '2026-01-01T00:00:00.000000Z');
        INSERT INTO discovered_items (id, endpoint_id, url, fetch_url, discovery_method, run_id, job_key, discovered_at,
                                      updated_at)
        VALUES ('01990000-0000-7000-8000-000000000006', '01990000-0000-7000-8000-000000000005',
                'https://gazette.example/1', 'https://gazette.example/1', 'BACKFILL',
                '01990000-0000-7000-8000-000000000004', 'backfill:gazette:abc', '2026-01-01T00:00:00.000000Z',
                '2026-01-01T00:00:00.000000Z')""",
    "0007": """
        INSERT INTO dashboard_passphrases (name, hash, changed_at)
        VALUES ('owner', 'scrypt$1$1$1$c2FsdA==$aGFzaA==', '2026-01-01T00:00:00.000000Z')""",
}


async def test_rows_survive_every_migration_from_the_first_to_the_last(database_factory: DatabaseFactory) -> None:
    """Each revision's rows go in when it is reached; all of them are still there at the head."""
    url = database_factory.empty_url()
    revisions = [script.revision for script in reversed(list(script_directory().walk_revisions()))]
    assert set(SEEDS) <= set(revisions)
    raw = await open_without_migrating(url)
    for revision in revisions:
        await raw.write(lambda tx, target=revision: opening.upgrade_schema(tx.connection, target))  # type: ignore[misc]
        if revision in SEEDS:
            for rows in SEEDS[revision].split(";"):
                await raw.write(lambda tx, rows=rows: tx.execute(text(rows)))  # type: ignore[misc]
    await raw.close()
    database = await connect(url)
    of_web = ("backfill_runs", "backfill_run_urls", "web_endpoints", "discovered_items")
    for table in ("jobs", "accounts", "sync_states", "messages", "actions", *of_web, "dashboard_passphrases"):
        query = text(f"SELECT count(*) FROM {table}")  # noqa: S608 - the names stand above
        assert await database.read(lambda tx, query=query: tx.execute(query).scalar_one()) == 1  # type: ignore[misc]
    await database.close()


@pytest.mark.req("HW-4")
async def test_tokens_from_before_permissions_keep_what_they_could_do(database_factory: DatabaseFactory) -> None:
    url = database_factory.empty_url()
    raw = await open_without_migrating(url)
    await raw.write(lambda tx: opening.upgrade_schema(tx.connection, "0009"))
    insert = text(
        "INSERT INTO access_tokens (id, role, name, sha256, created_at) "
        "VALUES (:id, :role, :role, :role, '2026-01-01T00:00:00.000000Z')"
    )
    rows = [{"id": f"01990000-0000-7000-8000-00000000000{n}", "role": str(role)} for n, role in enumerate(Role)]
    await raw.write(lambda tx: tx.execute(insert, rows))
    await raw.close()
    database = await connect(url)
    tokens = await database.read(list_tokens)
    newer = {Permission.ASK, Permission.PROPOSE, Permission.UNDO}
    assert {token.role: token.permissions for token in tokens} == {role: all_permissions(role) - newer for role in Role}
    assert {token.made_by for token in tokens} == {None}
    await database.close()


@pytest.mark.req("JB-9")
async def test_rules_from_before_keep_their_months_and_connectors_their_rows(database_factory: DatabaseFactory) -> None:
    url = database_factory.empty_url()
    raw = await open_without_migrating(url)
    await raw.write(lambda tx: opening.upgrade_schema(tx.connection, "0015"))
    rule = text(
        "INSERT INTO rules (id, name, scope_ref, condition, actions, created_at, updated_at) VALUES "
        "('01990000-0000-7000-8000-000000000001', 'old', '', :condition, '[]', :at, :at)"
    )
    beat = text(
        "INSERT INTO connectors (connector_type, endpoint_identity, instance, version, status, first_seen_at, "
        "last_heartbeat_at) VALUES ('gmail', 'me@x.example', 'host', '1', 'running', :at, :at)"
    )
    at = "2026-01-01T00:00:00.000000Z"
    condition = '{"any": [{"older_than": "6m", "subject_contains": "6m"}, {"not": {"younger_than": " 12M "}}]}'

    def fill(tx: Tx) -> None:
        stored = rule if tx.dialect == "sqlite" else text(rule.text.replace(":condition", "CAST(:condition AS jsonb)"))
        tx.execute(stored, {"condition": condition, "at": at})
        tx.execute(beat, {"at": at})

    await raw.write(fill)
    await raw.close()
    database = await connect(url)
    found = await database.read(lambda tx: tx.execute(select(rules.c.condition, rules.c.off_for)).one())
    months = {"any": [{"older_than": "6mo", "subject_contains": "6m"}, {"not": {"younger_than": " 12mo "}}]}
    assert (found.condition, found.off_for) == (months, {})
    assert await database.read(lambda tx: tx.execute(select(connectors.c.instance)).scalars().all()) == ["host"]
    await database.close()


async def test_decisions_from_before_know_the_backfill_job_of_their_message(database_factory: DatabaseFactory) -> None:
    url = database_factory.empty_url()
    raw = await open_without_migrating(url)
    await raw.write(lambda tx: opening.upgrade_schema(tx.connection, "0042"))
    message = text(
        "INSERT INTO messages (id, channel, provider, endpoint_identity, external_event_id, idempotency_key, "
        "sender_identity, ingestion_tier, policy_tier, backfill_job_id, observed_at, received_at, accepted_at) "
        "VALUES (:id, 'email', 'gmail', 'me@example.com', :key, :key, 'you@example.com', 'metadata', 'default', :job, "
        ":at, :at, :at)"
    )
    decision = text(
        "INSERT INTO decisions (id, message_id, source, action, reason, created_at) "
        "VALUES (:id, :id, 'none', 'none', '', :at)"
    )
    job, at = "01990000-0000-7000-8000-000000000009", "2026-01-01T00:00:00.000000Z"
    live, old = "01990000-0000-7000-8000-000000000001", "01990000-0000-7000-8000-000000000002"

    def fill(tx: Tx) -> None:
        for row in ({"id": live, "key": "1", "job": None, "at": at}, {"id": old, "key": "2", "job": job, "at": at}):
            tx.execute(message, row)
            tx.execute(decision, {"id": row["id"], "at": at})

    await raw.write(fill)
    await raw.close()
    database = await connect(url)
    query = select(decisions.c.id, decisions.c.backfill_job_id)
    assert dict(await database.read(lambda tx: [tuple(row) for row in tx.execute(query)])) == {live: None, old: job}
    await database.close()


async def test_a_database_from_a_newer_version_is_refused_with_a_remedy_and_left_alone(database_url: str) -> None:
    database = await connect(database_url)
    await database.write(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    await database.close()
    with pytest.raises(NewerSchema, match=r"schema version 9999.*Upgrade Postroom"):
        await connect(database_url)
    raw = await open_without_migrating(database_url)
    assert await raw.read(lambda tx: opening.schema_revision(tx.connection)) == "9999"
    await raw.close()


async def test_processes_that_start_together_migrate_once(database_factory: DatabaseFactory) -> None:
    url = database_factory.empty_url()
    databases = await asyncio.gather(*(connect(url) for _ in range(4)))
    for database in databases:
        assert await database.read(lambda tx: opening.schema_revision(tx.connection)) == opening.SCHEMA_HEAD
        await database.close()


@pytest.mark.parametrize(
    "url",
    ["not a url", "mysql://localhost/x", "sqlite://", "sqlite:///:memory:"],
    ids=["text", "mysql", "no", "memory"],
)
async def test_an_address_that_cannot_be_used_is_refused_by_name(url: str) -> None:
    with pytest.raises(BadInput) as refusal:
        await connect(url)
    assert refusal.value.field == "database.url"


async def test_a_failed_transaction_leaves_nothing_and_runs_no_after_commit(database: Database) -> None:
    ran = []

    async def note() -> None:
        ran.append(1)

    def fail(tx: Tx) -> None:
        tx.after_commit("x", note)
        tx.execute(text("INSERT INTO queue_guards (queue_name) VALUES ('temporary')"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.write(fail)
    guards = await database.read(lambda tx: tx.execute(text("SELECT queue_name FROM queue_guards")).scalars().all())
    assert sorted(guards) == ["history", "live", "work"]
    assert ran == []


async def test_a_failing_action_after_commit_does_not_turn_the_success_into_a_failure(database: Database) -> None:
    async def fail() -> None:
        raise OSError("the pipe is broken")

    def commit(tx: Tx) -> str:
        tx.after_commit("x", fail)
        return "committed"

    assert await database.write(commit) == "committed"


async def test_a_topic_of_a_newer_version_is_passed_over(database: Database) -> None:
    async with database.wake.listen() as wakeups:
        wakeups.take()
        wakeups.put("z")
        wakeups.put(Topic.WORK)
        await wakeups.wait()
        assert wakeups.take() == {Topic.WORK}


async def test_what_a_statement_was_given_is_not_in_its_error(database: Database) -> None:
    statement = text("INSERT INTO queue_guards (queue_name) VALUES (:name)")
    with pytest.raises(IntegrityError) as refusal:
        await database.write(lambda tx: tx.execute(statement, [{"name": "Dear doctor"}, {"name": "live"}]))
    assert "Dear doctor" not in str(refusal.value)


async def test_statements_that_travel_together_are_one_transaction_and_tell_no_rows(database: Database) -> None:
    sql = driver_sql(database.dialect, "INSERT INTO queue_guards (queue_name) VALUES (:name) RETURNING queue_name")
    names = [{"name": "Dear doctor"}, {"name": "live"}]
    with pytest.raises((IntegrityError, sqlite3.IntegrityError)) as refusal:
        await database.write(lambda tx: tx.batch(*((sql, name) for name in names)))
    assert "Dear doctor" not in str(refusal.value)
    guards: Statement = ("SELECT queue_name FROM queue_guards ORDER BY queue_name", {})
    none = (driver_sql(database.dialect, "UPDATE queue_guards SET queue_name = '' WHERE queue_name = :name"), names[0])
    found = await database.write(lambda tx: tx.batch(guards, none, guards))
    assert [len(rows) for rows in found] == [3, 0, 3]
    assert [name for (name,) in found[0]] == ["history", "live", "work"]


async def test_a_peer_that_freezes_in_a_transaction_loses_its_locks(postgres_factory: PostgresFactory) -> None:
    database = await connect(postgres_factory.url())
    shown = await database.read(
        lambda tx: [
            tx.execute(text(f"SHOW {name}")).scalar()
            for name in ("idle_in_transaction_session_timeout", "lock_timeout")
        ]
    )
    assert shown == ["10s", "20s"]
    await database.close()


async def test_a_server_that_went_away_costs_one_failure_and_not_one_for_each_idle_connection(
    postgres_factory: PostgresFactory,
) -> None:
    url = postgres_factory.url()
    database = await connect(url)
    all_hold_one = threading.Barrier(5)

    def hold(tx: Tx) -> None:
        tx.rows("SELECT 1")
        all_hold_one.wait(30)

    await asyncio.gather(*(database.write(hold) for _ in range(5)))
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
    with pytest.raises(Retryable):
        await database.write(lambda tx: tx.rows("SELECT 1"))
    assert await database.write(lambda tx: tx.rows("SELECT 1")) == [(1,)]
    await database.close()


async def test_a_connection_in_use_while_another_is_lost_is_closed_in_the_end(
    postgres_factory: PostgresFactory,
) -> None:
    database = await connect(postgres_factory.url())
    in_use, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def hold(tx: Tx) -> Any:
        loop.call_soon_threadsafe(in_use.set)
        assert go_on.wait(30)
        return tx.connection.connection.driver_connection

    holding = asyncio.ensure_future(database.write(hold))
    await in_use.wait()
    with pytest.raises(Retryable):
        await database.write(lambda tx: tx.rows("SELECT pg_terminate_backend(pg_backend_pid())"))
    go_on.set()
    driver = await holding
    assert await database.write(lambda tx: tx.connection.connection.driver_connection) is not driver
    await database.close()
    assert driver.closed


async def test_actions_after_commit_run_once_for_each_key(database: Database) -> None:
    ran = []

    async def note() -> None:
        ran.append(1)

    def twice(tx: Tx) -> None:
        tx.after_commit("x", note)
        tx.after_commit("x", note)

    await database.write(twice)
    assert ran == [1]


async def test_wake_ups_reach_every_listener_and_a_dead_one_does_no_harm(database_url: str) -> None:
    first, second = await connect(database_url), await connect(database_url)
    if first.dialect is Dialect.SQLITE:
        folder = Path(database_url.removeprefix("sqlite:///") + ".wake")
        folder.mkdir()
        os.mkfifo(folder / "left-by-a-killed-process.fifo")
    async with first.wake.listen() as here, second.wake.listen() as there:
        here.take(), there.take()
        await first.wake.send(Topic.CANCEL)
        await here.wait()
        await there.wait()
        assert here.take() == there.take() == {Topic.CANCEL}
    await first.close()
    await second.close()


async def test_a_read_looks_once_for_what_it_shares_and_a_write_each_time(database: Database) -> None:
    looks = count(1)

    def twice(tx: Tx) -> list[int]:
        return [tx.shared("probe", lambda: next(looks)) for _ in range(2)]

    assert await database.read(twice) == [1, 1]
    assert await database.read(twice) == [2, 2]
    assert await database.write(twice) == [3, 4]


async def test_all_statements_of_a_read_see_one_moment(database_url: str) -> None:
    """A page asks several times; what is committed in between must not fit half of it."""
    url = make_url(database_url)
    rival = create_engine(url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url)
    database = await connect(database_url)
    try:
        await database.write(lambda tx: tx.execute(text("CREATE TABLE probe (n INTEGER)")))
        query = text("SELECT count(*) FROM probe")

        def read(tx: Tx) -> tuple[int, int]:
            before = tx.execute(query).scalar_one()
            with rival.begin() as other:
                other.execute(text("INSERT INTO probe VALUES (1)"))
            return before, tx.execute(query).scalar_one()

        assert await database.read(read) == (0, 0)
        assert await database.read(lambda tx: tx.execute(query).scalar_one()) == 1
    finally:
        await database.close()
        rival.dispose()


async def test_a_reader_never_waits_for_a_writer(sqlite_factory: SqliteFactory) -> None:
    url = sqlite_factory.url()
    database = await connect(url)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert await database.read(lambda tx: tx.execute(text("SELECT count(*) FROM jobs")).scalar_one()) == 0
    other.execute("ROLLBACK")
    other.close()
    await database.close()


async def test_a_writer_that_waits_too_long_for_another_process_may_try_again(sqlite_factory: SqliteFactory) -> None:
    url = sqlite_factory.url()
    database = await connect(url, DatabaseSettings(busy_timeout_s=0.05))
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Retryable, match="another process holds its write lock"):
        await database.write(lambda tx: tx.execute(text("DELETE FROM jobs")))
    other.execute("ROLLBACK")
    other.close()
    await database.close()


@pytest.mark.parametrize(("level", "number"), [("normal", 1), ("full", 2)])
async def test_sqlite_is_set_up_as_the_settings_say(sqlite_factory: SqliteFactory, level: str, number: int) -> None:
    database = await connect(sqlite_factory.url(), DatabaseSettings(synchronous=level))

    def pragmas(tx: Tx) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [tx.execute(text(f"PRAGMA {name}")).scalar_one() for name in names]

    assert await database.read(pragmas) == ["wal", number, 1, 30_000]
    await database.close()


async def test_a_damaged_file_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(b"this is no database at all, but long enough to be looked at" * 20)
    with pytest.raises(Fatal, match=r"damaged .* Restore it from a backup"):
        await connect(f"sqlite:///{path}")
    with pytest.raises(Fatal, match=r"damaged .* Restore it from a backup"), sqlite_reader(path, DatabaseSettings()):
        pytest.fail("it was opened")


def test_the_driver_alone_reads_only_files_of_this_version(sqlite_factory: SqliteFactory, tmp_path: Path) -> None:
    file = Path(make_url(sqlite_factory.url()).database or "")
    with sqlite_reader(file, DatabaseSettings()) as reader:
        assert reader is not None
        assert reader.rows("SELECT count(*) FROM jobs WHERE type = :type", {"type": "classify"}) == [(0,)]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.rows("DELETE FROM jobs")
    older, empty, missing = tmp_path / "older.db", tmp_path / "empty.db", tmp_path / "missing.db"
    shutil.copy(file, older)
    with closing(sqlite3.connect(older)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '0001'")
    empty.touch()
    for other in (older, empty, missing):
        with sqlite_reader(other, DatabaseSettings()) as reader:
            assert reader is None
    assert not missing.exists()


async def test_a_deadlock_is_resolved_by_running_the_loser_again(postgres_factory: PostgresFactory) -> None:
    """Two processes, each with an event loop of its own, lock the same two rows in opposite order."""
    url = postgres_factory.url()
    both_hold_one = threading.Barrier(2)
    runs = []

    def lock(connection: Connection, queue: str) -> None:
        connection.execute(text("SELECT 1 FROM queue_guards WHERE queue_name = :q FOR UPDATE"), {"q": queue})

    async def cross(first: str, second: str) -> None:
        own = await connect(url)

        def transaction(tx: Tx) -> None:
            runs.append(first)
            lock(tx.connection, first)
            if len(runs) <= 2:
                both_hold_one.wait(5)
            lock(tx.connection, second)

        await own.write(transaction)
        await own.close()

    await asyncio.gather(
        *(asyncio.to_thread(asyncio.run, cross(*pair)) for pair in (("live", "work"), ("work", "live")))
    )
    assert len(runs) == 3


async def test_a_server_that_is_not_there_may_be_back_later_and_the_password_is_not_told() -> None:
    with pytest.raises(Retryable) as trouble:
        await connect("postgresql://me:hunter2hunter2@127.0.0.1:1/postroom")
    assert "hunter2" not in trouble.value.message


def test_the_wake_folder_is_private(tmp_path: Path) -> None:
    async def listen() -> int:
        database = await connect(f"sqlite:///{tmp_path / 'x.db'}")
        async with database.wake.listen():
            mode = (tmp_path / "x.db.wake").stat().st_mode
        await database.close()
        return stat.S_IMODE(mode)

    assert asyncio.run(listen()) == 0o700
    assert list((tmp_path / "x.db.wake").iterdir()) == []


async def open_without_migrating(url: str) -> Database:
    return unmigrated(make_url(url), DatabaseSettings())
