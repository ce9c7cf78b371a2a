"""The archive from the event loop: this process may write, on one thread, and reads on another.

Nothing here ever holds up the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from postroom.archive.account_store import AccountStore
from postroom.archive.place import ArchivePlace, MailReader, MailWriter

T = TypeVar("T")


class ArchiveService:
    def __init__(self, place: ArchivePlace, archive: MailWriter) -> None:
        self.place = place
        self._archive = archive
        self._writing = ThreadPoolExecutor(1, "archive-writer")
        self._reading = ThreadPoolExecutor(1, "archive-reader")
        self._reader = place.reader()
        self._accounts: dict[str, AccountStore] = {}

    def of(self, email: str) -> AccountStore:
        """An account's part of it: whoever brings mail for the account shares its commits."""
        if email not in self._accounts:
            self._accounts[email] = AccountStore(self.place, self._archive, email, self._writing)
        return self._accounts[email]

    async def read(self, work: Callable[[MailReader], T]) -> T:
        """Something that only looks; it waits for no writer."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, self._reader)

    async def read_apart(self, work: Callable[[MailReader], T]) -> T:
        """The same for what may take long: on another thread, with a reader of its own, in nobody's way."""

        def run() -> T:
            with self.place.reader() as reader:
                return work(reader)

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        """After everybody has stopped: finish what was begun, checkpoint, and let the archive go."""
        for account in self._accounts.values():
            await account.drain()
        loop = asyncio.get_running_loop()
        try:
            await self.read(lambda reader: reader.__exit__())
            await loop.run_in_executor(self._writing, self._archive.close)
        finally:
            self._writing.shutdown()
            self._reading.shutdown()


@asynccontextmanager
async def owned_archive(place: ArchivePlace, purpose: str) -> AsyncIterator[ArchiveService]:
    """The archive with the right to write to it, until the block ends."""
    opening = asyncio.ensure_future(asyncio.to_thread(place.writer, purpose))
    try:
        archive = await asyncio.shield(opening)
    except BaseException:
        await asyncio.wait([opening])  # the thread does not hear of a cancellation, and opens the archive all the same
        if opening.exception() is None:
            opening.result().close()
        raise
    service = ArchiveService(place, archive)
    try:
        yield service
    finally:
        await service.close()
