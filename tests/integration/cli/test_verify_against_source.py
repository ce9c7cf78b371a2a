"""`postroom verify --against-source` as a person uses it: what it prints, and its exit codes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.accounts.account import get_account
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.labels import LabelNames
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sync.fetch import MailFetcher
from postroom.sync.slices import Granularity, Slice
from postroom.sync.state import begin_walk, finish_slice
from tests.support.archives import opened_store
from tests.support.commands import postroom
from tests.support.gmail_sim import client_of
from tests.support.mail import HOUR_MS, OWNER, START_MS, letter, mailbox

pytestmark = pytest.mark.req("SY-17")

WATERMARK = (START_MS + 24 * HOUR_MS) // 1_000


@pytest.fixture
async def sim(home: Path) -> AsyncIterator[GmailSim]:
    """Five letters, in an account that is known here."""
    async with running_sim(mailbox(5)) as running:
        added = await postroom(
            "account", "add", "gmail", "--email", OWNER, "--api-base", running.url, "--access-token", running.token
        )
        assert added.code == 0, added.stderr
        yield running


async def synced(sim: GmailSim, home: Path) -> None:
    """As after a sync of everything that is there."""
    database, now, whole = await connect(f"sqlite:///{home / 'postroom.db'}"), SystemClock().now(), Slice(0, WATERMARK)
    account = await database.read(lambda tx: get_account(tx, OWNER))
    async with client_of(sim) as client, opened_store(home / "archive", OWNER) as store:
        ids = [str(each["id"]) for each in sim.control.truth(hashes=False)]
        await MailFetcher(GmailMailbox(client), store, LabelNames(GmailMailbox(client))).fetch(ids)
    await database.write(lambda tx: begin_walk(tx, account.id, [whole], WATERMARK, Granularity.WEEK, now))
    await database.write(lambda tx: finish_slice(tx, account.id, 1, whole, len(ids), now))
    await database.close()


async def test_a_complete_archive_is_said_to_be_complete(sim: GmailSim, home: Path) -> None:
    await synced(sim, home)
    done = await postroom("verify", "--against-source")
    assert (done.code, done.stderr) == (0, ""), "a bar that nobody sees leaves no empty line"
    assert "the source lists 5 messages" in done.stdout
    assert "No gap." in done.stdout
    mistyped = await postroom("verify", "--account", f"x{OWNER}")
    assert (mistyped.code, f"no mail of x{OWNER}" in mistyped.stderr) == (2, True)


async def test_every_gap_is_named_and_the_exit_code_tells(sim: GmailSim, home: Path) -> None:
    await synced(sim, home)
    late = sim.control.deliver(letter("Filed late"), internal_date=START_MS + 1)
    done = await postroom("verify", "--against-source", "--account", OWNER)
    assert done.code == 1
    assert f"gap: {OWNER} {late}\n    not in the archive" in done.stdout
    told = (await postroom("verify", "--against-source", "--json")).json
    assert told["sound"] is False
    assert told["source"][0]["gaps"] == [{"gmail_id": late, "lack": "not in the archive"}]


async def test_an_account_that_was_never_synced_is_said_to_be_so(sim: GmailSim) -> None:
    done = await postroom("verify", "--against-source")
    assert done.code == 0, done.stderr
    assert "was never synced" in done.stdout


async def test_without_an_account_there_is_nothing_to_compare_with(home: Path) -> None:
    done = await postroom("verify", "--against-source")
    assert done.code == 2
    assert "postroom account add gmail" in done.stderr


async def test_what_a_repair_finds_lost_is_fetched_by_the_next_sync(
    sim: GmailSim, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RPS_START", "RPS_MAX"):
        monkeypatch.setenv(f"POSTROOM_SYNC__{name}", "1000")
    assert (await postroom("sync", "run", "--once")).code == 0
    [shard] = (home / "archive" / OWNER).glob("2023.db")
    shard.unlink()
    repaired = await postroom("verify", "--repair")
    assert "lists the mailbox again" in repaired.stderr
    assert (await postroom("sync", "run", "--once")).code == 0
    compared = await postroom("verify", "--against-source", "--json")
    assert compared.json["source"][0]["gaps"] == []
    assert compared.json["source"][0]["stored"] == 5
    assert (await postroom("verify")).code == 0, "what was lost is here again, so nothing is left to report"
