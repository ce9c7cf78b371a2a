"""Wake-ups through LISTEN and NOTIFY, each on a connection of its own.

NOTIFY inside a transaction takes a lock that all committing transactions share; so it is sent by itself, after the
commit, and callers that come while one is under way share the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from postroom.db.wake import Topic, Wake, Wakeups
from postroom.telemetry import logs

log = logs.get(__name__)

_CHANNEL = "postroom_wake"
_RECONNECT_S = 1.0


class PostgresWake(Wake):
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._sender: psycopg.AsyncConnection | None = None
        self._sending = asyncio.Lock()
        self._unsent: set[Topic] = set()

    async def send(self, topic: Topic) -> None:
        self._unsent.add(topic)
        async with self._sending:
            topics, self._unsent = self._unsent, set()
            for item in topics:
                await self._notify(item)

    async def _notify(self, topic: Topic) -> None:
        try:
            if self._sender is None or self._sender.closed:
                self._sender = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
            await self._sender.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, topic.value))
        except psycopg.Error as error:
            log.warning("wake.send_failed", error=str(error))
            await self._drop_sender()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Wakeups]:
        wakeups = Wakeups()
        ready = asyncio.Event()
        task = asyncio.create_task(self._receive(wakeups, ready), name="wake-listener")
        try:
            await ready.wait()
            yield wakeups
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _receive(self, wakeups: Wakeups, ready: asyncio.Event) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                    ready.set()
                    wakeups.put(Topic.WORK)  # something may have come while nobody listened
                    async for notice in connection.notifies():
                        wakeups.put(notice.payload)
            except psycopg.Error as error:
                log.warning("wake.listener_lost", error=str(error))
            finally:
                ready.set()
            await asyncio.sleep(_RECONNECT_S)

    async def close(self) -> None:
        await self._drop_sender()

    async def _drop_sender(self) -> None:
        if self._sender is not None:
            await self._sender.close()
            self._sender = None
