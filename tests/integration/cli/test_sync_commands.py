"""`postroom sync` and `postroom archive` as a person meets them, against the stand-in."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.archive.shards.writer import FileArchiveWriter
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.commands import CommandResult, postroom
from tests.support.mail import OWNER, mailbox

ROOT = Path(__file__).parents[3]
COUNT = 9
SOURCE = mailbox(COUNT)
IDS = [SOURCE.summary(index).id for index in range(COUNT)]


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(SOURCE) as running:
        yield running


@pytest.fixture
async def account(home: Path, sim: GmailSim, monkeypatch: pytest.MonkeyPatch) -> str:
    """A home with one account, whose calls are not held back."""
    monkeypatch.setenv("POSTROOM_SYNC__RPS_START", "1000")
    monkeypatch.setenv("POSTROOM_SYNC__RPS_MAX", "1000")
    added = await add(sim)
    assert added.code == 0, added.stderr
    return OWNER


async def add(sim: GmailSim, *more: str) -> CommandResult:
    base = ["--api-base", sim.url, "--access-token", sim.token]
    return await postroom("account", "add", "gmail", "--email", OWNER, *base, *more)


async def test_without_an_account_every_command_says_how_to_add_one(home: Path) -> None:
    for command in ("sync plan", "sync run --once", "sync status", "sync bad list", "archive plan"):
        refused = await postroom(*command.split())
        assert (refused.code, "account add" in refused.stderr) == (2, True)


@pytest.mark.req("SY-14")
async def test_a_plan_tells_messages_units_time_and_disk_and_what_it_assumes(account: str, sim: GmailSim) -> None:
    sim.control.reset_counters()
    [plan] = (await postroom("sync", "plan", "--json")).json
    assert (plan["messages"], plan["stored"], plan["to_fetch"]) == (COUNT, 0, COUNT)
    assert (plan["profile"], plan["is_profile_assumed"]) == ("2026", True)
    assert plan["get_units"] == COUNT * 20
    assert plan["list_units"] == plan["slices"] * 5
    assert plan["units_per_minute"] == 5_880
    assert plan["seconds"] == pytest.approx(plan["units"] / 5_880 * 60)
    assert plan["seconds_when_busy"] == pytest.approx(plan["units"] / 4_800 * 60)
    assert plan["sizes"]["messages"] > 0
    assert (plan["disk_bytes"] > 0, plan["fits"]) == (True, True)
    printed = (await postroom("sync", "plan")).stdout
    assert "assumed" in printed
    await add(sim, "--quota", "legacy")
    [plan] = (await postroom("sync", "plan", "--account", OWNER, "--json")).json
    assert (plan["profile"], plan["is_profile_assumed"], plan["get_units"]) == ("legacy", False, COUNT * 5)


@pytest.mark.req("SY-14")
async def test_a_sync_from_nothing_to_up_to_date_and_what_status_says(account: str, sim: GmailSim) -> None:
    [before] = (await postroom("sync", "status", "--json")).json
    assert (before["phase"], before["watermark"]) == ("never synced", 0)
    done = await postroom("sync", "run", "--once", "--json")
    assert done.code == 0, done.stderr
    [ended] = done.json["accounts"]
    assert (ended["error"], ended["progress"]["stored"], ended["progress"]["phase"]) == (None, COUNT, "following")
    assert "phase planning" in done.stderr
    [after] = (await postroom("sync", "status", "--json")).json
    assert (after["phase"], after["bad"], after["reader"]) == ("up to date", 0, None)
    assert after["watermark"] == ended["progress"]["watermark"] > 0
    again = (await postroom("sync", "run", "--once")).stdout
    assert "0 stored" in again
    [plan] = (await postroom("sync", "plan", "--json")).json
    assert (plan["stored"], plan["to_fetch"]) == (COUNT, 0)


@pytest.mark.req("SY-5", "SY-14")
async def test_a_bad_message_is_listed_with_its_reason_and_can_be_tried_again(account: str, sim: GmailSim) -> None:
    broken = FaultRule(fault=GmailFault(kind="error", code=400, reason="failedPrecondition"), ids=frozenset({IDS[3]}))
    sim.control.add_fault(broken)
    assert (await postroom("sync", "run", "--once")).code == 0
    [bad] = (await postroom("sync", "bad", "list", "--json")).json
    assert (bad["message"]["key"], bad["account"]) == (IDS[3], OWNER)
    assert "failedPrecondition" in bad["message"]["reason"]
    assert IDS[3] in (await postroom("sync", "bad", "list")).stdout
    assert (await postroom("sync", "bad", "retry", "--dry-run")).stdout.startswith(f"{OWNER}: would try 1")
    still = await postroom("sync", "bad", "retry")
    assert (still.code, "1 still bad" in still.stdout) == (1, True)
    unknown = await postroom("sync", "bad", "retry", IDS[4])
    assert (unknown.code, "not among the bad messages" in unknown.stderr) == (2, True)
    sim.control.clear_faults()
    retried = await postroom("sync", "bad", "retry", IDS[3])
    assert (retried.code, "1 stored" in retried.stdout) == (0, True)
    assert (await postroom("sync", "bad", "list")).stdout.strip() == "No bad messages."


@pytest.mark.req("SY-7")
async def test_a_sync_while_another_process_owns_the_archive_says_who(account: str, home: Path) -> None:
    with FileArchiveWriter(home / "archive", purpose="postroom import mbox"):
        refused = await postroom("sync", "run", "--once")
    assert refused.code == 1
    assert "`postroom import mbox`" in refused.stderr


async def test_an_account_whose_login_ended_fails_with_the_remedy(account: str, sim: GmailSim) -> None:
    sim.control.revoke()
    refused = await postroom("sync", "run", "--once", "--json")
    assert refused.code == 1
    assert "postroom account add gmail" in refused.json["accounts"][0]["error"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_running_sync_that_is_told_to_stop_ends_well(
    account: str, sim: GmailSim, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "postroom", "sync", "run"]
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    assert process.stderr is not None
    while b"phase following" not in await process.stderr.readline():
        assert process.returncode is None
    process.send_signal(number)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"`postroom sync run` continues from here" in out
    [status] = (await postroom("sync", "status", "--json")).json
    assert (status["phase"], status["reader"]) == ("up to date", None)


@pytest.mark.req("SY-10")
async def test_the_archiver_from_plan_to_certificate(account: str, sim: GmailSim) -> None:
    never = await postroom("archive", "plan")
    assert (never.code, "never synced" in never.stderr) == (2, True)
    await postroom("sync", "run", "--once")
    off = await postroom("archive", "run", "--action", "label")
    assert (off.code, "--enable" in off.stderr) == (1, True)
    unsaid = await postroom("archive", "run", "--enable")
    assert (unsaid.code, "--action" in unsaid.stderr) == (2, True)
    [plan] = (await postroom("archive", "plan", "--json")).json
    assert (plan["messages"], plan["removal"]["label"], plan["stays"]) == (COUNT, "INBOX", {})
    assert sim.control.changes() == []
    done = await postroom("archive", "run", "--enable", "--action", "label")
    assert (done.code, f"{COUNT} messages removed" in done.stdout) == (0, True)
    assert len(sim.control.changes()) == COUNT
    found = (await postroom("archive", "certificates", "--json")).json
    assert {each["certificate"]["proof"]["gmail_id"] for each in found} == set(IDS)
    [one] = (await postroom("archive", "certificates", "--message", IDS[0], "--result", "removed", "--json")).json
    assert one["certificate"]["removal"] == {"action": "label", "label": "INBOX"}
    assert IDS[0] in (await postroom("archive", "certificates")).stdout
    assert f"{COUNT}: was removed before" in (await postroom("archive", "plan", "--verify")).stdout


@pytest.mark.req("SY-10")
async def test_settings_turn_the_archiver_on_and_say_what_it_does(
    account: str, sim: GmailSim, monkeypatch: pytest.MonkeyPatch
) -> None:
    await postroom("sync", "run", "--once")
    monkeypatch.setenv("POSTROOM_ARCHIVER__ENABLED", "true")
    monkeypatch.setenv("POSTROOM_ARCHIVER__ACTION", "trash")
    dry = await postroom("archive", "run", "--dry-run")
    assert (dry.code, "move to the trash" in dry.stdout, sim.control.changes()) == (0, True, [])
    with monkeypatch.context() as typed:
        typed.setattr(sys, "stdin", io.StringIO("n\n"))
        refused = await postroom("archive", "run")
    assert (refused.code, refused.stdout.strip(), sim.control.changes()) == (1, "", [])
    assert f"{account}: move to the trash: {COUNT} messages" in refused.stderr
    assert f"Remove {COUNT} messages at the source?" in refused.stderr
    assert (await postroom("archive", "run", "--yes", "--json")).json[0]["report"]["removed"] == COUNT
    assert all("TRASH" in mail["label_ids"] for mail in sim.control.truth(hashes=False))  # type: ignore[operator]
