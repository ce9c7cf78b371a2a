"""`postroom up` while everything attacks it at once: hostile mail, a hostile site, strangers and an agent at its door.

Ordinary mail keeps arriving, memory stays bounded, it ends when it is told to, and nothing is lost. The short run is
part of the acceptance; `make chaos` besieges it for ten minutes (`POSTROOM_SIEGE_S` chooses another length).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom.archive.shards.file_archive import FileArchive
from postroom.db import Database, connect
from postroom.db.tables.mail import messages
from postroom.domain.clock import SystemClock
from postroom.domain.roles import Role
from postroom.switchboard.tokens import NewToken, create_token
from tests.e2e.test_up import QUICK, Up, holding, up
from tests.support.attackers import MB, Attack, delivered, followed, hostile_site
from tests.support.commands import command
from tests.support.deployment import StandIn, stand_in
from tests.support.mail import letter
from tests.support.web_sources import write_sources

pytestmark = pytest.mark.req("HW-1", "HW-2", "HW-3")

MOST_MEMORY = 600 * MB
ENDS_WITHIN_S = 30.0
_BEFORE = 40
_USUAL_LETTERS = 5
_FOLLOWING = {
    "BACKFILL_ENABLED": "true",
    "POSTROOM_RECURRING__SENTINEL": "every 10s",
    "POSTROOM_WEB__MIN_DELAY_MS": "0",
    "POSTROOM_WEB__MAX_DELAY_MS": "0",
    "POSTROOM_WEB__FETCHES_PER_MINUTE": "6000",
    "POSTROOM_SWITCHBOARD__ARCHIVE_WAIT_S": "60",
}


class Ordinary:
    """Letters of honest people, timed from their delivery to their place in the Switchboard."""

    def __init__(self, gmail: StandIn, database: Database) -> None:
        self._gmail = gmail
        self._database = database
        self.sent: dict[str, bytes] = {}

    async def letters(self, count: int) -> list[float]:
        return [await self._letter() for _ in range(count)]

    async def letters_for(self, seconds: float) -> list[float]:
        ends, found = time.monotonic() + seconds, []
        while time.monotonic() < ends:
            found.append(await self._letter())
        return found

    async def _letter(self) -> float:
        raw = letter(f"Lunch number {len(self.sent)}?", to=self._gmail.email)
        started = time.monotonic()
        gmail_id = await delivered(self._gmail, raw)
        self.sent[gmail_id] = raw
        while not await self._has_arrived(gmail_id):
            await asyncio.sleep(0.1)
        return time.monotonic() - started

    async def _has_arrived(self, gmail_id: str) -> bool:
        asked = select(messages.c.id).where(messages.c.external_event_id == gmail_id)
        return await self._database.read(lambda tx: tx.execute(asked).first() is not None)


@pytest.mark.timeout(300)
async def test_ordinary_mail_arrives_while_everything_attacks_at_once(tmp_path: Path) -> None:
    await _besiege(tmp_path, seconds=20, mails_a_second=4)


@pytest.mark.chaos
@pytest.mark.timeout(1_500)
async def test_ten_minutes_of_siege_neither_stop_the_post_nor_fill_the_memory(tmp_path: Path) -> None:
    await _besiege(tmp_path, seconds=float(os.environ.get("POSTROOM_SIEGE_S", "600")), mails_a_second=2)


async def _besiege(path: Path, seconds: float, mails_a_second: float) -> None:
    home = path / "home"
    async with hostile_site() as site, stand_in(path / "gmail", "gmail", "--messages", str(_BEFORE)) as gmail:
        write_sources(home, followed(site))
        async with up(home, **_FOLLOWING) as process, opened(home) as database:
            wanted = {"email": gmail.email, "api_base": gmail.url, "access_token": gmail.token}
            await process.api("POST", "/accounts", json=wanted)
            await process.until("/archive", holding(_BEFORE))
            ordinary = Ordinary(gmail, database)
            usual = await ordinary.letters(_USUAL_LETTERS)
            siege = await _siege(gmail, process, database)
            async with siege.under_way(mails_a_second):
                besieged = await ordinary.letters_for(seconds)
            await process.until("/archive", holding(_BEFORE + len(ordinary.sent) + len(siege.sent)))
            doctor, listed = await _told(home)
            ended = time.monotonic()
            code, log = await process.end()
            ended = time.monotonic() - ended
    print(
        f"usually {statistics.median(usual):.1f} s, besieged {statistics.median(besieged):.1f} s "
        f"(at most {max(besieged):.1f} s, {len(besieged)} letters), {len(siege.sent)} hostile messages, "
        f"{siege.peak / MB:.0f} MB, ended after {ended:.1f} s, {listed} troubled"
    )
    assert code == 0, log[-3_000:]
    assert ended < ENDS_WITHIN_S
    assert siege.peak < MOST_MEMORY
    assert statistics.median(besieged) < 5 * statistics.median(usual) + 5
    assert len(besieged) >= seconds / 20
    assert str(listed) in doctor or not listed
    _nothing_is_lost(home, gmail.email, ordinary.sent | siege.sent)


def _nothing_is_lost(home: Path, email: str, sent: dict[str, bytes]) -> None:
    with FileArchive(home / "archive") as place, place.reader() as reader:
        known = reader.look_up(email, list(sent))
        assert set(known) == set(sent)
        changed = [gmail_id for gmail_id, raw in sent.items() if reader.raw(email, gmail_id) != raw]
    assert changed == []


async def _told(home: Path) -> tuple[str, int]:
    """What the doctor says, and how many messages are listed as troubled."""
    doctor = await command(home, "doctor", **QUICK)
    listed = await command(home, "sync", "bad", "list", "--json", **QUICK)
    assert listed.code == 0, listed.stderr
    return doctor.stdout, len(listed.json)


async def _siege(gmail: StandIn, process: Up, database: Database) -> Attack:
    new = NewToken(Role.AGENT, "an agent that turned")
    token = (await database.write(lambda tx: create_token(tx, new, SystemClock().now())))[1]
    assert process.process is not None
    return Attack(gmail, process.told["url"], process.process.pid, token)


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Database]:
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    try:
        yield database
    finally:
        await database.close()
