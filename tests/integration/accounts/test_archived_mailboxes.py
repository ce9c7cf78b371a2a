"""Mailboxes that have mail in the archive and no login: a message of theirs that cannot be read is listed everywhere
and tried again like any other. On both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text, update
from sqlalchemy.engine import make_url

from postroom.accounts.account import (
    ArchivedMailbox,
    NewAccount,
    add_account,
    find_mailbox,
    list_archived_mailboxes,
    mailbox_id,
    remove_account,
)
from postroom.accounts.troubled import (
    ArrivalLane,
    MessageTrouble,
    TroubleKind,
    count_troubled,
    record_trouble,
    troubled_archives,
    troubled_of,
)
from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.archive.messages import IncomingMail, Provenance
from postroom.db import Database, Tx, connect, opening
from postroom.db.tables.accounts import troubled_messages
from postroom.domain.clock import ManualClock
from postroom.queue import NewJob
from postroom.queue.inspection import JobFilter, list_jobs
from postroom.reading.mail import READER_VERSION
from postroom.settings import DatabaseSettings, Settings
from postroom.telemetry import metrics
from tests.support.archives import plain_letter
from tests.support.commands import in_this_process
from tests.support.databases import DatabaseFactory
from tests.support.mail import inline
from tests.support.reading_faults import break_reading
from tests.support.switchboards import open_bench

pytestmark = pytest.mark.req("HW-1")

NOW = datetime(2026, 6, 15, tzinfo=UTC)
OLD = "old@example.org"
BASE = "http://127.0.0.1:1"
HOSTILE = plain_letter("Hostile")


def is_hostile(raw: bytes) -> bool:
    return b"Hostile" in raw


def trouble(key: str, kind: TroubleKind = TroubleKind.READ) -> MessageTrouble:
    return MessageTrouble(key, kind, "ValueError")


def test_imported_mail_of_no_account_is_listed_told_by_the_doctor_and_tried_again(
    home: Path, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, raw in enumerate((plain_letter("Fine", message_id="<b@example.org>"), HOSTILE)):
        (tmp_path / f"{number}.eml").write_bytes(raw)
    with monkeypatch.context() as patch:
        monkeypatch.setenv("POSTROOM_DATABASE__URL", database_url)
        break_reading(patch, is_hostile)
        assert in_this_process("import", "eml", str(tmp_path), "--account", "Old@Example.org").code == 0
        for named in ((), ("--account", OLD)):
            [listed] = in_this_process("sync", "bad", "list", *named, "--json").json
            assert listed["account"] == OLD
            assert (listed["message"]["lane"], listed["message"]["archived"]) == ("import", True)
        key = listed["message"]["key"]
        told = [each for each in in_this_process("doctor", "--json").json if each["check"] == "mail"]
        assert [(each["account"], each["verdict"]) for each in told] == [(OLD, "warning")]
        assert "1 message gave trouble" in told[0]["message"]
        again = in_this_process("sync", "bad", "retry", "--json")
        assert (again.code, again.json["accounts"][OLD]["still_bad"]) == (1, [key])
    done = in_this_process("sync", "bad", "retry", key, "--account", OLD, "--json")
    assert (done.code, done.json["accounts"][OLD]["stored"]) == (0, [key])
    assert in_this_process("sync", "bad", "list", "--account", OLD, "--json").json == []
    assert len(in_this_process("search", "Hostile", "--json").json["hits"]) == 1
    unknown = in_this_process("sync", "bad", "list", "--account", "nobody@example.org")
    assert (unknown.code, "there is no account nobody@example.org" in unknown.stderr) == (2, True)


@asynccontextmanager
async def installation(home: Path, url: str) -> AsyncIterator[App]:
    home.mkdir(mode=0o700)
    async with open_app(Settings(home=home, database=DatabaseSettings(url=SecretStr(url)))) as app:
        yield app


async def work(app: App) -> None:
    async with open_worker(app, until_idle=True) as worker:
        await app.database.write(app.queue.fire_schedules)
        await worker.run()


async def test_a_worker_counts_it_under_an_opaque_id_and_reads_it_again_after_an_upgrade(
    home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics.configure()
    async with installation(home, database_url) as app:
        break_reading(monkeypatch, is_hostile)
        async with app.archive.store(OLD, "a test") as store:
            [proof] = await store.store([IncomingMail(HOSTILE, Provenance.IMPORT)])

        def listed(tx: Tx) -> str:
            owner = mailbox_id(tx, OLD, app.clock.now())
            record_trouble(tx, owner, ArrivalLane.IMPORT, [trouble(proof.key)], app.clock.now())
            return owner

        owner = await app.database.write(listed)
        await work(app)
        assert {each.key for each in await app.database.read(lambda tx: troubled_of(tx, owner))} == {proof.key}
        [counted] = [sample for sample in metrics.samples() if sample.name.startswith("postroom_mail_troubled")]
        assert (counted.labels["account"], counted.labels["lane"], counted.value) == (owner, "import", 1.0)
        monkeypatch.undo()
        await app.database.write(
            lambda tx: tx.execute(update(troubled_messages).values(reader_version=READER_VERSION - 1))
        )
        await app.queue.enqueue(NewJob("accounts.each", {"type": "sync.bad.gmail"}))
        await work(app)
        assert await app.database.read(lambda tx: troubled_of(tx, owner)) == []
        [job] = await app.database.read(lambda tx: list_jobs(tx, JobFilter(type="sync.bad.gmail")))
        assert (job.state, job.result) == ("completed", {"stored": 1, "gone": 0, "still_bad": 0})


async def test_an_account_that_is_added_later_takes_the_messages_over(database: Database, clock: ManualClock) -> None:
    def listed(tx: Tx) -> str:
        made = mailbox_id(tx, OLD, NOW)
        record_trouble(tx, made, ArrivalLane.IMPORT, [trouble("i1")], NOW)
        return made

    made = await database.write(listed)
    assert await database.read(lambda tx: find_mailbox(tx, OLD)) == ArchivedMailbox(made, OLD)
    account = await database.write(lambda tx: add_account(tx, NewAccount("Old@example.org", BASE), NOW))
    assert account.id == made
    assert await database.read(list_archived_mailboxes) == []
    assert [each.key for each in await database.read(lambda tx: troubled_of(tx, account.id))] == ["i1"]
    assert await database.write(lambda tx: mailbox_id(tx, OLD, NOW)) == made


async def test_of_a_removed_account_that_is_listed_which_can_still_be_tried(database: Database) -> None:
    def listed(tx: Tx) -> str:
        account = add_account(tx, NewAccount(OLD, BASE), NOW)
        kinds = {"a": TroubleKind.FETCH, "b": TroubleKind.READ, "c": TroubleKind.INTAKE}
        record_trouble(tx, account.id, ArrivalLane.SYNC, [trouble(key, kind) for key, kind in kinds.items()], NOW)
        return account.id

    owner = await database.write(listed)
    assert await database.read(troubled_archives) == []
    await database.write(lambda tx: remove_account(tx, owner, NOW))
    assert await database.read(troubled_archives) == [(ArchivedMailbox(owner, OLD), 1)]
    assert await database.read(count_troubled) == {owner: {ArrivalLane.SYNC: 1}}
    assert [each.key for each in await database.read(lambda tx: troubled_of(tx, owner))] == ["b"]
    await database.write(lambda tx: add_account(tx, NewAccount(OLD, BASE), NOW))
    assert [each.key for each in await database.read(lambda tx: troubled_of(tx, owner))] == ["a", "b", "c"]


async def test_a_mailbox_that_becomes_an_account_at_the_same_moment_has_one_id(database: Database) -> None:
    for number in range(10):
        email = f"me{number}@example.com"
        one, other = await asyncio.gather(
            database.write(lambda tx, email=email: mailbox_id(tx, email, NOW)),  # type: ignore[misc]
            database.write(lambda tx, email=email: add_account(tx, NewAccount(email, BASE), NOW)),  # type: ignore[misc]
        )
        assert one == other.id


async def test_mail_that_a_connector_brings_for_no_account_is_listed_too(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_reading(monkeypatch, is_hostile)
    message: dict[str, Any] = {"gmail_id": "a1", "internal_date": 1_767_268_800_000, "raw": inline(HOSTILE)["base64"]}
    async with open_bench(database, tmp_path) as bench, bench.client() as call:
        await call("archive.store", endpoint_identity=OLD, messages=[message])
        [(mailbox, number)] = await database.read(troubled_archives)
        assert (mailbox.email, number) == (OLD, 1)
        monkeypatch.undo()
        await call("archive.store", endpoint_identity=OLD, messages=[message])
        assert await database.read(troubled_archives) == []


async def test_messages_listed_before_the_upgrade_are_kept(database_factory: DatabaseFactory) -> None:
    url = database_factory.empty_url()
    raw = opening.unmigrated(make_url(url), DatabaseSettings())
    owner, at = "01990000-0000-7000-8000-000000000001", "2026-06-15T00:00:00.000000Z"

    def before(tx: Tx) -> None:
        opening.upgrade_schema(tx.connection, "0014")
        tx.execute(
            text(
                "INSERT INTO accounts (id, provider, email, api_base, scopes, status, created_at, updated_at) "
                "VALUES (:id, 'gmail', 'me@example.org', 'http://127.0.0.1:1', '', 'active', :at, :at)"
            ),
            {"id": owner, "at": at},
        )
        tx.execute(
            text(
                "INSERT INTO troubled_messages (account_id, message_key, lane, kind, archived, reason, first_seen, "
                "last_tried, tries, reader_version) "
                "VALUES (:id, '18f', 'live', 'fetch', false, 'broken', :at, :at, 4, 1)"
            ),
            {"id": owner, "at": at},
        )

    await raw.write(before)
    await raw.close()
    database = await connect(url)
    [kept] = await database.read(lambda tx: troubled_of(tx, owner))
    await database.close()
    assert (kept.key, kept.lane, kept.kind, kept.archived) == ("18f", ArrivalLane.LIVE, TroubleKind.FETCH, False)
    assert (kept.reason, kept.first_seen, kept.tries, kept.reader_version) == ("broken", NOW, 4, 1)
