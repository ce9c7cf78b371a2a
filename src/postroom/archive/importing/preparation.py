"""Messages parsed and packed on the other cores, while this process reads and writes.

A small import or walk is prepared here: it is over before another process would have started.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import Any, NamedTuple

from postroom.archive.importing.interpreting import delivery_date, plain
from postroom.archive.importing.state import FoundMessage, Interpretation
from postroom.archive.messages import IncomingMail
from postroom.archive.preparing import UNDATED, Packed, PreparedMail, Texts, prepare
from postroom.domain.errors import Retryable

PREPARED_HERE = 1_000
_MOST_PROCESSES = 3  # more than one reader and its writers can keep busy

# Between processes plain tuples travel, without the raw bytes, which are here already: half the cost of the objects.
_INCOMING = attrgetter(*[field.name for field in fields(IncomingMail) if field.name != "raw"])
_PACKED, _TEXTS, _INDEXED = (PreparedMail._fields.index(name) - 1 for name in ("packed", "texts", "indexed"))
Sent = tuple[Any, Any, str | None]


class PreparedEntry(NamedTuple):
    mail: PreparedMail
    failure: str | None  # why nothing but its bytes could be kept


PendingBatch = Callable[[], list[PreparedEntry]]
"""Call it to have the batch; waits if it is not ready."""


class Preparation:
    def __init__(self, interpret: Interpretation, processes: int | None = None) -> None:
        self._interpret = interpret
        self.processes = processes or min(_MOST_PROCESSES, os.cpu_count() or 1)
        self._started = 0
        self._workers: list[PreparingProcess] = []
        self._idle: queue.SimpleQueue[PreparingProcess] = queue.SimpleQueue()
        # One more than there are processes: the next batch is packed, and the last answer unpacked, while all are busy.
        self._threads = ThreadPoolExecutor(self.processes + 1, "preparing")

    def start(self, batch: Sequence[FoundMessage]) -> PendingBatch:
        self._started += len(batch)
        if self._started <= PREPARED_HERE:
            return lambda: prepare_all(self._interpret, batch)
        while len(self._workers) < self.processes:
            self._workers.append(PreparingProcess())
            self._idle.put(self._workers[-1])
        return self._threads.submit(self._prepare_elsewhere, batch).result

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def _prepare_elsewhere(self, batch: Sequence[FoundMessage]) -> list[PreparedEntry]:
        request = ForkingPickler.dumps((partial(prepare_to_send, self._interpret), batch))
        worker = self._idle.get()
        try:
            answer = worker.exchange(request)
        finally:
            self._idle.put(worker)
        return [
            PreparedEntry(_received(found, incoming, row), failure)
            for found, (incoming, row, failure) in zip(batch, ForkingPickler.loads(answer), strict=True)
        ]


def prepare_all(interpret: Interpretation, batch: Sequence[FoundMessage]) -> list[PreparedEntry]:
    return [_prepare(interpret, found) for found in batch]


def prepare_to_send(interpret: Interpretation, batch: Sequence[FoundMessage]) -> list[Sent]:
    return [(_INCOMING(mail.mail), _sent(mail), failure) for mail, failure in prepare_all(interpret, batch)]


def _sent(mail: PreparedMail) -> list[Any]:
    row: list[Any] = list(mail[1:])
    row[_PACKED], row[_TEXTS] = tuple(mail.packed), tuple(mail.texts)
    row[_INDEXED] = mail.indexed and tuple(mail.indexed)
    return row


def _received(found: FoundMessage, incoming: tuple[Any, ...], row: list[Any]) -> PreparedMail:
    return _made_of(IncomingMail(found.raw, *incoming), row)


def _made_of(mail: IncomingMail, row: list[Any]) -> PreparedMail:
    row[_PACKED], row[_TEXTS] = Packed._make(row[_PACKED]), Texts._make(row[_TEXTS])
    row[_INDEXED] = row[_INDEXED] and Texts._make(row[_INDEXED])
    return PreparedMail(mail, *row)


class WalkPreparation:
    """Prepares the mail of a walk: of a large one in a process of its own, as soon as that has started."""

    def __init__(self) -> None:
        self._count = 0
        self._process: PreparingProcess | None = None
        self._lock = threading.Lock()

    def expect(self, messages: int) -> None:
        """About so many are to come: where they are enough for another process, it starts while they are listed."""
        with self._lock, contextlib.suppress(OSError):  # no more processes or memory: they are prepared here
            if self._process is None and messages > PREPARED_HERE and (os.cpu_count() or 1) > 1:
                self._process = PreparingProcess()

    def prepare(self, mails: Sequence[IncomingMail]) -> list[PreparedMail]:
        """Blocks. Where no other process is ready, or it has died, they are prepared here."""
        self._count += len(mails)
        self.expect(self._count)
        rows = self._elsewhere(mails) if self._process is not None else None
        if rows is None:
            return [prepare(mail) for mail in mails]
        return [_made_of(mail, row) for mail, row in zip(mails, rows, strict=True)]

    def _elsewhere(self, mails: Sequence[IncomingMail]) -> list[list[Any]] | None:
        sent = [(mail.raw, *_INCOMING(mail)) for mail in mails]
        with self._lock:
            try:
                if self._process is None or not self._process.is_ready():
                    return None
                rows: list[list[Any]] = self._process.ask(_prepare_rows, sent)
            except Retryable:
                self._end()
                return None
            return rows

    def end(self) -> None:
        """The walk is over, for now. Blocks until the process has ended."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._count = 0
        if self._process is not None:
            self._process.close()
            self._process = None


def _prepare_rows(mails: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [_sent(prepare(IncomingMail(*mail))) for mail in mails]


def _prepare(interpret: Interpretation, found: FoundMessage) -> PreparedEntry:
    try:
        incoming, problem = interpret(found), None
    except Exception as error:  # whatever its headers do, its bytes are kept
        incoming, problem = plain(found), f"could not be parsed ({type(error).__name__})"
    mail = prepare(incoming)
    if mail.date == UNDATED and (delivered := delivery_date(found)):
        mail = mail._replace(date=delivered)
    failure = problem or mail.trouble
    return PreparedEntry(mail._replace(trouble=failure) if failure else mail, failure)


class PreparingProcess:
    """A process that prepares batches of mail, at the other end of a socket. One thread at a time asks.

    It ends with its socket: a parent that is killed leaves no process behind.
    """

    def __init__(self) -> None:
        near, far = socket.socketpair()
        command = [sys.executable, "-m", "postroom.archive.importing.preparation", str(far.fileno())]
        # What is blocked now stays so in the child: Ctrl-C is for this process alone, which then ends the other.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(command, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL)  # noqa: S603
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            far.close()
        self._connection = Connection(near.detach())
        self._has_started = False

    def is_ready(self) -> bool:
        """Whether it has started, which takes as long as preparing some thousand messages."""
        try:
            if not self._has_started and self._connection.poll():
                self._await_start()
        except (EOFError, OSError) as error:
            raise _died() from error
        return self._has_started

    def _await_start(self) -> None:
        self._connection.recv_bytes()
        self._has_started = True

    def ask(self, work: Callable[[Any], Any], batch: Any) -> Any:
        """What `work`, which is called there, makes of the batch."""
        return ForkingPickler.loads(self.exchange(ForkingPickler.dumps((work, batch))))

    def exchange(self, request: Any) -> bytes:
        """The same, of what is packed already, and packed."""
        try:
            if not self._has_started:
                self._await_start()
            self._connection.send_bytes(request)
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise _died() from error

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def _died() -> Retryable:
    return Retryable("A process that parses mail has died; run the same command again to go on.")


def serve(handle: int) -> None:
    connection = Connection(handle)
    gc.freeze()
    gc.set_threshold(100_000)  # a batch makes many objects, and hardly a cycle
    try:
        connection.send_bytes(b"started")
        while True:
            work, batch = connection.recv()
            connection.send(work(batch))
    except (EOFError, ConnectionError):
        return  # the parent has no more, or is no more


if __name__ == "__main__":
    serve(int(sys.argv[1]))
