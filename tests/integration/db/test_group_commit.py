"""Writes that wait at the same time share a commit, on PostgreSQL where they are to, and each ends as it would have
ended alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from postroom.db import Database, Tx, connect, gathering, postgres
from postroom.db.database import driver_sql
from postroom.db.sqlite import SqliteDatabase
from postroom.domain.errors import Retryable
from tests.support.databases import on_postgresql, on_sqlite

T = TypeVar("T")

Function = Callable[[Tx], Any]
CALLERS = 16
ACKNOWLEDGED = 400


@pytest_asyncio.fixture(autouse=True)
async def probe(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_LONGEST_TOGETHER_S", 60.0)  # how fast this machine is now decides nothing
    await database.write(lambda tx: tx.rows("CREATE TABLE probe (n INTEGER PRIMARY KEY, said TEXT)"))


def write(database: Database, function: Callable[[Tx], T]) -> asyncio.Future[T]:
    return asyncio.ensure_future(database.write(function, together="probe"))


async def gathered(database: Database, functions: list[Function]) -> list[Any]:
    """Run them so that all wait while the thread that would write them is busy; errors are returned."""
    async with kept_busy(database):
        waiting = [write(database, function) for function in functions]
        await asyncio.sleep(0)
    return await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def kept_busy(database: Database) -> AsyncIterator[None]:
    """The thread is held by another function for as long as the block lasts."""
    go_on, began, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def hold(tx: Tx) -> bool:
        loop.call_soon_threadsafe(began.set)
        return go_on.wait(30)

    holder = write(database, hold)
    await began.wait()
    yield
    go_on.set()
    assert await holder


async def one_by_one(database: Database, functions: list[Function]) -> list[Any]:
    return [(await asyncio.gather(database.write(each), return_exceptions=True))[0] for each in functions]


def commits(database: Database) -> list[int]:
    counted: list[int] = []
    if isinstance(database, SqliteDatabase):
        assert database._writer._connection is not None
        driver: Any = database._writer._connection.connection.driver_connection
        driver.set_trace_callback(lambda sql: counted.append(1) if sql == "COMMIT" else None)
    else:
        connections: Any = database._connections  # type: ignore[attr-defined]
        event.listen(connections._engine, "commit", lambda connection: counted.append(1))
    return counted


async def rows(database: Database) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await database.read(lambda tx: tx.rows("SELECT n, said FROM probe ORDER BY n"))]


def putting(n: int, said: str = "") -> Function:
    sql = "INSERT INTO probe VALUES (:n, :said) RETURNING n"
    return lambda tx: tx.rows(driver_sql(tx.dialect, sql), {"n": n, "said": said})[0][0]


def random_function(random: Random, notes: list[str]) -> Function:
    """Reads, writes, writes twice, refuses before or after it has written, or meets a row that is there already."""
    kind, n = random.choice(["put", "add", "count", "refuse", "put and refuse", "two"]), random.randrange(12)

    async def note() -> None:
        notes.append(f"{kind} {n}")

    def run(tx: Tx) -> Any:
        tx.after_commit("note", note)
        match kind:
            case "count":
                return tx.rows("SELECT count(*) FROM probe")[0][0]
            case "refuse":
                raise ValueError(f"no {n}")
            case "add":
                upsert = "INSERT INTO probe VALUES (:n, 'x') ON CONFLICT (n) DO UPDATE SET said = probe.said || 'x'"
                return tx.rows(driver_sql(tx.dialect, f"{upsert} RETURNING said"), {"n": n})[0][0]
            case "put":
                statement = text("INSERT INTO probe VALUES (:n, 'p') RETURNING n")
                return tx.execute(statement, {"n": n}).scalar_one()
        putting(n, kind)(tx)
        if kind == "put and refuse":
            raise ValueError(f"taken back {n}")
        return putting(n + 1, kind)(tx)

    return run


@pytest.mark.parametrize("seed", range(12))
async def test_a_group_ends_as_the_same_functions_do_one_by_one(database: Database, seed: int) -> None:
    ended = []
    for run in (one_by_one, gathered):
        random, notes = Random(seed), list[str]()
        await database.write(lambda tx: tx.rows("DELETE FROM probe"))
        functions = [random_function(random, notes) for _ in range(40)]
        answers = await run(database, functions)
        said = [f"{type(each).__name__}: {each}" for each in answers]
        ended.append((said, notes, await rows(database)))
    assert ended[0] == ended[1]
    assert any(said.startswith("ValueError") for said in ended[0][0])
    assert any("UNIQUE" in said or "duplicate key" in said for said in ended[0][0])


async def test_what_waits_together_is_committed_together(database: Database) -> None:
    counted = commits(database)
    assert await gathered(database, [putting(n) for n in range(20)]) == list(range(20))
    assert len(counted) == 2  # the one that kept the thread busy, and all the others


async def test_a_group_has_a_most(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_MOST_TOGETHER", 3)
    counted = commits(database)
    await gathered(database, [putting(n) for n in range(7)])
    assert len(counted) == 1 + 3


async def test_a_group_that_has_lasted_long_takes_no_more(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_LONGEST_TOGETHER_S", 0.0)
    counted = commits(database)
    await gathered(database, [putting(n) for n in range(4)])
    assert len(counted) == 1 + 4


async def test_a_commit_that_one_of_them_spoils_fails_for_that_one_only(database: Database) -> None:
    """A reference that is checked at the commit."""
    await database.write(
        lambda tx: tx.rows("CREATE TABLE later (n INTEGER REFERENCES probe (n) DEFERRABLE INITIALLY DEFERRED)")
    )
    orphan = text("INSERT INTO later VALUES (99)")
    answers = await gathered(database, [putting(1), lambda tx: tx.execute(orphan).rowcount, putting(2)])
    assert (answers[0], answers[2]) == (1, 2)
    assert isinstance(answers[1], IntegrityError | sqlite3.IntegrityError)
    assert [n for n, _ in await rows(database)] == [1, 2]
    assert await database.read(lambda tx: tx.rows("SELECT * FROM later")) == []


@on_sqlite
async def test_a_transaction_that_the_database_ends_takes_nobody_along(database: Database) -> None:
    """As SQLite does when the disk is full: it rolls everything back at once."""
    trigger = "CREATE TRIGGER full BEFORE INSERT ON probe WHEN new.n = 13 BEGIN SELECT RAISE(ROLLBACK, 'full'); END"
    await database.write(lambda tx: tx.rows(trigger))
    answers = await gathered(database, [putting(1), putting(13), putting(2)])
    assert [str(each) for each in answers] == ["1", "full", "2"]
    assert [n for n, _ in await rows(database)] == [1, 2]


async def test_nobody_is_answered_before_the_commit_is_there_for_all(database: Database, database_url: str) -> None:
    seen: list[int] = []
    other = await connect(database_url)

    async def look() -> None:
        seen.append(len(await rows(other)))

    def put(n: int) -> Function:
        def run(tx: Tx) -> None:
            tx.after_commit("look", look)
            putting(n)(tx)

        return run

    await gathered(database, [put(n) for n in range(10)])
    assert seen == [10] * 10
    await other.close()


async def test_what_is_given_up_while_it_waits_is_not_done(database: Database) -> None:
    async with kept_busy(database):
        waiting = [write(database, putting(n)) for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
    await asyncio.wait(waiting)
    assert waiting[1].cancelled()
    assert [n for n, _ in await rows(database)] == [0, 2]


async def test_a_function_that_runs_out_of_rows_fails_and_keeps_nobody_waiting(database: Database) -> None:
    answers = await gathered(database, [putting(1), lambda tx: next(iter(())), putting(2)])
    assert (answers[0], answers[2]) == (1, 2)
    assert isinstance(answers[1], RuntimeError)


async def test_a_closed_database_refuses_and_does_not_hang(database_url: str) -> None:
    database = await connect(database_url)
    await database.close()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await write(database, lambda tx: tx.rows("SELECT 1"))
        with pytest.raises(RuntimeError):
            await database.write(lambda tx: tx.rows("SELECT 1"))
        with pytest.raises(RuntimeError):
            await database.read(lambda tx: tx.rows("SELECT 1"))


_WRITER = """
import asyncio, os, sys
from postroom.db import connect
from postroom.db.database import driver_sql
async def main():
    database = await connect(sys.argv[1])
    async def caller(number):
        for turn in range(1_000_000):
            n = number + 16 * turn
            sql = driver_sql(database.dialect, "INSERT INTO probe VALUES (:n, 'x')")
            await database.write(lambda tx: tx.rows(sql, {"n": n}), together="probe")
            os.write(1, b"%d\\n" % n)
    await asyncio.gather(*(caller(number) for number in range(16)))
asyncio.run(main())
"""


@pytest.mark.req("JB-3")
async def test_nothing_acknowledged_is_lost_when_the_process_is_killed(database: Database, database_url: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, database_url, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    assert child.stdout is not None
    acknowledged = [int(await child.stdout.readline()) for _ in range(ACKNOWLEDGED)]
    child.kill()
    acknowledged += [int(line) for line in (await child.stdout.read()).splitlines()]
    await child.wait()
    stored = {n for n, _ in await rows(database)}
    assert stored.issuperset(acknowledged)
    assert len(stored) <= len(acknowledged) + CALLERS  # each caller had one under way


async def test_writes_of_one_turn_share_a_commit(database: Database) -> None:
    counted = commits(database)
    await asyncio.gather(*(write(database, putting(n)) for n in range(9)))
    assert len(counted) == 1


@on_postgresql
async def test_writes_that_are_not_to_share_a_transaction_have_one_each(database: Database) -> None:
    counted = commits(database)
    await asyncio.gather(*(database.write(putting(n)) for n in range(9)))
    assert len(counted) == 9


@on_postgresql
async def test_a_lost_connection_fails_only_the_one_that_loses_it(database: Database) -> None:
    def lose(tx: Tx) -> object:
        return tx.rows("SELECT pg_terminate_backend(pg_backend_pid())")

    answers = await gathered(database, [putting(1), lose, putting(2)])
    assert (answers[0], answers[2]) == (1, 2)
    assert isinstance(answers[1], Retryable)
    assert [n for n, _ in await rows(database)] == [1, 2]


@on_postgresql
async def test_one_that_is_given_up_while_its_group_waits_for_a_lock_keeps_no_other_from_its_end(
    database: Database, database_url: str
) -> None:
    with psycopg.connect(database_url) as rival:
        rival.execute("INSERT INTO probe VALUES (1)")
        waiting = [write(database, putting(n)) for n in (0, 1, 2)]
        await until_one_waits_for_a_lock(rival)
        waiting[0].cancel()
        rival.rollback()
        assert await asyncio.gather(*waiting[1:]) == [1, 2]
    assert waiting[0].cancelled()
    assert {1, 2} <= {n for n, _ in await rows(database)}


@on_postgresql
async def test_a_group_that_everyone_gave_up_waits_for_no_lock(database: Database, database_url: str) -> None:
    with psycopg.connect(database_url) as rival:
        rival.execute("INSERT INTO probe VALUES (1)")
        waiting = [write(database, putting(n)) for n in (0, 1)]
        await until_one_waits_for_a_lock(rival)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        assert await write(database, putting(2)) == 2  # while the rival still holds its lock
    assert [n for n, _ in await rows(database)] == [1, 2]


@on_postgresql
async def test_the_last_statements_of_one_function_do_not_commit_what_others_of_its_group_wrote(
    database: Database,
) -> None:
    sql = driver_sql(database.dialect, "INSERT INTO probe VALUES (:n, '')")

    def put_and_refuse(tx: Tx) -> None:
        tx.batch((sql, {"n": 2}), (sql, {"n": 3}), commit=True)
        raise ValueError("taken back")

    answers = await gathered(database, [putting(1), put_and_refuse, putting(4)])
    assert isinstance(answers[1], ValueError)
    assert [n for n, _ in await rows(database)] == [1, 4]


@on_postgresql
async def test_a_lock_that_is_held_too_long_fails_a_group_once_and_not_each_of_it_in_turn(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres._LIMITS, "lock_timeout", "100ms")
    impatient, runs = await connect(database_url), list[int]()

    def put(n: int) -> Function:
        def run(tx: Tx) -> object:
            runs.append(n)
            return putting(1)(tx)

        return run

    with psycopg.connect(database_url) as rival:
        rival.execute("INSERT INTO probe VALUES (1)")
        answers = await gathered(impatient, [put(n) for n in range(9)])
    assert all(isinstance(answer, Retryable) for answer in answers)
    assert runs == [0]
    assert await write(impatient, putting(2)) == 2
    await impatient.close()


async def until_one_waits_for_a_lock(rival: psycopg.Connection[Any]) -> None:
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while rival.execute(blocked).fetchone() != (1,):
        await asyncio.sleep(0.01)


async def test_reads_of_one_turn_share_what_they_find_and_later_ones_look_again(database: Database) -> None:
    looks: list[int] = []

    def count(tx: Tx) -> int:
        def look() -> int:
            [(found,)] = tx.rows("SELECT count(*) FROM probe")
            looks.append(found)
            return int(found)

        return tx.shared("probe", look)

    assert await asyncio.gather(*(database.read(count) for _ in range(5))) == [0] * 5
    assert looks == [0]
    await database.write(lambda tx: tx.rows("INSERT INTO probe (n) VALUES (1)"))
    assert await database.read(count) == 1


async def test_a_write_shares_nothing_that_it_read_before(database: Database) -> None:
    def twice(tx: Tx) -> list[int]:
        def look() -> int:
            return len(tx.rows("SELECT n FROM probe"))

        before = tx.shared("probe", look)
        tx.rows("INSERT INTO probe (n) VALUES (1)")
        return [before, tx.shared("probe", look)]

    assert await database.write(twice) == [0, 1]
