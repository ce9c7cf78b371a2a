"""An event loop whose time jumps: when nothing can run, the next timer is due at once, so hours pass in milliseconds.

While a thread works for the loop (database, disk), time stands still and no timer notices.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple
from unittest import mock

from postroom.db.database import Tx
from postroom.db.gathering import GatheredReads, GatheredWrites

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_START = datetime(2026, 1, 1, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump
        self.threads_at_work = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads_at_work and timeout != 0:
            return super().select(None)
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set: a wake-up was lost")
        events = super().select(0)
        if not events and timeout > 0:
            self._jump(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._jumping = _JumpingSelector(self._jump)
        super().__init__(self._jumping)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        work = super().run_in_executor(executor, func, *args)
        self._jumping.threads_at_work += 1
        work.add_done_callback(self._thread_is_done)
        return work

    async def shutdown_default_executor(self, *timeout: Any) -> None:  # which Python 3.11 does not have
        with self.thread_at_work():
            await super().shutdown_default_executor(*timeout)

    @contextmanager
    def thread_at_work(self) -> Iterator[None]:
        self._jumping.threads_at_work += 1
        try:
            yield
        finally:
            self._jumping.threads_at_work -= 1

    def _thread_is_done(self, work: asyncio.Future[Any]) -> None:
        self._jumping.threads_at_work -= 1

    def time(self) -> float:
        return self._virtual_now

    def _jump(self, seconds: float) -> None:
        self._virtual_now += seconds


class VirtualClock:
    """The time of the loop that it is made in, also for threads that work for that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> datetime:
        return _START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _counted(run: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The threads of a database take functions without the loop's knowledge."""

    async def counted(threads: object, transaction: Callable[[Tx], Any]) -> T:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return await run(threads, transaction)
        with loop.thread_at_work():
            return await run(threads, transaction)

    return counted


def run(main: Coroutine[Any, Any, T]) -> T:
    with ExitStack() as stack:
        for threads in (GatheredWrites, GatheredReads):
            stack.enter_context(mock.patch.object(threads, "run", _counted(threads.run)))
        return stack.enter_context(asyncio.Runner(loop_factory=VirtualLoop)).run(main)
