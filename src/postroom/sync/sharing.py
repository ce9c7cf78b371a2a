"""One owner of the archive for everything that a process does at the same time: syncs of several accounts, retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from postroom.settings import ArchiveSettings
from postroom.sync.store import ArchiveStore, opened_store


class SharedArchive:
    """The first who needs the archive takes hold of it, and the last who is done lets go."""

    def __init__(self, root: Path, settings: ArchiveSettings) -> None:
        self.root = root
        self._settings = settings
        self._lock = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._store: ArchiveStore | None = None
        self._users = 0

    @asynccontextmanager
    async def store(self, email: str, purpose: str) -> AsyncIterator[ArchiveStore]:
        """An account's part of the archive. Raises OwnedElsewhere while another process has it."""
        mine = (await self._join(email, purpose)).of(email)
        try:
            yield mine
        finally:
            await mine.drain()
            await self._leave()

    async def _join(self, email: str, purpose: str) -> ArchiveStore:
        async with self._lock:
            if self._store is None:
                stack = AsyncExitStack()
                opening = opened_store(self.root, email, self._settings, purpose)
                self._store = await stack.enter_async_context(opening)
                self._stack = stack
            self._users += 1
            return self._store

    async def _leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if self._users == 0 and self._stack is not None:
                stack, self._stack, self._store = self._stack, None, None
                await stack.aclose()
