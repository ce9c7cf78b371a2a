"""`postroom up` as a person starts it: one process, nothing asked, an account added while it runs, a clean end."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.domain.roles import Role
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.switchboard.tokens import NewToken, create_token
from tests.support.commands import PostroomProcess, command
from tests.support.databases import install
from tests.support.mail import letter

QUICK = {"POSTROOM_SWITCHBOARD__PORT": "0", "POSTROOM_RECURRING__LIVE": "every 1s", "POSTROOM_WORKER__POLL_S": "0.5"}
FAST = {"POSTROOM_SYNC__RPS_START": "50", "POSTROOM_SYNC__RPS_MAX": "100"}
MESSAGES = 80


class Up(PostroomProcess):
    """`postroom up --json`, and a program that may see everything."""

    def __init__(self, home: Path, http: httpx2.AsyncClient, **variables: str) -> None:
        super().__init__("up", "--json", home=home, variables={**QUICK, **FAST, **variables})
        self.http = http
        self.told: dict[str, Any] = {}
        self._text = ""

    async def start(self) -> None:
        await super().start()
        self.told = await self.ready()
        self.variables["POSTROOM_SWITCHBOARD__PORT"] = str(urlsplit(self.told["url"]).port)

    async def api(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {await self._token()}"}
        answer = await self.http.request(method, f"{self.told['url']}/api{path}", headers=headers, **options)
        assert answer.is_success, answer.text
        return answer.json()

    async def until(self, path: str, holds: Any) -> Any:
        while not holds(told := await self.api("GET", path)):
            assert self.is_running, self.log
            await asyncio.sleep(0.1)
        return told

    async def _token(self) -> str:
        """Made when it is first needed, and good over restarts."""
        if not self._text:
            self._text = await self._made_token()
        return self._text

    async def _made_token(self) -> str:
        database = await connect(f"sqlite:///{self.home / 'postroom.db'}")
        try:
            new = NewToken(Role.DASHBOARD, "a test")
            return (await database.write(lambda tx: create_token(tx, new, SystemClock().now())))[1]
        finally:
            await database.close()


@asynccontextmanager
async def up(home: Path, **variables: str) -> AsyncIterator[Up]:
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        process = Up(install(home), http, **variables)
        try:
            await process.start()
            yield process
        finally:
            await process.kill()


@asynccontextmanager
async def mailbox(messages: int = MESSAGES, email: str = "owner@example.com") -> AsyncIterator[GmailSim]:
    async with running_sim(GeneratedMailbox(messages, 3, email)) as sim:
        yield sim


def holding(count: int) -> Any:
    """The archive has so many messages."""
    return lambda told: sum(shard["messages"] for account in told for shard in account["files"]["shards"]) >= count


async def archived(process: Up) -> int:
    told = await process.api("GET", "/archive")
    return sum(shard["messages"] for account in told for shard in account["files"]["shards"])


@pytest.mark.req("PL-2")
async def test_the_first_start_asks_nothing_and_gives_a_link_that_opens_the_dashboard(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    async with up(home) as process:
        browser = process.http
        assert set(process.told) == {"url", "mcp", "welcome"}
        page = await browser.get(process.told["welcome"])
        assert (page.status_code, "passphrase" in page.text) == (200, True)
        assert (await browser.get(f"{process.told['url']}/mail")).status_code in (303, 401)
        code, log = await process.end()
    assert code == 0, log
    assert not (home / "switchboard.json").exists()


@pytest.mark.req("PL-2", "JB-18")
async def test_an_account_that_is_added_while_it_runs_is_synced_and_its_new_mail_is_decided(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with mailbox() as sim, mailbox(30, "second@example.com") as second, up(home) as process:
        given = ("--email", sim.email, "--api-base", sim.url, "--access-token", sim.token)
        done = await command(home, "account", "add", "gmail", *given, **QUICK)
        assert done.code == 0, done.stderr
        wanted = {"email": second.email, "api_base": second.url, "access_token": second.token}
        await process.api("POST", "/accounts", json=wanted)
        await process.until("/archive", holding(MESSAGES + 30))
        await process.until("/queue/jobs?type=history.sync.gmail&state=completed", lambda told: len(told["items"]) >= 2)
        for box in (sim, second):
            box.control.deliver(letter("Lunch?", to=box.email))
        live = "/queue/jobs?type=classify&state=completed"
        await process.until(live, lambda told: len(told["items"]) >= 2)
        assert (await process.api("GET", "/queue/jobs?state=failed"))["items"] == []
        assert (await process.end())[0] == 0


async def test_told_to_stop_in_the_middle_of_a_sync_it_ends_within_seconds_and_goes_on_next_time(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    slow = {"POSTROOM_SYNC__RPS_START": "10", "POSTROOM_SYNC__RPS_MAX": "10"}
    async with mailbox(300) as sim, up(home, **slow) as process:
        wanted = {"email": sim.email, "api_base": sim.url, "access_token": sim.token}
        await process.api("POST", "/accounts", json=wanted)
        await process.until("/archive", holding(1))
        had = await archived(process)
        begun = time.monotonic()
        code, log = await process.end()
        assert (code, time.monotonic() - begun < 25) == (0, True), log
        assert had < 300
        process.variables.update(FAST)
        await process.start()
        assert "welcome" in process.told, "nobody has chosen a passphrase yet"
        assert await archived(process) >= had
        await process.until("/archive", holding(300))


@pytest.mark.req("SY-9", "JB-3")
async def test_killed_in_the_middle_it_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with mailbox(200) as sim, up(home, POSTROOM_WORKER__LEASE_S="2", POSTROOM_SYNC__RPS_START="10") as process:
        wanted = {"email": sim.email, "api_base": sim.url, "access_token": sim.token}
        await process.api("POST", "/accounts", json=wanted)
        await process.until("/queue/jobs?type=history.sync.gmail&state=completed", lambda told: bool(told["items"]))
        for number in range(10):
            sim.control.deliver(letter(f"Before the end {number}", to=sim.email))
        await process.until("/archive", holding(1))
        had = await archived(process)
        await process.kill()
        await process.start()
        assert await archived(process) >= had
        await process.until("/archive", holding(210))
        live = "/queue/jobs?type=classify&state=completed&limit=100"
        decided = await process.until(live, lambda told: len(told["items"]) >= 10)
        assert len(decided["items"]) == 10
        assert await archived(process) == 210
        assert (await process.end())[0] == 0
    verified = await command(home, "verify", "--json", **QUICK)
    assert (verified.code, verified.json["report"]["messages"]) == (0, 210), verified.stderr


async def test_a_second_one_on_the_same_home_says_where_the_first_is(tmp_path: Path) -> None:
    async with up(tmp_path / "home") as process:
        done = await command(tmp_path / "home", "up", **QUICK)
        assert done.code == 1
        assert f"already running at {process.told['url']}" in done.stderr
        assert str(process.process and process.process.pid) in done.stderr
        assert "POSTROOM_HOME" in done.stderr
        verified = await command(tmp_path / "home", "verify")
        assert "because `postroom up`" in verified.stdout
        assert "is sound" in verified.stdout


async def test_a_taken_port_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = await command(tmp_path / "home", "up", "--port", port)
    assert done.code == 1
    assert f"error: Port {port} on 127.0.0.1 is in use by another program" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


async def test_people_are_greeted_in_a_few_lines_that_fit_their_terminal(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = PostroomProcess("up", home=home, variables={**QUICK, "COLUMNS": "80"})
    await process.start()
    try:
        assert process.process is not None
        assert process.process.stdout is not None
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = (await process.process.stdout.readline()).decode()
            assert line, process.log
            greeting += line
        assert (await process.end())[0] == 0
    finally:
        await process.kill()
    assert re.search(r"^http://127\.0\.0\.1:\d+/welcome\?link=\S+$", greeting, re.MULTILINE), greeting
    assert "Settings in the dashboard adds one" in greeting
    assert max(len(line) for line in greeting.splitlines() if "://" not in line and str(home) not in line) <= 80
