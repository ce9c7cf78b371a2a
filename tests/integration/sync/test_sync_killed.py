"""A sync that is killed again and again: it ends complete, holds nothing twice, and its log proves the watermark."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom.db import connect
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import MailboxSource, RememberingSource
from postroom.sync.fetch import bad_of
from postroom.sync.state import get_state
from tests.support.gmail_sim import client_of
from tests.support.mail import letter
from tests.support.sync import archived, letters
from tests.support.sync_trace import SyncTrace, check

ME = "me@example.org"


class KilledSync:
    """Runs the sync over and over, each time until so many messages were asked for, then kills it."""

    def __init__(self, sim: GmailSim, folder: Path, settings: dict[str, object]) -> None:
        self._sim = sim
        self._folder = folder
        task = {"folder": str(folder), "url": sim.url, "token": sim.token, "email": sim.email, "settings": settings}
        self._command = (sys.executable, "-m", "tests.support.sync", json.dumps(task))
        self._runs = 0

    @property
    def asked_for(self) -> int:
        return self._sim.control.state().calls.get("messages.get", 0)

    async def until(self, asked_for: int | None) -> bool:
        """Whether it came to its end; None lets it."""
        self._runs += 1
        with (self._folder / f"log{self._runs:04}").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*self._command, stderr=log)
            ended = asyncio.create_task(process.wait())
            while not ended.done() and (asked_for is None or self.asked_for < asked_for):
                await asyncio.sleep(0.01)
            if not ended.done():
                process.kill()
        return await ended == 0

    def trace(self) -> SyncTrace:
        return check(self._events(path) for path in sorted(self._folder.glob("log*")))

    def _events(self, path: Path) -> list[dict[str, Any]]:
        lines = path.read_text().splitlines()
        whole = [line for line in lines if line.startswith("{") and line.endswith("}")]  # the last may be cut off
        assert len(whole) >= len(lines) - 1, path.read_text()[-3_000:]
        return [json.loads(line) for line in whole]


async def check_the_end(sim: GmailSim, folder: Path, poison: set[str], deleted: set[str], trace: SyncTrace) -> None:
    truth = {str(each["id"]): str(each["sha256"]) for each in sim.control.truth()}
    kept = archived(folder / "archive", sim.email)
    assert truth.keys() - kept.keys() == poison
    assert kept.keys() - truth.keys() <= deleted
    assert all(kept[gmail_id] == sha256 for gmail_id, sha256 in truth.items() if gmail_id in kept)
    database = await connect(f"sqlite:///{folder / 'postroom.db'}")
    try:
        account_id = json.loads((folder / "log0001").read_text().splitlines()[-1])["account"]
        state = await database.read(lambda tx: get_state(tx, account_id))
        bad = await database.read(lambda tx: bad_of(tx, account_id))
    finally:
        await database.close()
    assert {each.key for each in bad} == poison
    assert not state.is_walking
    assert state.watermark == trace.watermark >= state.until


async def kill_and_check(
    source: MailboxSource,
    folder: Path,
    settings: dict[str, object],
    stops: list[int],
    poison: set[str],
    faults: Sequence[FaultRule] = (),
) -> None:
    rotten = GmailFault(kind="error", code=400, reason="badBytes")
    deleted: set[str] = set()
    async with running_sim(source) as sim, client_of(sim) as client:
        sim.control.add_fault(FaultRule(fault=rotten, method="messages.get", ids=frozenset(poison)))
        for fault in faults:
            sim.control.add_fault(fault)
        killed = KilledSync(sim, folder, settings)
        for number, stop in enumerate(stops):
            assert not await killed.until(stop), "it ended before it could be killed"
            sim.control.deliver(letter(f"Arrived {number}"))
            doomed = source.summary(number * 7 + 1).id
            if doomed not in poison:
                await client.delete_message(doomed)
                deleted.add(doomed)
        assert await killed.until(None)
        await check_the_end(sim, folder, poison, deleted, killed.trace())


@pytest.mark.req("SY-8", "SY-9")
async def test_three_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    source = letters(1_500, apart_s=7_200)
    poison = {source.summary(index).id for index in (100, 700, 1_400)}
    settings: dict[str, object] = {"granularity": "week", "job_size": 50, "page_size": 100}
    await kill_and_check(source, tmp_path, settings, [300, 750, 1_200], poison)


@pytest.mark.chaos
@pytest.mark.req("SY-8", "SY-9")
async def test_twenty_thousand_messages_through_faults_and_many_kills(tmp_path: Path) -> None:
    dice = random.Random(5)
    source = RememberingSource(GeneratedMailbox(20_000, 3, ME))
    poison = {source.summary(index).id for index in dice.sample(range(20_000), 12)}
    stops = [dice.randrange(500, 1_000) + at for at in range(0, 19_000, 1_000)]
    throttled = GmailFault(kind="error", code=429, reason="rateLimitExceeded", retry_after_s=1)
    faults = [
        FaultRule(fault=throttled, method="batch", probability=0.01, seed=1),
        FaultRule(fault=throttled, method="messages.list", probability=0.01, seed=2),
        FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", probability=0.002, seed=3),
        FaultRule(fault=GmailFault(kind="truncate"), method="batch", probability=0.02, seed=4),
        FaultRule(fault=GmailFault(kind="drop"), method="batch", probability=0.01, seed=5),
        FaultRule(fault=GmailFault(kind="hang"), method="batch", probability=0.002, seed=6),
    ]
    await kill_and_check(source, tmp_path, {"granularity": "week", "stall_timeout_s": 30.0}, stops, poison, faults)
