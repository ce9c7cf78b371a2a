"""Commands beside `postroom up`: an import that survives the death of `up`, and a sync that is done there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroom.archive.shards.file_archive import FileArchive
from tests.e2e.test_up import MESSAGES, QUICK, archived, mailbox, up
from tests.support.archives import ME
from tests.support.commands import command

COUNT = 40_000
"""Several seconds of import on the fastest machine: it is killed long before its end, however late that is noticed."""
AT_LEAST = 1_000
"""Stored before the kill: more than can be on the way to the archive at once."""


def write_many(path: Path) -> None:
    entry = (
        "From a@example.org Thu Jan  1 10:00:00 2026\nFrom: Ann <a@example.org>\nSubject: Letter {0}\n"
        "Date: Thu, 01 Jan 2026 10:00:00 +0000\nMessage-ID: <{0}@example.org>\n\n{1}\n\n"
    )
    with path.open("w") as file:
        file.writelines(entry.format(number, "Nothing much. " * 30) for number in range(COUNT))


@pytest.mark.req("SY-16", "SY-7")
async def test_an_import_in_up_goes_on_after_a_kill_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    home, box = tmp_path / "home", tmp_path / "mail.mbox"
    write_many(box)
    given = ("import", "mbox", str(box), "--account", ME)
    async with up(home) as process:
        waiting = asyncio.create_task(command(home, *given))
        running = await process.until(
            "/archive/imports", lambda told: any(each["stored"] >= AT_LEAST for each in told["imports"])
        )
        [before] = running["imports"]
        await process.kill()
        told = await waiting
        assert (told.code, "goes on when it starts again" in told.stderr) == (1, True), told.stderr
        assert (before["state"], before["stored"] < COUNT) == ("running", True)
        await process.start()
        over = await process.until("/archive/imports", lambda told: told["imports"][0]["state"] == "completed")
        [after] = over["imports"]
        assert (after["id"], after["stored"] + after["duplicates"]) == (before["id"], COUNT)
        assert after["duplicates"] < before["stored"]  # it went on from where it was
        assert (await process.end())[0] == 0
    archive = FileArchive(home / "archive")
    report = archive.verify(ME)
    assert (report.messages, report.findings) == (COUNT, [])
    with archive.reader() as reader:
        assert len({message.message_id for message in reader.oldest_first(ME)}) == COUNT


@pytest.mark.req("SY-1")
async def test_a_sync_beside_up_is_done_by_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with mailbox() as sim, up(home) as process:
        wanted = {"email": sim.email, "api_base": sim.url, "access_token": sim.token}
        await process.api("POST", "/accounts", json=wanted)
        done = await command(home, "sync", "run", "--once", "--json", **QUICK)
        assert done.code == 0, done.stderr
        assert "the sync is done there" in done.stderr
        assert [each["error"] for each in done.json["accounts"]] == [None]
        assert await archived(process) >= MESSAGES
        assert (await process.end())[0] == 0
