"""A process that prepares batches of mail, at the other end of a socket.

It loads only what preparing needs, so it starts quickly, and it ends with its socket: a parent that is killed leaves
no process behind.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from postroom.archive.importing.state import FoundMessage, Interpretation
from postroom.domain.errors import Retryable


class PreparingProcess:
    """The near end. One thread at a time asks."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        command = [sys.executable, "-m", "postroom.archive.importing.process", str(far.fileno())]
        # What is blocked now stays so in the child: Ctrl-C is for this process alone, which then ends the other.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(command, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL)  # noqa: S603
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            far.close()
        self._connection = Connection(near.detach())

    def prepare(self, interpret: Interpretation, batch: Sequence[FoundMessage]) -> Any:
        try:
            self._connection.send((interpret, batch))
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise Retryable("A process that parses mail has died; run the same command again to go on.") from error

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def serve(handle: int) -> None:
    from postroom.archive.importing.preparation import prepare_to_send  # which imports this module

    connection = Connection(handle)
    try:
        while True:
            interpret, batch = connection.recv()
            connection.send(prepare_to_send(interpret, batch))
    except (EOFError, ConnectionError):
        return  # the parent has no more, or is no more


if __name__ == "__main__":
    serve(int(sys.argv[1]))
