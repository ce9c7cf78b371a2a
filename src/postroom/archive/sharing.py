"""One owner of the archive for everything that a process does at the same time: syncs, retries, the Switchboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from postroom.archive.account_store import AccountStore
from postroom.archive.place import ArchivePlace
from postroom.archive.service import ArchiveService, owned_archive


class SharedArchive:
    """The first who needs the archive takes hold of it, and the last who is done lets go."""

    def __init__(self, place: ArchivePlace) -> None:
        self.place = place
        self._lock = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._service: ArchiveService | None = None
        self._users = 0

    @asynccontextmanager
    async def owned(self, purpose: str) -> AsyncIterator[ArchiveService]:
        """The archive in this process's hands. Raises OwnedElsewhere while another process has it."""
        service = await self._join(purpose)
        try:
            yield service
        finally:
            await self._leave()

    @asynccontextmanager
    async def store(self, email: str, purpose: str) -> AsyncIterator[AccountStore]:
        """An account's part of it; what was brought is on disk when the block ends."""
        async with self.owned(purpose) as service:
            mine = service.of(email)
            try:
                yield mine
            finally:
                await mine.drain()

    async def _join(self, purpose: str) -> ArchiveService:
        async with self._lock:
            if self._service is None:
                stack = AsyncExitStack()
                self._service = await stack.enter_async_context(owned_archive(self.place, purpose))
                self._stack = stack
            self._users += 1
            return self._service

    async def _leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if self._users == 0 and self._stack is not None:
                stack, self._stack, self._service = self._stack, None, None
                await stack.aclose()
