"""`postroom audit verify` as a person runs it, what the doctor says of it, and what a backup keeps of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postroom import settings
from postroom.app import open_app
from postroom.app.auditing import sealing
from postroom.domain.clock import SystemClock
from tests.support.commands import CommandResult, postroom

pytestmark = pytest.mark.req("HW-5")


async def seal() -> None:
    """What a service does from its start to its end."""
    async with open_app(settings.load(), SystemClock()) as app, sealing(app):
        pass


async def some_deeds(count: int = 3) -> None:
    for number in range(count):
        assert (await postroom("token", "create", "--role", "agent", "--name", f"t{number}")).code == 0


def tamper(home: Path, *statements: str) -> None:
    with closing(sqlite3.connect(home / "postroom.db", isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


async def finding(check: str = "audit") -> dict[str, str]:
    found = (await postroom("doctor", "--json")).json
    return next(each for each in found if each["check"] == check)


async def test_what_waits_what_is_sealed_and_what_cannot_be_seen_is_said(home: Path) -> None:
    await some_deeds(2)
    before = await postroom("audit", "verify")
    assert before.code == 0
    assert "0 entries are sealed, 2 wait to be sealed, the oldest for" in before.stdout
    await seal()
    after = await postroom("audit", "verify")
    assert after.code == 0
    assert "2 entries are sealed, none waits to be sealed." in after.stdout
    assert "Every sealed entry is as it was when it was sealed." in after.stdout
    assert "What this check cannot detect:" in after.stdout
    assert "within about two seconds" in after.stdout
    assert len((await postroom("audit", "--json")).json["entries"]) == 2
    assert (await finding())["verdict"] == "ok"
    assert "found sound" in (await finding())["message"]


async def test_a_tampered_log_is_named_by_the_command_and_by_the_doctor(home: Path) -> None:
    await some_deeds()
    await seal()
    tamper(home, "UPDATE audit_log SET actor_name = 'mallory' WHERE rowid = 2")
    victim = (await postroom("audit", "--json")).json["entries"][1]["id"]
    done: CommandResult = await postroom("audit", "verify", "--json")
    assert done.code == 1
    assert [(each["flaw"], each["entry_id"]) for each in done.json["problems"]] == [("changed", victim)]
    assert done.json["sound"] is False
    assert f"changed: Entry {victim} of " in (await postroom("audit", "verify")).stdout
    told = await finding()
    assert (told["verdict"], victim in told["message"]) == ("failed", True)
    assert "postroom audit verify" in told["remedy"]


async def test_a_lost_key_is_said_and_a_new_one_goes_on(home: Path) -> None:
    await some_deeds(1)
    await seal()
    shutil.rmtree(home / "vault")
    done = await postroom("audit", "verify")
    assert (done.code, "This is not a sign of tampering" in done.stdout) == (1, True)
    assert (await finding())["verdict"] == "warning"
    assert (await postroom("audit", "new-key", "--yes")).code == 0
    await seal()
    told = (await postroom("audit", "verify", "--json")).json
    assert (told["sealed"], told["uncheckable"], told["problems"]) == (2, 1, [])


async def test_a_restored_backup_verifies_and_its_manifest_tells_what_was_cut_since(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_deeds()
    await seal()
    assert (await postroom("backup", "create", str(tmp_path / "backup"), "--with-key")).code == 0
    head = json.loads((tmp_path / "backup" / "manifest.json").read_text())["audit_head"]
    assert (head["position"], head["entries"]) == (3, 3)
    assert (await postroom("backup", "restore", str(tmp_path / "backup"), "--into", str(tmp_path / "new"))).code == 0
    monkeypatch.setenv("POSTROOM_HOME", str(tmp_path / "new"))
    told = (await postroom("audit", "verify", "--json")).json
    assert (told["sound"], told["sealed"], told["heads_compared"]) == (True, 3, 2)
    await some_deeds(1)
    await seal()
    assert (await postroom("audit", "verify")).code == 0
    tamper(
        tmp_path / "new",
        "DELETE FROM audit_log WHERE id IN (SELECT entry_id FROM audit_seals WHERE position > 2)",
        "DELETE FROM audit_seals WHERE position > 2",
        "UPDATE audit_chain SET position = 2, mac = (SELECT mac FROM audit_seals WHERE position = 2)",
    )
    (tmp_path / "new" / "archive" / "audit-heads.jsonl").unlink()
    assert (await postroom("audit", "verify")).code == 0, "no head is left to tell"
    done = await postroom("audit", "verify", "--heads", str(tmp_path / "backup" / "manifest.json"))
    assert (done.code, "entries 3 to 3 are missing from the end" in done.stdout) == (1, True)
