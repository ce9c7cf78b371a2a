"""The stand-in as a process of its own, with any number of tiny messages that are computed when asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import uvloop

from benchmarks.gmail_server import announce
from postroom.sim.gmail.server import run_until_stopped
from postroom.sim.gmail.sources import MailSummary

_FIRST_ID = 0x1900_0000_0000_0000
_START_S = 1_200_000_000
_APART_S = 300


class TinyMail:
    """A `MailSource`: a letter every five minutes from 2008 on, a few words each."""

    email = "owner@example.com"

    def __init__(self, count: int) -> None:
        self._count = count

    def count(self) -> int:
        return self._count

    def thread_count(self) -> int:
        return self._count

    def summary(self, index: int) -> MailSummary:
        message_id = f"{_FIRST_ID + index:016x}"
        return MailSummary(
            id=message_id,
            thread_id=message_id,
            label_ids=frozenset({"INBOX"}),
            internal_date=self.internal_date(index),
            sender="Ann <ann@friends.example>",
            to=self.email,
            cc="",
            subject=f"Letter {index}",
            message_id=f"<{index}@bench.example>",
            list_id="",
            has_attachment=False,
            size=200,
        )

    def internal_date(self, index: int) -> int:
        return (_START_S + index * _APART_S) * 1_000

    def raw(self, index: int) -> bytes:
        head = f"From: Ann <ann@friends.example>\r\nTo: {self.email}\r\nSubject: Letter {index}\r\n"
        return f"{head}Message-ID: <{index}@bench.example>\r\n\r\nHello, number {index}.\r\n".encode()

    def index_of(self, message_id: str) -> int | None:
        try:
            index = int(message_id, 16) - _FIRST_ID
        except ValueError:
            return None
        return index if 0 <= index < self._count else None

    def thread(self, thread_id: str) -> Sequence[int]:
        index = self.index_of(thread_id)
        return () if index is None else (index,)

    def user_labels(self) -> Mapping[str, str]:
        return {}


if __name__ == "__main__":
    uvloop.run(run_until_stopped(TinyMail(int(sys.argv[1])), quota="none", port=0, announce=announce))
