"""Live mail by IDLE: a connection of its own that waits in the inbox and tells when something changes there.

It only says that something changed; the live pass finds out what, and goes on polling beneath, because a connection
may be dead without anyone noticing and a server may promise reports and give none. Other folders are polled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from postroom.domain.clock import EQUAL_JITTER, Backoff, Clock
from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.imap.connection import LONGEST_IDLE_S, REPORTS, IdleEnd, ImapConnection
from postroom.mailboxes.imap.folders import open_folder
from postroom.mailboxes.imap.session import ConnectionPool
from postroom.telemetry import logs

log = logs.get(__name__)

_INBOX = "INBOX"
OnNews = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """`renew_s` is how long one IDLE lasts: well below the half hour that servers allow, and short enough to notice a
    connection that is dead. A server that was caught twice in silence is asked every `ask_s` instead. After news there
    is a rest, so that a server that reports without end costs little."""

    renew_s: float = 240.0
    ask_s: float = 30.0
    rest_s: float = 1.0
    backoff: Backoff = Backoff(5.0, 600.0, jitter=EQUAL_JITTER)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not 0 < self.renew_s <= LONGEST_IDLE_S:
            raise ValueError(f"an IDLE of {self.renew_s} s is ended by the server")


_CAUGHT = 2


class InboxWatch:
    """Watches one account's inbox. `pool` gives its one connection."""

    def __init__(self, pool: ConnectionPool, clock: Clock, times: IdleTimes = IdleTimes()) -> None:  # noqa: B008 - frozen
        self._pool = pool
        self._clock = clock
        self._times = times
        self._failures = 0

    async def run(self, on_news: OnNews) -> None:
        """Call `on_news` whenever the inbox may have changed, also after each connect, until this is cancelled. Ends by
        itself where the server has no IDLE or refuses the login: polling says what is wrong with that."""
        try:
            is_useful = True
            while is_useful:
                is_useful = await self._go_on(on_news)
        finally:
            await self._pool.close()

    async def _go_on(self, on_news: OnNews) -> bool:
        """On one connection, until it is lost; False where there is no use in another."""
        try:
            async with self._pool.use() as connection:
                if "IDLE" in connection.capabilities:
                    await self._watch(connection, on_news)
                return False
        except LoginNeeded:
            return False
        except PostroomError as error:
            self._failures += 1
            delay = self._times.backoff.delay_s(self._failures)
            log.info("imap.idle_lost", problem=error.message, again_in_s=round(delay))
            await self._clock.sleep(delay)
            return True

    async def _watch(self, connection: ImapConnection, on_news: OnNews) -> None:
        await open_folder(connection, _INBOX)
        await on_news()
        silences = 0
        while True:
            if silences < _CAUGHT:
                end = await connection.idle(self._clock.sleep(self._times.renew_s))
                if end is IdleEnd.QUIET and await self._asked(connection):
                    end = IdleEnd.LATE
                silences = silences + 1 if end is IdleEnd.LATE else 0 if end is IdleEnd.REPORTED else silences
                if silences == _CAUGHT:
                    log.warning("imap.idle_is_silent", host=connection.address.host)
            else:
                await self._clock.sleep(self._times.ask_s)
                end = IdleEnd.REPORTED if await self._asked(connection) else IdleEnd.QUIET
            self._failures = 0
            if end is not IdleEnd.QUIET:
                await on_news()
                await self._clock.sleep(self._times.rest_s)

    async def _asked(self, connection: ImapConnection) -> bool:
        """NOOP: whether the server then tells of a change."""
        answer = await connection.command(b"NOOP")
        return any(each.name in REPORTS for each in answer.untagged)
