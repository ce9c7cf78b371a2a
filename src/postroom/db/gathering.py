"""Functions that wait at the same time share a transaction: threads that write, and threads that read.

A function runs on a thread from its first statement to its last, so nothing that the event loop has to do comes
between two of them, and what is locked is locked as briefly as it can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from postroom.db.database import AfterCommit, Tx

T = TypeVar("T")
Outcome = tuple[T, list[AfterCommit]]

_MOST_TOGETHER = 100
_LONGEST_TOGETHER_S = 0.02
"""A group takes no further functions after so long: the first of them has waited for all the others."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A function that waits for a thread, and the future of the task that asked for it."""

    transaction: Callable[[Tx], Any]
    answer: asyncio.Future[Outcome[Any]]
    done: Outcome[Any] | None = None
    error: BaseException | None = None
    session: Session | None = None
    """Where it runs, or ran last."""

    def run(self, tx: Tx) -> None:
        value = self.transaction(tx)
        self.done, self.error = (value, list(tx.on_commit.values())), None

    def failed(self, error: BaseException) -> None:
        # A future takes no StopIteration: the task would wait for ever.
        self.done, self.error = None, RuntimeError(repr(error)) if isinstance(error, StopIteration) else error

    async def outcome(self) -> Outcome[Any]:
        try:
            return await self.answer
        except asyncio.CancelledError:
            if self.session is not None:
                await self.session.given_up()
            raise

    def answer_task(self) -> None:
        """Within the loop of the task that asked, which may have gone."""
        if self.answer.done():
            return
        if self.error is not None:
            self.answer.set_exception(self.error)
        elif self.done is not None:
            self.answer.set_result(self.done)


class Session(ABC):
    """A transaction under way on a thread, for one function or several."""

    def run(self, waiting: Waiting, *, seen: dict[Hashable, Any] | None = None, is_alone: bool = False) -> None:
        """`seen`: what reads share, where it only reads. `is_alone`: the transaction is for this function alone.
        Nothing is done for a task that gave up meanwhile."""
        waiting.session = self
        if waiting.answer.cancelled():
            return
        tx = self.tx(write=seen is None, is_alone=is_alone)
        tx.seen = seen
        waiting.run(tx)

    def run_in_savepoint(self, waiting: Waiting) -> None:
        self.execute("SAVEPOINT one_of_many")
        try:
            self.run(waiting)
        except BaseException as error:
            waiting.failed(error)
        if self.has_ended():  # as after a full disk: what the others wrote is gone too
            raise _GroupEnded()
        if waiting.error is not None:
            self.execute("ROLLBACK TO one_of_many")
        self.execute("RELEASE one_of_many")

    @abstractmethod
    def tx(self, *, write: bool, is_alone: bool) -> Tx: ...

    @abstractmethod
    def execute(self, sql: str) -> object:
        """Run a statement by the driver alone."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the database has ended the transaction of itself."""

    @abstractmethod
    async def given_up(self) -> None:
        """The task of one of its functions was cancelled."""


class _GroupEnded(Exception):
    """The database ended the transaction of a group before its commit."""


class GatheredWrites:
    """Writes that wait at the same time share a transaction, one transaction at a time.

    If one fails, all of them run again, each in a savepoint of its own, and that one is rolled back alone. If that
    transaction cannot be committed, each runs once more by itself, so that it gets the answer that it would have had
    without the others. No one is answered before the commit. `fails_all` says which errors each of them would meet,
    one after the other: these fail all of them at once.
    """

    def __init__(
        self,
        threads: Executor,
        transaction: Callable[[], AbstractContextManager[Session]],
        fails_all: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._threads = threads
        self._transaction = transaction
        self._fails_all = fails_all
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._is_working = False

    async def run(self, transaction: Callable[[Tx], T]) -> Outcome[T]:
        loop = asyncio.get_running_loop()
        write = Waiting(transaction, loop.create_future())
        with self._lock:
            self._waiting.append(write)
            if not self._is_working:
                self._is_working = True
                loop.call_soon(self.start)  # others of this turn of the loop belong to the same group
        return await write.outcome()

    def start(self) -> None:
        try:
            self._threads.submit(self._work)
        except RuntimeError as error:  # closed: what waits came after that
            with self._lock:
                late, self._is_working = list(self._waiting), False
                self._waiting.clear()
            for write in late:
                write.failed(error)
            answer_all(late)

    def _work(self) -> None:
        while (first := self._first()) is not None:
            if self._waiting:
                self._together(first)
            else:
                run_alone(self._transaction, first)
                answer_all([first])

    def _first(self) -> Waiting | None:
        """The next function; None if there is none, so that the next to come has to start the thread again."""
        with self._lock:
            first = self._next()
            self._is_working = first is not None
            return first

    def _next(self) -> Waiting | None:
        """The next that a task still waits for: of one that was given up before it began, nothing is done."""
        while self._waiting:
            write = self._waiting.popleft()
            if not write.answer.cancelled():
                return write
        return None

    def _together(self, first: Waiting) -> None:
        group: list[Waiting] = []
        try:
            with self._transaction() as session:
                self._run_group(session, first, group)
        except BaseException as error:
            if self._fails_all(error):
                group = [*(group or [first]), *self._all_that_wait()]
                _all_failed(group, error)
            elif group:
                self._apart(group)
            else:
                group.append(first)
                first.failed(error)
        answer_all(group)

    def _all_that_wait(self) -> list[Waiting]:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def _run_group(self, session: Session, first: Waiting, group: list[Waiting]) -> None:
        ends = time.monotonic() + _LONGEST_TOGETHER_S
        write: Waiting | None = first
        while write is not None:
            group.append(write)
            session.run(write)
            in_time = len(group) < _MOST_TOGETHER and time.monotonic() < ends
            write = self._next() if in_time else None

    def _apart(self, group: Sequence[Waiting]) -> None:
        try:
            with self._transaction() as session:
                for write in _wanted(group):
                    session.run_in_savepoint(write)
                    self._raise_what_fails_all(write)
        except BaseException as error:
            if self._fails_all(error):
                _all_failed(group, error)
            else:
                self._each_alone(_wanted(group))

    def _raise_what_fails_all(self, write: Waiting) -> None:
        if write.error is not None and self._fails_all(write.error):
            raise write.error

    def _each_alone(self, group: Sequence[Waiting]) -> None:
        for number, write in enumerate(group):
            run_alone(self._transaction, write)
            if write.error is not None and self._fails_all(write.error):
                _all_failed(group[number:], write.error)
                return


def _all_failed(group: Sequence[Waiting], error: BaseException) -> None:
    for write in group:
        write.failed(error)


def _wanted(group: Sequence[Waiting]) -> list[Waiting]:
    """Without those that were given up: what they did is rolled back already."""
    return [write for write in group if not write.answer.cancelled()]


def run_alone(transaction: Callable[[], AbstractContextManager[Session]], write: Waiting) -> None:
    try:
        with transaction() as session:
            session.run(write, is_alone=True)
    except BaseException as error:
        write.failed(error)


def answer_all(done: Sequence[Waiting]) -> None:
    """Each loop is woken once. A loop that is closed has no one left to answer."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Waiting]] = {}
    for each in done:
        by_loop.setdefault(each.answer.get_loop(), []).append(each)
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_in_loop, mine)


def _answer_in_loop(done: Sequence[Waiting]) -> None:
    for each in done:
        each.answer_task()


class GatheredReads:
    """Reads of one turn of the event loop share a thread, a connection and a moment that they see. A slow one hands
    those behind it to another thread."""

    def __init__(self, threads: Executor, transaction: Callable[[], AbstractContextManager[Session]]) -> None:
        self._threads = threads
        self._transaction = transaction
        self._wanted: dict[asyncio.AbstractEventLoop, deque[Waiting]] = {}

    async def run(self, transaction: Callable[[Tx], T]) -> Outcome[T]:
        loop = asyncio.get_running_loop()
        read = Waiting(transaction, loop.create_future())
        if loop not in self._wanted:
            self._wanted[loop] = deque()
            loop.call_soon(self._start, loop)
        self._wanted[loop].append(read)
        return await read.outcome()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        reads = self._wanted.pop(loop)
        try:
            self._threads.submit(self._work, reads)
        except RuntimeError as error:  # closed meanwhile
            for read in reads:
                read.failed(error)
                read.answer_task()

    def _work(self, reads: deque[Waiting]) -> None:
        done: list[Waiting] = []
        try:
            with self._transaction() as session:
                self._read(session, reads, done)
        except BaseException as error:
            if not done:
                done.append(reads.popleft())
            done[-1].failed(error)
        if reads:
            self._work_elsewhere(reads)
        answer_all(done)

    def _read(self, session: Session, reads: deque[Waiting], done: list[Waiting]) -> None:
        ends, seen = time.monotonic() + _LONGEST_TOGETHER_S, dict[Hashable, Any]()
        while reads and (not done or time.monotonic() < ends):
            read = reads.popleft()
            if not read.answer.cancelled():
                done.append(read)
                session.run(read, seen=seen)

    def _work_elsewhere(self, reads: deque[Waiting]) -> None:
        try:
            self._threads.submit(self._work, reads)
        except RuntimeError:  # it is being closed, and waits for this thread
            self._work(reads)
