"""Wake-ups through named pipes in a folder beside the SQLite file, one for each listener."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from postroom.db.wake import Topic, Wake, Wakeups
from postroom.domain.ids import new_id
from postroom.telemetry import logs

log = logs.get(__name__)


class FifoWake(Wake):
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
        except OSError as error:  # full: it has thousands to read already; broken: it has just gone
            log.debug("wake.not_written", pipe=pipe, error=error.strerror)
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
                wakeups.put(topic)

    async def close(self) -> None:
        """Nothing is held open between wake-ups."""
