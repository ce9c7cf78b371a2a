"""`postroom restore` as a person meets it, against the stand-in and a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom import settings
from postroom.app import open_app
from postroom.app.worker import open_worker
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import ListSource
from tests.support.commands import postroom
from tests.support.mail import OWNER
from tests.support.restores import archived, assert_put_back, store, truth_of

MAILS = [archived(number) for number in range(6)]


@pytest.fixture
async def sim(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GmailSim]:
    """An empty mailbox, whose calls are not held back; its mail is in the archive."""
    monkeypatch.setenv("POSTROOM_SYNC__RPS_START", "1000")
    monkeypatch.setenv("POSTROOM_SYNC__RPS_MAX", "1000")
    for name in ("SYNC", "LIVE", "LABELS", "BACKFILL"):
        monkeypatch.setenv(f"POSTROOM_RECURRING__{name}", "off")
    async with running_sim(ListSource([], email=OWNER)) as running:
        base = ["--api-base", running.url, "--access-token", running.token]
        added = await postroom("account", "add", "gmail", "--email", OWNER, *base)
        assert added.code == 0, added.stderr
        store(home / "archive", MAILS)
        yield running


async def work() -> None:
    async with open_app(settings.load()) as app, open_worker(app, until_idle=True) as worker:
        await worker.run()


@pytest.mark.req("IM-8", "IM-9")
async def test_mail_is_planned_put_back_certified_and_undone(sim: GmailSim) -> None:
    planned = await postroom("restore", "--account", OWNER, "--dry-run", "--json")
    assert (planned.code, planned.json["messages"], planned.json["dry_run"]) == (0, 6, True)
    said = await postroom("restore", "--account", OWNER, "--query", "number3", "--dry-run")
    assert f"1 messages ({len(MAILS[3].raw)} bytes) of {OWNER} would be put into {OWNER}" in said.stdout
    assert (await postroom("restore", "status", "--json")).json == []
    assert truth_of(sim) == []
    begun = await postroom("restore", "--account", OWNER, "--yes", "--json")
    assert begun.code == 0, begun.stderr
    run = begun.json["id"]
    early = await postroom("restore", "certificate", run)
    assert (early.code, "its certificate is issued when it is completed" in early.stderr) == (2, True)
    await work()
    assert_put_back(sim, MAILS)
    done = await postroom("restore", "status", run, "--wait")
    assert done.code == 0, done.stderr
    assert "6 of 6 messages put back and verified" in done.stdout
    certificate = (await postroom("restore", "certificate", run, "--all", "--json")).json
    assert certificate["certificate"]["verified"] == 6
    assert {each["sha256"] for each in certificate["items"]} == {each.sha256 for each in truth_of(sim)}
    assert "read back with equal SHA-256" in (await postroom("restore", "certificate", run)).stdout
    assert (await postroom("restore", "undo", run, "--yes")).code == 0
    await work()
    assert all("TRASH" in each.labels for each in truth_of(sim))
    assert "6 undone" in (await postroom("restore", "status")).stdout


async def test_it_can_be_held_up_stopped_and_resumed(sim: GmailSim) -> None:
    assert "is off" in (await postroom("restore", "switch", "off")).stdout
    run = (await postroom("restore", "--account", OWNER, "--yes", "--json")).json["id"]
    await work()
    assert truth_of(sim) == []
    assert "would be stopped" in (await postroom("restore", "stop", run, "--dry-run")).stdout
    assert "Stopped" in (await postroom("restore", "stop", run)).stdout
    assert "is on" in (await postroom("restore", "switch", "on")).stdout
    assert "goes on" in (await postroom("restore", "resume", run)).stdout
    await work()
    assert len((await postroom("restore", "status", "--json")).json) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--account: say whose archived mail"),
        (["--account", "nobody"], "--account: 'nobody' is not an e-mail address"),
        (["--account", OWNER, "--query", "number77", "--yes"], "--query: finds no mail"),
        (["--account", OWNER, "--query", "(", "--yes"], "--query: "),
        (["--account", OWNER, "--to-account", "who@example.net", "--yes"], "--to-account: there is no account"),
        (["--account", OWNER, "--folder", "Trash", "--yes"], "--folder: Trash is not a place"),
        (["status", "not-an-id"], "run: "),
        (["undo", "0199a1c2-7e5b-7abc-8def-0123456789ab", "--yes"], "there is no restore"),
    ],
)
async def test_what_is_wrong_is_named_as_it_was_typed(sim: GmailSim, given: list[str], said: str) -> None:
    refused = await postroom("restore", *given)
    assert (refused.code, said in refused.stderr) == (2, True), refused.stderr
    assert (await postroom("restore", "status", "--json")).json == []
