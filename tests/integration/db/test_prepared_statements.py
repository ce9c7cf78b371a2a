"""Statements that every message runs, prepared once on each connection to PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from sqlalchemy import bindparam, insert, select
from sqlalchemy.exc import DBAPIError

from postroom.db import Database, Prepared, Tx, connect
from postroom.db.tables.triage import spend_limits
from postroom.domain.clock import utc_text
from postroom.domain.errors import Retryable
from postroom.settings import DatabaseSettings
from tests.support.databases import PostgresFactory

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ADD = Prepared(insert(spend_limits))
LIMIT = Prepared(select(spend_limits).where(spend_limits.c.name == bindparam("the_name")))


@pytest.fixture
async def postgresql(postgres_factory: PostgresFactory) -> AsyncIterator[Database]:
    """With one connection, so that what happens to it is met by what comes after."""
    database = await connect(postgres_factory.url(), DatabaseSettings(pool_size=1))
    yield database
    await database.close()


def limit(name: str = "a", amount: int = 1, by: str = "me", at: datetime = NOON) -> dict[str, Any]:
    return {"name": name, "microdollars": amount, "changed_at": at, "changed_by": by}


def amounts(tx: Tx, name: str = "a") -> list[int]:
    return [row.microdollars for row in tx.run(LIMIT, {"the_name": name})]


@pytest.mark.parametrize(
    "text", ["", "100 % of it", "$1 and %(name)s", 'it\'s \\ "so"', "Grüße 你好 🙂", "x" * 100_000]
)
async def test_texts_come_back_as_they_went_in(database: Database, text: str) -> None:
    await database.write(lambda tx: tx.run(ADD, limit(text or "none", by=text)))
    [row] = await database.read(lambda tx: tx.run(LIMIT, {"the_name": text or "none"}))
    assert row.changed_by == text


@pytest.mark.parametrize("amount", [0, -1, 32_768, 2_147_483_648, 2**62])
async def test_numbers_of_every_size_go_through_one_statement(database: Database, amount: int) -> None:
    await database.write(lambda tx: (tx.run(ADD, limit(amount=7)), tx.run(ADD, limit("b", amount))))
    assert await database.read(lambda tx: (amounts(tx), amounts(tx, "b"))) == ([7], [amount])


async def test_times_are_utc_whatever_zone_they_were_said_in(database: Database) -> None:
    said = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    await database.write(lambda tx: tx.run(ADD, limit(at=said)))
    [row] = await database.read(lambda tx: tx.run(LIMIT, {"the_name": "a"}))
    assert (utc_text(row.changed_at), row.changed_by) == (utc_text(NOON), "me")


async def test_a_statement_goes_on_after_a_transaction_that_failed(postgresql: Database) -> None:
    def refused(tx: Tx) -> None:
        assert amounts(tx) == [1]
        tx.rows("SELECT 1/0")

    await postgresql.write(lambda tx: tx.run(ADD, limit()))
    for _ in range(2):
        with pytest.raises(DBAPIError, match="division by zero"):
            await postgresql.write(refused)
        assert await postgresql.read(amounts) == [1]


async def test_a_row_that_is_refused_is_not_repeated_in_the_error(postgresql: Database) -> None:
    await postgresql.write(lambda tx: tx.run(ADD, limit("a secret")))
    with pytest.raises(DBAPIError) as raised:
        await postgresql.write(lambda tx: tx.run(ADD, limit("a secret")))
    assert isinstance(raised.value.orig, psycopg.errors.UniqueViolation)
    assert "a secret" not in str(raised.value)


async def test_of_a_group_one_that_fails_leaves_the_statements_of_the_others(postgresql: Database) -> None:
    await postgresql.write(lambda tx: tx.run(ADD, limit()))

    def add(name: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(postgresql.write(lambda tx: (amounts(tx), tx.run(ADD, limit(name))), together="x"))

    for number in range(3):
        outcomes = await asyncio.gather(*map(add, (f"b{number}", "a", f"c{number}")), return_exceptions=True)
        assert [isinstance(each, DBAPIError) for each in outcomes] == [False, True, False]
        assert await postgresql.read(lambda tx, n=number: amounts(tx, f"c{n}")) == [1]  # type: ignore[misc]


async def test_a_statement_that_is_gone_from_its_connection_is_prepared_again(postgresql: Database) -> None:
    runs = 0

    def look(tx: Tx) -> list[int]:
        nonlocal runs
        runs += 1
        return amounts(tx)

    await postgresql.write(lambda tx: tx.run(ADD, limit()))
    assert await postgresql.write(look) == [1]
    await postgresql.write(lambda tx: tx.rows("DEALLOCATE ALL"))
    assert await postgresql.write(look) == [1]
    assert runs == 3, "the transaction ran again, from its beginning"


async def test_a_connection_that_is_lost_is_replaced(postgres_factory: PostgresFactory) -> None:
    url = postgres_factory.url()
    database = await connect(url, DatabaseSettings(pool_size=1))
    await database.write(lambda tx: tx.run(ADD, limit()))
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with pytest.raises(Retryable, match="The database went away"):
        await database.write(amounts)
    assert await database.write(amounts) == [1]
    await database.close()


async def test_what_only_reads_changes_nothing(postgresql: Database) -> None:
    with pytest.raises(Retryable, match="read-only transaction"):
        await postgresql.read(lambda tx: tx.run(ADD, limit()))
    assert await postgresql.write(amounts) == []


async def test_what_is_no_text_for_postgresql_is_refused_and_harms_nothing(postgresql: Database) -> None:
    with pytest.raises(DBAPIError, match="NUL"):
        await postgresql.write(lambda tx: tx.run(ADD, limit(by="a\0b")))
    assert await postgresql.write(amounts) == []
