"""The archive for coroutines: opened as the settings say, owned once per process, with a store for each account.

Everything that touches the archive runs on separate threads, so the event loop never waits for a disk. While the shard
writers are behind, `AccountStore.store` waits too, as back-pressure. Mail that several workers store at the same time
is committed together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from postroom.archive.backend import ArchiveBackend, ImportPositions, ImportTarget, MailReader, MailWriter
from postroom.archive.importing.preparation import WalkPreparation
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance, Relabelling, StoredMessage, Submission
from postroom.archive.preparing import PreparedMail, prepare_and_read
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import BYTES_PER_COMMIT, MESSAGES_PER_COMMIT
from postroom.archive.status import Repair, SyncMark, VerifyReport
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.extras import Extra, require
from postroom.mail.headers import Headers
from postroom.settings import Settings

T = TypeVar("T")
_LONGEST_RECENT = 64 << 10
"""The longest header block, in characters, that is kept in memory."""


@dataclass(frozen=True, slots=True)
class _Request:
    mails: Sequence[IncomingMail]
    answer: asyncio.Future[list[StoredMessage]]
    end: asyncio.Future[None]
    """Set in every outcome, even if the caller has given up."""
    is_of_walk: bool = False

    @property
    def size(self) -> int:
        return sum(len(mail.raw) for mail in self.mails)

    def succeed(self, stored: list[StoredMessage]) -> None:
        self.end.set_result(None)
        if not self.answer.done():  # the caller may have given up; the mail is stored all the same
            self.answer.set_result(stored)

    def fail(self, error: Exception) -> None:
        self.end.set_result(None)
        if not self.answer.done():
            self.answer.set_exception(error)


class AccountStore:
    def __init__(self, backend: ArchiveBackend, archive: MailWriter, email: str, thread: ThreadPoolExecutor) -> None:
        self.email = email
        self.backend = backend
        self._archive = archive
        self._thread = thread
        self._waiting: deque[_Request] = deque()
        self._submitting: asyncio.Task[None] | None = None
        self._commits: set[asyncio.Task[None]] = set()
        self._under_way: set[asyncio.Future[None]] = set()
        self._walk = WalkPreparation()

    async def known(self, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these are in the archive already."""
        return await self.run(lambda archive: archive.known_gmail_ids(self.email, gmail_ids))

    async def belongs_to(self, account_id: str, walk: int) -> bool:
        """Whether this is the archive that the account's sync has filled."""
        mark = await self.run(lambda archive: self.backend.read_mark(self.email))
        return mark is not None and mark.account_id == account_id and mark.walk >= walk

    async def mark(self, account_id: str, walk: int) -> None:
        """Record that the account's sync fills this archive, from this walk on."""
        await self.run(lambda archive: self.backend.write_mark(self.email, SyncMark(account_id, walk)))

    async def settle_lost(self) -> None:
        """A walk has brought everything that the source has: what was lost before is no longer reported."""
        await self.run(lambda archive: self.backend.settle_lost(self.email))

    async def some_ids(self, count: int) -> list[str]:
        """A few Gmail ids of messages that are in the archive and not known to be deleted at the source."""
        return await self.run(lambda archive: archive.some_gmail_ids(self.email, count))

    async def store(self, mails: Sequence[IncomingMail], *, is_of_walk: bool = False) -> list[StoredMessage]:
        """Store mail; it is on disk when this returns. Results are in the order of `mails`.

        `is_of_walk`: there may be very much of it, and no one asks for its headers. If there is, another process
        prepares it, until `drain`.
        """
        if not mails:
            return []
        asked: asyncio.Future[list[StoredMessage]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(mails, asked, self._begin(), is_of_walk))
        if self._submitting is None or self._submitting.done():
            self._submitting = asyncio.create_task(self._submit_waiting(), name="archive")
        return await asked

    async def expect(self, messages: int) -> None:
        """A walk is about to bring so many."""
        await asyncio.to_thread(self._walk.expect, messages)

    async def reread(self, keys: Sequence[str]) -> dict[str, str | None]:
        """Parse archived messages again that could not be parsed before. For each that the archive has: why it still
        cannot be parsed, or None."""
        found: dict[str, str | None] = {}
        for key in keys:
            try:
                mail = await asyncio.to_thread(self._archived, key)
                if mail is not None:
                    [stored] = await self.store([mail])
                    found[key] = stored.trouble
            except Fatal as error:
                found[key] = error.message
        return found

    def _archived(self, key: str) -> IncomingMail | None:
        with self.backend.reader() as reader:
            message = reader.message(self.email, key)
            if message is None:
                return None
            # As an import even if it came from the API: this says nothing about what the source has now.
            received = message.date if message.gmail_id else None
            thread_id = message.thread_id if message.gmail_id else None
            return IncomingMail(
                reader.raw_of(message), Provenance.IMPORT, message.gmail_id, thread_id, received=received
            )

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Around fetching mail: `settled` waits for the end of the block."""
        end = self._begin()
        try:
            yield
        finally:
            end.set_result(None)

    async def settled(self) -> None:
        """Wait until all mail that is being fetched or stored now is on disk, or has been given up.

        Call this between reading changes at the source and applying them: otherwise mail fetched before a change and
        stored after it would restore the old state.
        """
        while_waiting = set(self._under_way)
        if while_waiting:
            await asyncio.wait(while_waiting)

    async def set_labels(self, labels: Mapping[str, frozenset[str]]) -> set[str]:
        """Record the labels that messages now have; returns the Gmail ids that are not in the archive."""
        return await self.run(lambda archive: archive.set_labels(self.email, labels))

    async def mark_deleted(self, gmail_ids: Sequence[str], when: datetime) -> set[str]:
        """Record that messages were deleted at the source; returns the Gmail ids that are not in the archive."""
        return await self.run(lambda archive: archive.mark_deleted(self.email, gmail_ids, when))

    async def unmark_deleted(self, gmail_ids: Sequence[str]) -> set[str]:
        """Remove the mark of deletion; returns the Gmail ids that are not in the archive."""
        return await self.run(lambda archive: archive.unmark_deleted(self.email, gmail_ids))

    async def change_labels(self, changes: Sequence[Relabelling]) -> set[str]:
        """Add and remove labels, in this order; returns the Gmail ids that are not in the archive."""
        return await self.run(lambda archive: archive.change_labels(self.email, changes))

    async def rename_label(self, old: str, new: str) -> None:
        await self.run(lambda archive: archive.rename_label(self.email, old, new))

    async def label_names(self) -> set[str]:
        """Every label that some message has or had."""
        return await self.run(lambda archive: archive.label_names(self.email))

    async def label_members(self, label: str) -> set[str]:
        """The Gmail ids that have this label, without those that are deleted at the source."""
        return await self.run(lambda archive: archive.label_members(self.email, label))

    async def checkpoint(self) -> None:
        """Make everything stored so far durable enough for a watermark to rely on."""
        await self.run(lambda archive: archive.checkpoint())

    async def run(self, work: Callable[[MailWriter], T]) -> T:
        """Run `work` on the archive's thread. Once begun it finishes, even if the caller gives up."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._archive)

    async def drain(self) -> None:
        """Wait until all mail handed to `store` is on disk, even if its caller has given up. A walk is over then."""
        if self._submitting is not None:
            await asyncio.gather(self._submitting, return_exceptions=True)
            await asyncio.gather(*self._commits, return_exceptions=True)
        await asyncio.to_thread(self._walk.end)

    def _begin(self) -> asyncio.Future[None]:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(end)
        end.add_done_callback(self._under_way.discard)
        return end

    async def _submit_waiting(self) -> None:
        """Submit waiting mail to the writers, without waiting for the disk in between."""
        while self._waiting:
            together = self._next_commit()
            try:
                submission, headers = await self._submit(together)
            except Exception as error:
                self._in_background(self._store_apart(together, error))
            else:
                self._in_background(self._answer(together, submission, headers))

    def _in_background(self, commit: Coroutine[Any, Any, None]) -> None:
        # Not within `_submit_waiting`, which ends when nothing waits: mail that comes during the last commit would find
        # that task neither working nor done.
        task = asyncio.create_task(commit, name="archive commit")
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    def _next_commit(self) -> list[_Request]:
        """As many requests as fit into one transaction, and at least one."""
        together: list[_Request] = []
        messages = size = 0
        while self._waiting:
            request = self._waiting[0]
            messages, size = messages + len(request.mails), size + request.size
            if together and (messages > MESSAGES_PER_COMMIT or size > BYTES_PER_COMMIT):
                break
            together.append(self._waiting.popleft())
        return together

    async def _answer(
        self, together: list[_Request], submission: Submission, headers: Sequence[Headers | None]
    ) -> None:
        try:
            stored = iter(await _on_disk(submission, headers))
        except Exception as error:
            await self._store_apart(together, error)
            return
        for request in together:
            request.succeed([next(stored) for _ in request.mails])

    async def _store_apart(self, together: list[_Request], error: Exception) -> None:
        """After storing requests together has failed: store each alone, so that only the bad one fails."""
        if len(together) == 1:
            together[0].fail(error)
            return
        for request in together:
            try:
                request.succeed(await _on_disk(*await self._submit([request])))
            except Exception as own:
                request.fail(own)

    async def _submit(self, requests: Sequence[_Request]) -> tuple[Submission, list[Headers | None]]:
        # Not on the archive's thread: a message that takes long to parse must not delay other mail.
        read = await asyncio.to_thread(lambda: [each for request in requests for each in self._prepare(request)])
        submission = await self.run(lambda archive: archive.submit(self.email, [prepared for prepared, _ in read]))
        return submission, [headers for _, headers in read]

    def _prepare(self, request: _Request) -> Sequence[tuple[PreparedMail, Headers | None]]:
        if request.is_of_walk:
            return [(prepared, None) for prepared in self._walk.prepare(request.mails)]
        return [prepare_and_read(mail) for mail in request.mails]


async def _on_disk(submission: Submission, headers: Sequence[Headers | None]) -> list[StoredMessage]:
    """On another thread, so that the archive's thread can take the next mail meanwhile."""
    stored = await asyncio.to_thread(submission.result)
    pairs = zip(stored, headers, strict=True)
    return [proof if read is None else replace(proof, headers=read) for proof, read in pairs]


class RecentHeaders:
    """Headers of recently stored messages by the hash of their bytes, so that ingest need not parse them again.
    Thread-safe."""

    def __init__(self, most: int = 500) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._headers: dict[str, Headers] = {}

    def add(self, stored: Sequence[StoredMessage]) -> None:
        with self._lock:
            for proof in stored:
                if proof.headers is not None and _is_small(proof.headers):
                    self._headers.pop(proof.sha256, None)
                    self._headers[proof.sha256] = proof.headers
            for oldest in list(self._headers)[: max(0, len(self._headers) - self._most)]:
                del self._headers[oldest]

    def get(self, sha256: str) -> Headers | None:
        with self._lock:
            return self._headers.get(sha256)


def _is_small(headers: Headers) -> bool:
    return sum(len(name) + len(value) for name, value in headers) <= _LONGEST_RECENT


class ArchiveService:
    def __init__(self, backend: ArchiveBackend, archive: MailWriter) -> None:
        self.backend = backend
        self._archive = archive
        self._writing = ThreadPoolExecutor(1, "archive-writer")
        self._reading = ThreadPoolExecutor(1, "archive-reader")
        self._reader = backend.reader()
        self.recent = RecentHeaders()
        self._accounts: dict[str, AccountStore] = {}

    def of(self, email: str) -> AccountStore:
        """The store of an account; all callers of the same account share its commits."""
        if email not in self._accounts:
            self._accounts[email] = AccountStore(self.backend, self._archive, email, self._writing)
        return self._accounts[email]

    async def read(self, work: Callable[[MailReader], T]) -> T:
        """Run `work` on the reading thread; it waits for no writer."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, lambda: work(self._reader))

    def headers_of(self, reader: MailReader, message: ArchivedMessage) -> Headers:
        """From memory if the message was stored a moment ago, else from the stored bytes."""
        return self.recent.get(message.sha256) or reader.headers_of(message)

    async def read_apart(self, work: Callable[[MailReader], T]) -> T:
        """As `read`, for long reads: on another thread with its own reader, so that no other call is blocked."""
        return await read_apart(self.backend, work)

    def import_target(self) -> ImportTarget:
        """For an import, which runs on a thread of its own; its mail takes turns with all other mail."""
        return _SharedTarget(self._archive, self._writing)

    async def repair(self, report: VerifyReport) -> Repair:
        """Repair what a verification found. Storing waits meanwhile."""
        loop = asyncio.get_running_loop()
        work = partial(self.backend.repair, report, self._archive)
        done = await asyncio.shield(loop.run_in_executor(self._writing, work))
        if done.rebuilt:
            await loop.run_in_executor(self._reading, self._read_anew)
        return done

    def _read_anew(self) -> None:
        """What was rebuilt is another file under the same name."""
        self._reader.__exit__()
        self._reader = self.backend.reader()

    async def close(self) -> None:
        """After all callers have stopped: finish pending writes, checkpoint, and release the archive."""
        for account in self._accounts.values():
            await account.drain()
        loop = asyncio.get_running_loop()
        try:
            await self.read(lambda reader: reader.__exit__())
            await loop.run_in_executor(self._writing, self._archive.close)
        finally:
            self._writing.shutdown()
            self._reading.shutdown()


class _SharedTarget:
    def __init__(self, archive: MailWriter, writing: ThreadPoolExecutor) -> None:
        self._archive = archive
        self._writing = writing

    def submit(self, email: str, mails: Sequence[PreparedMail], *, bulk: bool = False) -> Submission:
        return self._writing.submit(partial(self._archive.submit, email, mails, bulk=bulk)).result()

    def import_positions(self, source: str) -> ImportPositions:
        return self._archive.import_positions(source)  # kept apart from the mail, by the thread that asks for it

    def merge_index(self, email: str) -> None:
        """Left to the job `archive.index`, which holds up other writing for one shard at a time."""


@asynccontextmanager
async def owned_archive(backend: ArchiveBackend, purpose: str) -> AsyncIterator[ArchiveService]:
    """The archive with the right to write to it, until the block ends."""
    opening = asyncio.ensure_future(asyncio.to_thread(backend.writer, purpose))
    try:
        archive = await asyncio.shield(opening)
    except BaseException:
        await asyncio.wait([opening])  # the thread cannot be cancelled and opens the archive in any case
        if opening.exception() is None:
            opening.result().close()
        raise
    service = ArchiveService(backend, archive)
    try:
        yield service
    finally:
        await service.close()


async def read_apart(backend: ArchiveBackend, work: Callable[[MailReader], T]) -> T:
    """Run `work` on a thread with a reader of its own. This needs no owner."""

    def run() -> T:
        with backend.reader() as reader:
            return work(reader)

    return await asyncio.to_thread(run)


class SharedArchive:
    """Opens the archive for writing for its first user and closes it after its last."""

    def __init__(self, backend: ArchiveBackend) -> None:
        self.backend = backend
        self._lock = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._service: ArchiveService | None = None
        self._users = 0

    @asynccontextmanager
    async def owned(self, purpose: str) -> AsyncIterator[ArchiveService]:
        """The archive, owned by this process. Raises OwnedElsewhere while another process owns it."""
        service = await self._join(purpose)
        try:
            yield service
        finally:
            await self._leave()

    @asynccontextmanager
    async def store(self, email: str, purpose: str) -> AsyncIterator[AccountStore]:
        """The store of an account; all its mail is on disk when the block ends."""
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
                self._service = await stack.enter_async_context(owned_archive(self.backend, purpose))
                self._stack = stack
            self._users += 1
            return self._service

    async def _leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if self._users == 0 and self._stack is not None:
                stack, self._stack, self._service = self._stack, None, None
                await stack.aclose()


def open_archive(settings: Settings) -> ArchiveBackend:
    """The archive that the settings name; the caller closes it."""
    if settings.archive.store == "files":
        return FileArchive(settings.home / "archive", settings.archive)
    if not settings.database_url.startswith("postgresql"):
        raise BadInput(
            "archive.store",
            'is "database", which needs PostgreSQL: set database.url to an address such as '
            'postgresql://user@host/name, or archive.store to "files"',
        )
    require(Extra.POSTGRES, 'archive.store = "database"')
    from postroom.archive.postgres.postgres_archive import (
        PostgresArchive,  # drivers are slow to load, and files do not need them
    )

    return PostgresArchive(settings.database_url, settings.home / "archive")
