"""Messages parsed and packed on the other cores, while this process reads and writes.

The first messages are prepared here: a small import is over before another process would have started.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from hashlib import sha256
from multiprocessing.connection import wait
from typing import NamedTuple

from postroom.archive.importing.interpreting import delivery_date
from postroom.archive.importing.model import FoundMail, Interpretation
from postroom.archive.model import IncomingMail
from postroom.archive.packing import pack
from postroom.archive.preparing import UNDATED, PreparedMail, Texts, prepare
from postroom.domain.errors import Retryable

PREPARED_HERE = 1_000
_MOST_PROCESSES = 4  # more than one reader and its writers can keep busy


class Prepared(NamedTuple):
    mail: PreparedMail
    failure: str | None  # why nothing but its bytes could be kept


class Preparation:
    def __init__(self, interpret: Interpretation, processes: int | None = None) -> None:
        self._interpret = interpret
        self.processes = processes or min(_MOST_PROCESSES, os.cpu_count() or 1)
        self._pool: ProcessPoolExecutor | None = None
        self._started = 0

    def start(self, batch: Sequence[FoundMail]) -> Future[list[Prepared]]:
        self._started += len(batch)
        if self._started <= PREPARED_HERE:
            done: Future[list[Prepared]] = Future()
            done.set_result(prepare_all(self._interpret, batch))
            return done
        self._pool = self._pool or ProcessPoolExecutor(
            self.processes, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
        )
        # A process inherits what is blocked when it starts: Ctrl-C is for this process alone, which then ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(prepare_all, self._interpret, batch)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def result_of(future: Future[list[Prepared]]) -> list[Prepared]:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise Retryable("A process that parses mail has died; run the same command again to go on.") from error


def prepare_all(interpret: Interpretation, batch: Sequence[FoundMail]) -> list[Prepared]:
    return [_prepare(interpret, found) for found in batch]


def _prepare(interpret: Interpretation, found: FoundMail) -> Prepared:
    incoming = interpret(found)
    try:
        mail = prepare(incoming)
        if mail.date == UNDATED and (delivered := delivery_date(found)):
            mail = replace(mail, date=delivered)
        return Prepared(mail, None)
    except Exception as error:  # whatever a message does to the parser, its bytes are kept
        problem = f"could not be parsed ({type(error).__name__})"
        return Prepared(_unparsed(incoming, problem), problem)


def _unparsed(mail: IncomingMail, problem: str) -> PreparedMail:
    digest = sha256(mail.raw)
    name = f"sha256:{digest.hexdigest()}"
    return PreparedMail(
        mail=mail,
        key=mail.gmail_id or f"i{digest.hexdigest()[:15]}",
        message_id=name,
        thread_id=mail.thread_id or f"t{sha256(name.encode()).hexdigest()[:15]}",
        date=mail.received or UNDATED,
        sha256=digest.digest(),
        packed=pack(mail.raw),
        cuts=[],
        sender="",
        subject="",
        texts=Texts("", "", "", "", "", "", ""),
        recipients=[],
        attachments=[],
        problems=(problem,),
    )


def _end_with_parent() -> None:
    """A pool's process would wait for work for ever if its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
