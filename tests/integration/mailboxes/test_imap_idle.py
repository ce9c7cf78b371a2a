"""IDLE brings news at once; a server that promises it and stays silent, floods or hangs up costs little."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, select

from postroom.app import open_app
from postroom.app.worker import open_worker
from postroom.audit import SYSTEM
from postroom.db.tables.accounts import history_cursors
from postroom.db.tables.triage import decisions
from postroom.domain.clock import ManualClock, SystemClock
from postroom.mailboxes.imap.connection import LONGEST_IDLE_S
from postroom.mailboxes.imap.idling import IdleTimes, InboxWatch
from postroom.mailboxes.imap.session import ConnectionPool
from postroom.settings import DatabaseSettings, RecurringSettings, Settings
from tests.integration.mailboxes.test_imap_hostile import PATIENCE, Answers, ScriptedServer, polite, scripted
from tests.support.dovecot import dovecot
from tests.support.imap import IMPATIENT, crlf
from tests.support.mail import letter

IDLING = b"* OK [CAPABILITY IMAP4rev1 UIDPLUS IDLE] ready\r\n"


class PatientClock(ManualClock):
    """Time stands still during an IDLE, as long as `idles` is true; any other sleep is over at once."""

    def __init__(self, *, idles: bool) -> None:
        super().__init__()
        self.idles = idles
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.idles and seconds == IdleTimes().renew_s:
            await asyncio.Event().wait()
        await super().sleep(seconds)


class News:
    """Counts what a watch tells; `reached` waits for the next of it."""

    def __init__(self) -> None:
        self.count = 0
        self._more = asyncio.Condition()

    async def __call__(self) -> None:
        async with self._more:
            self.count += 1
            self._more.notify_all()

    async def reached(self, count: int) -> None:
        async with asyncio.timeout(60), self._more:
            await self._more.wait_for(lambda: self.count >= count)


@contextlib.asynccontextmanager
async def watching(watch: InboxWatch) -> AsyncIterator[News]:
    news = News()
    task = asyncio.create_task(watch.run(news))
    try:
        yield news
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def idle_server(*, during: bytes = b"", at_noop: bytes = b"", at_done: bytes = b"") -> Answers:
    """`during` is said as soon as a client idles, the others when it ends that or asks."""
    usual, open_tag = polite(), [""]

    def answer(tag: str, words: str) -> bytes | None:
        match (words or tag).upper():
            case "IDLE":
                open_tag[0] = tag
                return b"+ idling\r\n" + during
            case "DONE":
                return at_done + f"{open_tag[0]} OK done\r\n".encode()
            case "CAPABILITY":
                return f"* CAPABILITY IMAP4rev1 UIDPLUS IDLE\r\n{tag} OK done\r\n".encode()
            case "NOOP":
                return at_noop + f"{tag} OK done\r\n".encode()
        return usual(tag, words)

    return answer


def watch_of(server: ScriptedServer, clock: ManualClock) -> InboxWatch:
    return InboxWatch(ConnectionPool(server.login, PATIENCE, most=1), clock)


def said(server: ScriptedServer, word: str) -> int:
    return sum(line.upper().endswith(word) for line in server.heard)


async def heard(server: ScriptedServer, word: str, count: int) -> None:
    async with asyncio.timeout(60):
        while said(server, word) < count:
            await asyncio.sleep(0)


@pytest.mark.req("IM-4")
async def test_mail_that_arrives_while_idling_is_told_at_once() -> None:
    with dovecot() as server:
        watch = InboxWatch(ConnectionPool(server.login, IMPATIENT, most=1), SystemClock())
        async with watching(watch) as news:
            await news.reached(1)
            for number in range(2, 4):
                await asyncio.to_thread(server.deliver, crlf(letter(f"New {number}")))
                await news.reached(number)


@pytest.mark.req("IM-4")
async def test_a_worker_takes_in_what_arrives_although_it_polls_once_a_day(tmp_path: Path, database_url: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    often = RecurringSettings(live="every 1d", sync="off", labels="off", bad_messages="off", sentinel="off")
    settings = Settings(home=home, database=DatabaseSettings(url=database_url), recurring=often)
    with dovecot() as server:
        async with open_app(settings) as app:
            await app.take_in(server.login(), SYSTEM)
            async with open_worker(app) as worker, asyncio.timeout(60):
                working = asyncio.create_task(worker.run())

                async def until(query: Select[Any]) -> None:
                    while await app.database.read(lambda tx: tx.execute(query).first()) is None:
                        await asyncio.sleep(0.01)

                await until(select(history_cursors).where(history_cursors.c.history_id.is_not(None)))
                await asyncio.to_thread(server.deliver, crlf(letter("Lunch?")))
                await until(select(decisions))
                worker.stop()
                await working


@pytest.mark.req("IM-4")
async def test_an_idle_is_renewed_long_before_a_server_may_end_it() -> None:
    clock = PatientClock(idles=False)
    async with scripted(idle_server(), IDLING) as server, watching(watch_of(server, clock)) as news:
        await heard(server, "IDLE", 5)
        assert said(server, "DONE") >= 4
        assert max(clock.slept) < LONGEST_IDLE_S < 29 * 60
        assert news.count == 1, "an inbox where nothing happens is no news"
    with pytest.raises(ValueError, match="ended by the server"):
        IdleTimes(renew_s=29 * 60)


@pytest.mark.req("IM-4")
@pytest.mark.parametrize("silent", [{"at_noop": b"* 3 EXISTS\r\n"}, {"at_done": b"* 3 EXISTS\r\n"}])
async def test_a_server_that_never_reports_is_asked(silent: dict[str, bytes]) -> None:
    clock = PatientClock(idles=False)
    async with scripted(idle_server(**silent), IDLING) as server, watching(watch_of(server, clock)) as news:
        await news.reached(3)
        if "at_noop" in silent:
            await news.reached(6)
            assert said(server, "IDLE") == 2, "caught twice, it is asked by NOOP only"
        await heard(server, "NOOP", 2)
        assert clock.slept.count(IdleTimes().renew_s) == 2
        assert IdleTimes().ask_s in clock.slept


@pytest.mark.req("IM-4", "IM-7")
async def test_a_server_that_reports_without_end_is_heard_once_a_second() -> None:
    clock = PatientClock(idles=True)
    flood = idle_server(during=b"* 3 EXISTS\r\n" * 500)
    async with scripted(flood, IDLING) as server, watching(watch_of(server, clock)) as news:
        await news.reached(20)
        assert clock.monotonic() >= news.count - 2


@pytest.mark.req("IM-4", "IM-7")
@pytest.mark.parametrize("during", [b"* BYE enough\r\n", b"P99 OK what?\r\n", b"* OK Still here\r\n" * 25_000])
async def test_a_watch_that_is_broken_off_is_taken_up_again_ever_more_slowly(during: bytes) -> None:
    clock = PatientClock(idles=True)
    async with scripted(idle_server(during=during), IDLING) as server, watching(watch_of(server, clock)) as news:
        await news.reached(4)
        pauses = [each for each in clock.slept if each != IdleTimes().renew_s]
        assert len(pauses) >= 3
        assert pauses[2] > pauses[0]
        assert sum("LOGIN" in line for line in server.heard) >= 4


@pytest.mark.req("IM-4")
async def test_without_idle_nothing_is_watched() -> None:
    async with scripted(polite()) as server:
        news = News()
        async with asyncio.timeout(60):
            await watch_of(server, PatientClock(idles=True)).run(news)
        assert news.count == 0
