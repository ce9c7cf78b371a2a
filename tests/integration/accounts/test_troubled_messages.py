"""The list of troubled messages, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from postroom.accounts.account import NewAccount, add_account
from postroom.accounts.troubled import (
    ArrivalLane,
    MessageTrouble,
    TroubleKind,
    are_listed,
    count_troubled,
    forget_trouble,
    record_trouble,
    show_troubled,
    troubled_number,
    troubled_of,
)
from postroom.db import Database, Tx, opening
from postroom.telemetry import metrics

pytestmark = pytest.mark.req("HW-1")

NOW = datetime(2026, 6, 15, tzinfo=UTC)


async def account_of(database: Database, email: str = "me@example.org") -> str:
    account = await database.write(lambda tx: add_account(tx, NewAccount(email, "http://127.0.0.1:1"), NOW))
    return account.id


def record(
    account_id: str, lane: ArrivalLane, key: str, kind: TroubleKind, reason: str = "no", now: datetime = NOW
) -> object:
    return lambda tx: record_trouble(tx, account_id, lane, [MessageTrouble(key, kind, reason)], now)


async def test_trouble_is_recorded_counted_and_forgotten(database: Database) -> None:
    mine, other = await account_of(database), await account_of(database, "other@example.org")
    later = NOW + timedelta(hours=1)

    def begin(tx: Tx) -> None:
        record_trouble(tx, mine, ArrivalLane.LIVE, [MessageTrouble("a", TroubleKind.FETCH, "x" * 900)], NOW)
        record_trouble(tx, mine, ArrivalLane.SYNC, [MessageTrouble("a", TroubleKind.READ, "ValueError")], later)
        record_trouble(tx, mine, ArrivalLane.IMPORT, [MessageTrouble("i9", TroubleKind.READ, "MemoryError")], later)
        record_trouble(tx, other, ArrivalLane.BACKFILL, [MessageTrouble("a", TroubleKind.INTAKE, "no")], NOW)

    await database.write(begin)
    first, second = await database.read(lambda tx: troubled_of(tx, mine))
    assert (first.key, first.lane, first.kind, first.archived) == ("a", ArrivalLane.LIVE, TroubleKind.READ, True)
    assert (first.reason, first.tries, first.first_seen, first.last_tried) == ("ValueError", 2, NOW, later)
    assert second.lane is ArrivalLane.IMPORT
    counts = await database.read(count_troubled)
    assert counts == {mine: {ArrivalLane.LIVE: 1, ArrivalLane.IMPORT: 1}, other: {ArrivalLane.BACKFILL: 1}}
    assert await database.read(lambda tx: (troubled_number(tx), troubled_number(tx, mine))) == (3, 2)
    assert await database.read(lambda tx: are_listed(tx, mine, ["z", "i9"]))
    assert [each.key for each in await database.read(lambda tx: troubled_of(tx, mine, "a", 5))] == ["i9"]
    assert await database.write(lambda tx: forget_trouble(tx, mine, ["a", "i9"], [TroubleKind.FETCH])) == 0
    assert await database.write(lambda tx: forget_trouble(tx, mine, ["a", "i9", "z"])) == 2
    assert await database.read(lambda tx: troubled_number(tx, mine)) == 0


async def test_bad_messages_from_before_the_upgrade_are_kept(database: Database) -> None:
    mine = await account_of(database)

    def before(tx: Tx) -> None:
        tx.connection.execute(text("DROP TABLE troubled_messages"))
        for column in ("moved_at", "unfinished"):
            tx.connection.execute(text(f"ALTER TABLE history_cursors DROP COLUMN {column}"))
        kind = "uuid" if tx.connection.dialect.name == "postgresql" else "text"
        time = "timestamptz" if kind == "uuid" else "text"
        tx.connection.execute(
            text(
                f"CREATE TABLE sync_bad_messages (account_id {kind}, gmail_id text, reason text, first_seen {time}, "
                f"last_tried {time}, tries integer, reader_version integer)"
            )
        )
        values = {"account": mine, "at": "2026-06-15T00:00:00.000000Z"}
        insert = "INSERT INTO sync_bad_messages VALUES (:account, '18f', 'broken', :at, :at, 4, 1)"
        tx.connection.execute(text(insert), values)
        tx.connection.execute(text("UPDATE alembic_version SET version_num = '0009'"))
        opening.upgrade_schema(tx.connection, "0010")

    await database.write(before)
    [kept] = await database.read(lambda tx: troubled_of(tx, mine))
    assert (kept.key, kept.lane, kept.kind, kept.archived) == ("18f", ArrivalLane.SYNC, TroubleKind.FETCH, False)
    assert (kept.reason, kept.tries, kept.first_seen, kept.reader_version) == ("broken", 4, NOW, 1)


def test_the_metrics_count_by_account_id_and_lane_and_name_no_address() -> None:
    metrics.configure()
    show_troubled({"0199-id": {ArrivalLane.LIVE: 2}})
    found = [sample for sample in metrics.samples() if sample.name.startswith("postroom_mail_troubled")]
    show_troubled({})
    assert [(sample.labels["account"], sample.labels["lane"], sample.value) for sample in found] == [
        ("0199-id", "live", 2.0)
    ]
