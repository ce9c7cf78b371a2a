"""`postroom demo` as a stranger starts it: a link, mail to look at, a story, and nothing left behind."""

from __future__ import annotations

import asyncio
import re
import signal
from html import unescape
from pathlib import Path

import httpx2
import pytest

from postroom.demo.story import STORY
from tests.support.commands import PostroomProcess, command

SMALL = ("--messages", "500")
STRANGE = {"POSTROOM_DATABASE__URL": "postgresql://nobody@127.0.0.1:1/mine", "POSTROOM_SWITCHBOARD__PORT": "1"}
"""Settings of whoever looks, which are none of the demonstration's business."""


def still_running(folder: Path) -> list[str]:
    """Processes that were given this folder for their temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environment.split(b"\0"):
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.req("PL-1", "PL-2")
async def test_the_story_is_told_in_the_terminal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    done = await command(home, "demo", "--story", *SMALL, TMPDIR=str(temporary), COLUMNS="80", **STRANGE)
    assert done.code == 0, done.stderr
    assert "are simulated" in done.stdout.splitlines()[0]
    places = [done.stdout.find(f"{number}. {step.title}") for number, step in enumerate(STORY, start=1)]
    assert -1 not in places
    assert places == sorted(places)
    assert "500 of 500 messages stored" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not home.exists()
    assert list(temporary.iterdir()) == []
    assert still_running(temporary) == []


@pytest.mark.req("PL-1", "PL-2")
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
async def test_the_link_opens_a_dashboard_with_mail_in_it_and_the_end_takes_everything_along(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    demo = PostroomProcess("demo", *SMALL, home=tmp_path / "home", variables={"TMPDIR": str(temporary), **STRANGE})
    await demo.start()
    try:
        assert demo.process is not None
        link = await printed_link(demo)
        async with httpx2.AsyncClient(follow_redirects=True, trust_env=False, timeout=60) as browser:
            await come_in(browser, link)
            while "/mail/" not in (await browser.get(link.partition("/welcome")[0] + "/mail")).text:
                assert demo.is_running, demo.log
                await asyncio.sleep(0.1)
        demo.process.send_signal(ended_by)
        demo.process.send_signal(ended_by)
        out, _ = await demo.process.communicate()
        assert demo.process.returncode == 0, demo.log
    finally:
        await demo.kill()
    assert "Nothing is left behind" in out.decode()
    assert list(temporary.iterdir()) == []
    assert still_running(temporary) == []


async def printed_link(demo: PostroomProcess) -> str:
    assert demo.process is not None
    assert demo.process.stdout is not None
    while line := (await demo.process.stdout.readline()).decode():
        if found := re.search(r"http://127\.0\.0\.1:\d+/welcome\S+", line):
            return found[0]
    raise AssertionError(demo.log)


async def come_in(browser: httpx2.AsyncClient, link: str) -> None:
    """As a person who chooses a passphrase."""
    page = (await browser.get(link)).text
    hidden = {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)}
    chosen = "a passphrase for looking around"
    address = link.partition("?")[0]
    answer = await browser.post(address, data={**hidden, "passphrase": chosen, "repeated": chosen})
    assert answer.status_code == 200, answer.text
