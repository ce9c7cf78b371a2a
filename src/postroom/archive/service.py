"""The archive from the event loop: this process owns it, writes on one thread and reads on another.

Nothing here ever holds up the loop. Writing is bounded: whoever brings more than fits waits its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from postroom.archive.model import IncomingMail, Stored
from postroom.archive.preparing import prepare
from postroom.archive.reading import ArchiveReader
from postroom.archive.store import Archive, Submission
from postroom.settings import ArchiveSettings

T = TypeVar("T")

_BATCHES_AT_ONCE = 8


class ArchiveService:
    def __init__(self, archive: Archive) -> None:
        self.root = archive.root
        self._archive = archive
        self._writer = ThreadPoolExecutor(1, "archive-writer")
        self._reading = ThreadPoolExecutor(1, "archive-reader")
        self._reader = ArchiveReader(archive.root)
        self._room = asyncio.Semaphore(_BATCHES_AT_ONCE)

    async def store(self, email: str, mails: Sequence[IncomingMail]) -> list[Stored]:
        """When this returns, they are on disk. The answers stand in the order of the mail."""
        if not mails:
            return []
        async with self._room:
            submission = await self.write(lambda archive: archive.submit(email, [prepare(mail) for mail in mails]))
            return await _on_disk(submission)

    async def set_labels(self, email: str, labels: Mapping[str, frozenset[str]]) -> set[str]:
        """Record the labels that messages now have; returns the Gmail ids that are not in the archive."""
        return await self.write(lambda archive: archive.set_labels(email, labels))

    async def mark_deleted(self, email: str, gmail_ids: Sequence[str], when: datetime) -> set[str]:
        """Record that messages were deleted at the source; returns the Gmail ids that are not in the archive."""
        return await self.write(lambda archive: archive.mark_deleted(email, gmail_ids, when))

    async def write(self, work: Callable[[Archive], T]) -> T:
        """Something that changes the archive. Once begun it is finished, even if the caller gives up."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, self._archive)

    async def read(self, work: Callable[[ArchiveReader], T]) -> T:
        """Something that only looks; it waits for no writer."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, self._reader)

    async def read_apart(self, work: Callable[[ArchiveReader], T]) -> T:
        """The same for what may take long: on another thread, with a reader of its own, in nobody's way."""

        def run() -> T:
            with ArchiveReader(self.root) as reader:
                return work(reader)

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        """After everybody has stopped: finish what was begun, checkpoint, and let the archive go."""
        try:
            await self.read(lambda reader: reader.__exit__())
            await self.write(lambda archive: archive.close())
        finally:
            self._writer.shutdown()
            self._reading.shutdown()


async def _on_disk(submission: Submission) -> list[Stored]:
    # Shielded: a writer's future that is cancelled from here would break the writer when it answers.
    await asyncio.gather(*(asyncio.shield(asyncio.wrap_future(future)) for _, future in submission.parts))
    return submission.result()


@asynccontextmanager
async def owned_archive(root: Path, settings: ArchiveSettings, purpose: str) -> AsyncIterator[ArchiveService]:
    """The archive below `root`, owned by this process until the block ends."""
    service = ArchiveService(await asyncio.to_thread(Archive, root, settings, purpose))
    try:
        yield service
    finally:
        await service.close()
