"""Has foreign bytes read by confined child processes; one that takes too long is killed, one that fails is replaced.

Blocking and safe to call from several threads; `run_async` is the same for coroutines. A child that failed in any way
is never asked again, and what a used child could not read is given to a fresh one before it is called unreadable.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from postroom.domain.errors import PostroomError
from postroom.reading.process import ChildBroken, ChildLate, ChildProcess
from postroom.telemetry import logs

log = logs.get(__name__)

CHILD = (sys.executable, "-I", "-m", "postroom.reading.child")
_START_S = 60.0


class Failure(StrEnum):
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"
    ERROR = "error"
    START = "start"


class ReadingFailed(PostroomError):
    """Something could not be read within its limits."""

    def __init__(self, kind: Failure, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """What one reading may cost."""

    cpu_seconds: float = 20.0
    wall_seconds: float = 60.0
    """Longer than the limit of processor time, because on a busy machine that takes longer."""
    memory_bytes: int = 1024 * 1024 * 1024
    """Beyond what the child uses before it reads anything."""
    answer_bytes: int = 64 * 1024 * 1024
    requests: int = 500
    """After so many a child is replaced: libraries leak. Counts for the reader, not for one request."""


class LimitedReader:
    def __init__(
        self,
        limits: ReadingLimits = ReadingLimits(),  # noqa: B008 - holds nothing
        size: int = 1,
        program: tuple[str, ...] = CHILD,
    ) -> None:
        """At most `size` children at once, each started when it is needed. They end with this process."""
        self._limits = limits
        self._size = size
        self._program = program
        self._modules: set[str] = set()
        self._confinement: Mapping[str, str] | None = None
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy = 0
        self._closed = False
        self._children: set[ChildProcess] = set()
        # A child dies with the thread that started it, so one thread starts them all and lives as long as the reader.
        self._starter = ThreadPoolExecutor(1, "reading-starter")
        self._finalizer = weakref.finalize(self, _end_all, self._children, self._starter)

    @property
    def confinement(self) -> Mapping[str, str] | None:
        """What the last child gave up, by name: empty where it is in force, else why not. None before the first."""
        return self._confinement

    def run(
        self, task: str, header: Mapping[str, Any], body: bytes = b"", limits: ReadingLimits | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """What the task (`module:function`) answers. Raises ReadingFailed."""
        return self._run(_Call(), task, header, body, limits or self._limits)

    async def run_async(
        self, task: str, header: Mapping[str, Any], body: bytes = b"", limits: ReadingLimits | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """The same without holding up the loop; a cancelled call kills its child, so its thread ends at once."""
        call = _Call()
        try:
            return await asyncio.to_thread(self._run, call, task, header, body, limits or self._limits)
        finally:
            with self._changed:
                call.abandon()
                self._changed.notify_all()

    def close(self) -> None:
        """Ends all children now, busy ones too; their callers get ReadingFailed."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for worker in idle:
            self._discard(worker.child)
        for child in list(self._children):
            child.kill()  # the thread that talks to it clears up after it
        self._starter.shutdown(wait=False, cancel_futures=True)

    def _run(
        self, call: _Call, task: str, header: Mapping[str, Any], body: bytes, limits: ReadingLimits
    ) -> tuple[dict[str, Any], bytes]:
        costs = {"cpu_seconds": limits.cpu_seconds, "memory_bytes": limits.memory_bytes}
        request = json.dumps({"task": task, "header": dict(header), **costs}).encode()
        self._wait_for_turn(call)
        try:
            while True:
                worker = self._worker(call, task.partition(":")[0], limits)
                try:
                    answer = self._ask(worker.child, request, body, limits)
                except ReadingFailed as error:
                    innocent = worker.answered > 0 and error.kind in (Failure.CRASH, Failure.MEMORY)
                    if call.abandoned or self._closed or not innocent:
                        raise
                else:
                    self._give_back(call, worker)
                    return answer
        finally:
            call.child = None
            with self._changed:
                self._busy -= 1
                self._changed.notify()

    def _wait_for_turn(self, call: _Call) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._busy < self._size or self._closed or call.abandoned)
            self._check_open(call)
            self._busy += 1

    def _check_open(self, call: _Call) -> None:
        if self._closed or call.abandoned:
            raise ReadingFailed(Failure.START, "the reader is being closed")

    def _worker(self, call: _Call, module: str, limits: ReadingLimits) -> _Worker:
        with self._changed:
            self._check_open(call)  # a caller who gives up after this kills the child that he sees
            self._modules.add(module)
            worker = self._idle.pop() if self._idle else None
            if worker is not None and worker.suits(module, limits) and worker.answered < self._limits.requests:
                call.child = worker.child
                return worker
        if worker is not None:
            self._discard(worker.child)
        return self._start(call, max(limits.memory_bytes, self._limits.memory_bytes))

    def _start(self, call: _Call, memory_bytes: int) -> _Worker:
        modules = frozenset(self._modules)
        command = [*self._program, str(memory_bytes), *sorted(modules)]
        try:
            child = self._starter.submit(ChildProcess, command).result()
        except (OSError, RuntimeError) as error:
            raise ReadingFailed(Failure.START, f"the process that reads files cannot be started: {error}") from error
        with self._changed:
            self._children.add(child)
            call.child = child
        try:
            self._check_open(call)
            ready, _ = child.receive(_START_S, 1_000_000)
        except ChildBroken as error:
            child.end()
            failed = ReadingFailed(Failure.START, _why_not_started(child, error))
            self._discard(child)
            raise failed from error
        except BaseException:
            self._discard(child)
            raise
        self._note(ready.get("confinement", {}))
        return _Worker(child, modules, memory_bytes)

    def _note(self, confinement: Mapping[str, str]) -> None:
        if confinement == self._confinement:
            return
        self._confinement = confinement
        missing = {name: why for name, why in confinement.items() if why}
        log.info("reading.child_confined", in_force=sorted(set(confinement) - set(missing)), missing=missing)

    def _ask(
        self, child: ChildProcess, request: bytes, body: bytes, limits: ReadingLimits
    ) -> tuple[dict[str, Any], bytes]:
        """Ask a child. One that fails in any way is ended and not asked again."""
        try:
            answer, data = child.ask(request, body, limits.wall_seconds, limits.answer_bytes)
            if "failed" in answer:
                raise ReadingFailed(Failure(str(answer["failed"])), str(answer.get("reason"))[:300])
            if not isinstance(answer.get("header"), dict):
                raise ChildBroken("the answer makes no sense")
        except ChildBroken as error:
            child.end()
            failed = _failure(child, error, limits)
            self._discard(child)
            raise failed from error
        except BaseException:
            self._discard(child)
            raise
        child.log_complaints()
        return answer["header"], data

    def _give_back(self, call: _Call, worker: _Worker) -> None:
        with self._changed:
            call.child = None
            worker.answered += 1
            if not self._closed:
                self._idle.append(worker)
                return
        self._discard(worker.child)

    def _discard(self, child: ChildProcess) -> None:
        child.end()
        child.log_complaints()
        with self._changed:
            self._children.discard(child)


_shared: dict[str, LimitedReader] = {}
_sharing = threading.Lock()
_holders = 0


def shared_reader(purpose: str = "mail") -> LimitedReader:
    """The reader that all of this process uses for a purpose, so that hostile web sites do not hold up mail."""
    with _sharing:
        if purpose not in _shared:
            _shared[purpose] = LimitedReader(size=2)
        return _shared[purpose]


def close_shared_reader(purpose: str) -> None:
    """Ends the children of one shared reader now; a later call of `shared_reader` makes another."""
    with _sharing:
        reader = _shared.pop(purpose, None)
    if reader is not None:
        reader.close()


def close_shared_readers() -> None:
    """Ends the children of all shared readers now; a later call of `shared_reader` makes another."""
    with _sharing:
        readers = list(_shared.values())
        _shared.clear()
    for reader in readers:
        reader.close()


@contextmanager
def shared_readers() -> Iterator[None]:
    """While the block runs, or another such block does, shared readers stay open; after the last they are closed."""
    global _holders
    with _sharing:
        _holders += 1
    try:
        yield
    finally:
        with _sharing:
            _holders -= 1
            is_last = _holders == 0
        if is_last:
            close_shared_readers()


def confinement_here() -> Mapping[str, str]:
    """What a child gives up on this system, by name: empty where it is in force, else why not. Starts one to see."""
    reader = LimitedReader()
    try:
        reader.run("postroom.reading.child:nothing", {})
        return reader.confinement or {}
    finally:
        reader.close()


@dataclass(eq=False, slots=True)
class _Worker:
    child: ChildProcess
    modules: frozenset[str]
    memory_bytes: int
    answered: int = 0

    def suits(self, module: str, limits: ReadingLimits) -> bool:
        return module in self.modules and limits.memory_bytes <= self.memory_bytes and self.child.is_alive()


class _Call:
    """One call, which its caller may give up."""

    def __init__(self) -> None:
        self.child: ChildProcess | None = None
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True
        if (child := self.child) is not None:
            child.kill()


def _end_all(children: set[ChildProcess], starter: ThreadPoolExecutor) -> None:
    for child in list(children):
        child.end()
    starter.shutdown(wait=False, cancel_futures=True)


def _failure(child: ChildProcess, error: ChildBroken, limits: ReadingLimits) -> ReadingFailed:
    if isinstance(error, ChildLate):
        return ReadingFailed(Failure.TIMEOUT, f"it takes longer than {limits.wall_seconds:g} s to read")
    if child.exit_code in (-signal.SIGPROF, -signal.SIGXCPU):
        return ReadingFailed(Failure.TIMEOUT, f"it takes more than {limits.cpu_seconds:g} s of processor time to read")
    if "MemoryError" in child.complaints():
        return ReadingFailed(Failure.MEMORY, "it needs more memory than one reading may use")
    return ReadingFailed(Failure.CRASH, f"the process that reads it broke: {error} ({_exit(child)})")


def _why_not_started(child: ChildProcess, error: ChildBroken) -> str:
    said = child.complaints()
    return f"the process that reads files does not start ({_exit(child)}): {said[-1] if said else error}"


def _exit(child: ChildProcess) -> str:
    code = child.exit_code
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"ended by signal {-code}"
