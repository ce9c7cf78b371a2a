"""Tells waiting workers, in this process and in others, that something of interest was committed.

A wake-up is a hint: it may be lost with a crash or a broken connection, so every waiter also looks by itself now and
then. It carries one of a few topics and no data.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

import psycopg

from postroom.domain.ids import new_id
from postroom.telemetry import logs

log = logs.get(__name__)

_CHANNEL = "postroom_wake"
_RECONNECT_S = 1.0


class Topic(StrEnum):
    """What happened. The value is one character, because it travels through a pipe."""

    WORK = "w"
    CANCEL = "c"


class Wakeups:
    """One listener's mailbox: the topics that came since it last looked."""

    def __init__(self) -> None:
        self._topics: set[Topic] = set()
        self._arrived = asyncio.Event()

    def put(self, topic: Topic) -> None:
        self._topics.add(topic)
        self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()

    def take(self) -> set[Topic]:
        topics, self._topics = self._topics, set()
        self._arrived.clear()
        return topics


class Wake(ABC):
    @abstractmethod
    async def send(self, topic: Topic) -> None:
        """Wake every listener. Call it after the commit, never inside the transaction."""

    @abstractmethod
    def listen(self) -> contextlib.AbstractAsyncContextManager[Wakeups]:
        """Receive wake-ups for as long as the block lasts."""

    @abstractmethod
    async def close(self) -> None: ...


class FifoWake(Wake):
    """SQLite: a folder beside the database with one named pipe for each listener."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, topic: Topic) -> None:
        try:
            pipes = list(os.scandir(self._folder))
        except FileNotFoundError:
            return
        for pipe in pipes:
            self._write(pipe.path, topic)

    def _write(self, pipe: str, topic: Topic) -> None:
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # its listener died without a goodbye
                Path(pipe).unlink(missing_ok=True)
            return
        try:
            os.write(handle, topic.encode())
        except BlockingIOError:
            log.debug("wake.pipe_full", pipe=pipe)  # it has thousands of wake-ups to read already
        finally:
            os.close(handle)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Wakeups]:
        wakeups = Wakeups()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Made and opened under another name: a sender that met it before it had a reader would remove it.
        pipe = self._folder / f"{new_id()}.fifo"
        hidden = self._folder.parent / f".{pipe.name}"
        os.mkfifo(hidden, 0o600)
        handle = os.open(hidden, os.O_RDWR | os.O_NONBLOCK)
        hidden.rename(pipe)
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, self._read, handle, wakeups)
        try:
            yield wakeups
        finally:
            loop.remove_reader(handle)
            os.close(handle)
            pipe.unlink(missing_ok=True)

    def _read(self, handle: int, wakeups: Wakeups) -> None:
        with contextlib.suppress(BlockingIOError):
            for topic in {*os.read(handle, 65_536).decode()}:
                wakeups.put(Topic(topic))

    async def close(self) -> None:
        with contextlib.suppress(OSError):  # not empty: others still listen
            self._folder.rmdir()


class PostgresWake(Wake):
    """PostgreSQL: LISTEN and NOTIFY, each on a connection of its own.

    NOTIFY inside a transaction takes a lock that all committing transactions share; so it is sent by itself, after
    the commit, and callers that come while one is under way share the next.
    """

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
        except psycopg.OperationalError as error:
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
                        wakeups.put(Topic(notice.payload))
            except psycopg.OperationalError as error:
                log.warning("wake.listener_lost", error=str(error))
                ready.set()
                await asyncio.sleep(_RECONNECT_S)

    async def close(self) -> None:
        await self._drop_sender()

    async def _drop_sender(self) -> None:
        if self._sender is not None:
            await self._sender.close()
            self._sender = None
