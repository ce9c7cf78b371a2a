"""One child process and the pipes to it: bytes both ways before a deadline, and what it complains of for the log.

Not for several threads at once, except `kill`.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any

from postroom.reading.child import SIZES
from postroom.telemetry import logs

log = logs.get(__name__)

LARGEST_HEADER = 16 * 1024 * 1024
_PIECE = 1 << 18
_LOOK_UP_S = 0.5
"""How often a waiting thread looks whether its own process is about to end."""
_MOST_COMPLAINTS = 64 * 1024
_MOST_LINES = 20
_LONGEST_LINE = 300
_OF_A_CRASH = re.compile(r'Fatal Python error: [\w ]+|Current thread .*|\s*File "[^"]*", line \d+ in .*|MemoryError')
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


class ChildBroken(Exception):
    """The child does not answer, or not in a way that makes sense."""


class ChildLate(ChildBroken):
    pass


class ChildProcess:
    """Started with its first instance; ends with the thread that made it, and with its standard input."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", bufsize=0, start_new_session=True
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (stream.fileno() for stream in streams if stream is not None)
        for pipe_end in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe_end, False)
        self._received = bytearray()
        self._complaints = bytearray()
        self._has_read = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess`: negative for the signal that ended it."""
        return self._process.returncode

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, header: bytes, body: bytes, seconds: float, largest: int) -> tuple[dict[str, Any], bytes]:
        self._has_read = True
        deadline = time.monotonic() + seconds
        for part in (SIZES.pack(len(header), len(body)) + header, body):
            self._write(part, deadline)
        return self._answer(deadline, largest)

    def receive(self, seconds: float, largest: int) -> tuple[dict[str, Any], bytes]:
        """The message that it sends unasked, to say that it is ready."""
        return self._answer(time.monotonic() + seconds, largest)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            self._process.kill()

    def end(self) -> None:
        """Kills it and waits until it is gone; afterwards its exit code is known."""
        if self._process.returncode is None:
            self.kill()
            self._process.wait()
        if self._stderr >= 0:
            while self._read_complaints():
                pass
            self._stderr = -1
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def complaints(self) -> list[str]:
        """The last lines on its standard error. Once it has read something, only those that cannot quote it."""
        text = self._complaints.decode("ascii", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        if self._has_read:
            lines = [line for line in lines if _OF_A_CRASH.fullmatch(line)]
        return [logs.clean(_UNPRINTABLE.sub(" ", line).rstrip())[:_LONGEST_LINE] for line in lines[-_MOST_LINES:]]

    def log_complaints(self) -> None:
        if self._complaints:
            size, lines = len(self._complaints), self.complaints()
            self._complaints.clear()
            log.warning("reading.child_stderr", pid=self.pid, bytes=size, lines=lines)

    def _write(self, data: bytes, deadline: float) -> None:
        """Write without raising if the child reads no further: it may have answered already."""
        rest = memoryview(data)
        while rest:
            ready = self._wait(deadline, writing=True)
            if self._stdin not in ready:
                continue
            try:
                rest = rest[os.write(self._stdin, rest[:_PIECE]) :]
            except BlockingIOError:
                continue
            except (BrokenPipeError, ConnectionError):
                return

    def _answer(self, deadline: float, largest: int) -> tuple[dict[str, Any], bytes]:
        self._read_until(SIZES.size, deadline)
        header_size, body_size = SIZES.unpack(self._received[: SIZES.size])
        if header_size > LARGEST_HEADER or header_size + body_size > largest:
            raise ChildBroken("the answer is too large")
        self._read_until(SIZES.size + header_size + body_size, deadline)
        received, self._received = self._received, bytearray()
        try:
            header = json.loads(received[SIZES.size : SIZES.size + header_size])
        except (ValueError, RecursionError) as error:
            raise ChildBroken("the answer makes no sense") from error
        if not isinstance(header, dict):
            raise ChildBroken("the answer makes no sense")
        return header, bytes(memoryview(received)[SIZES.size + header_size :])

    def _read_until(self, size: int, deadline: float) -> None:
        while len(self._received) < size:
            if self._stdout not in self._wait(deadline):
                continue
            try:
                piece = os.read(self._stdout, _PIECE)
            except BlockingIOError:
                continue
            if not piece:
                raise ChildBroken("it ends without an answer")
            self._received += piece
            if len(self._received) > size > SIZES.size:
                raise ChildBroken("the answer is longer than it says")

    def _wait(self, deadline: float, *, writing: bool = False) -> set[int]:
        """The pipes that are ready, after those of complaints have been emptied."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise ChildLate("it takes too long")
        if not threading.main_thread().is_alive():
            raise ChildBroken("Postroom is ending")
        poll = select.poll()
        if self._stderr >= 0:
            poll.register(self._stderr, select.POLLIN)
        if writing:
            poll.register(self._stdin, select.POLLOUT)
        else:
            poll.register(self._stdout, select.POLLIN)
        ready = {pipe_end for pipe_end, _ in poll.poll(1000 * min(left, _LOOK_UP_S))}
        if self._stderr in ready and not self._read_complaints():
            self._stderr = -1
        return ready

    def _read_complaints(self) -> bool:
        """Whether more may come. Only the end is kept."""
        try:
            piece = os.read(self._stderr, _PIECE)
        except BlockingIOError:
            return False
        self._complaints += piece
        del self._complaints[:-_MOST_COMPLAINTS]
        return bool(piece)
