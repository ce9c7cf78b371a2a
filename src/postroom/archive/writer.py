"""One writer for each shard, on a thread of its own, with a bounded queue before it.

A full queue makes whoever brings mail wait: that is the back-pressure that keeps memory flat. What is waiting is put
into transactions of up to 100 messages or 16 MB, and nobody is told "stored" before the commit is on disk.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from postroom.archive.insertion import Insertion
from postroom.archive.layout import ShardName
from postroom.archive.model import Stored
from postroom.archive.preparing import PreparedMail
from postroom.archive.shard import open_for_writing, storage_error

MESSAGES_PER_COMMIT = 100
BYTES_PER_COMMIT = 16 << 20
_BATCHES_WAITING = 4
_IDLE_AFTER_S = 1.0

T = TypeVar("T")
Change = Callable[[sqlite3.Connection, Insertion], T]


class ShardWriter:
    def __init__(self, path: Path, name: ShardName) -> None:
        self.name = name
        self.path = path
        self._connection = open_for_writing(path, name)
        self._insertion = Insertion(self._connection, str(name))
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_BATCHES_WAITING)
        self._thread = threading.Thread(target=self._serve, name=f"shard {name}", daemon=True)
        self._thread.start()

    def store(self, mails: Sequence[PreparedMail]) -> Future[list[Stored]]:
        """Store these in one transaction (see `portions`); blocks while the queue is full."""
        return self.change(lambda connection, insertion: [insertion.put(mail) for mail in mails])

    def change(self, change: Change[T]) -> Future[T]:
        """Run a change in a transaction of its own; blocks while the queue is full."""
        future: Future[T] = Future()
        self._waiting.put(lambda: self._settle(future, lambda: self._in_transaction(change)))
        return future

    def checkpoint(self) -> None:
        """Move everything from the log into the shard itself, and sync it."""
        future: Future[object] = Future()
        pragma = "PRAGMA wal_checkpoint(TRUNCATE)"
        self._waiting.put(lambda: self._settle(future, lambda: self._connection.execute(pragma).fetchone()))
        future.result()

    def close(self) -> None:
        """Finish what is waiting, then close the file."""
        self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            task()
        self._connection.close()

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._waiting.get(timeout=_IDLE_AFTER_S)
        except queue.Empty:
            self._connection.execute("PRAGMA shrink_memory")  # an import goes on in other years, and has their caches
            return self._waiting.get()

    def _settle(self, future: Future[T], work: Callable[[], T]) -> None:
        """Whoever asked gets the result or the error; the writer itself goes on with the next."""
        try:
            future.set_result(work())
        except sqlite3.Error as error:
            future.set_exception(storage_error(error, str(self.path)))
        except Exception as error:
            future.set_exception(error)

    def _in_transaction(self, change: Change[T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            value = change(self._connection, self._insertion)
            self._connection.execute("COMMIT")
        except BaseException:
            self._insertion.forget()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return value


def portions(mails: Sequence[PreparedMail]) -> list[list[PreparedMail]]:
    """Cut into transactions: at most so many messages, and no more bytes unless one message alone has them."""
    cut: list[list[PreparedMail]] = []
    weight = 0
    for mail in mails:
        if not cut or len(cut[-1]) >= MESSAGES_PER_COMMIT or weight + mail.weight > BYTES_PER_COMMIT:
            cut.append([])
            weight = 0
        cut[-1].append(mail)
        weight += mail.weight
    return cut
