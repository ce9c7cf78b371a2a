"""A mailbox of any size whose messages are computed when asked for, and which counts how many were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from postroom.gmail.sim.model import MailSummary
from tests.support.sim_mail import OWNER, START_MS

MINUTE_MS = 60_000
_FIRST_ID = 0x1800_0000_0000_0000


class EndlessSource:
    """One message a minute, each its own thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.raws_written = 0
        self.summaries_made = 0

    @property
    def email(self) -> str:
        return OWNER

    def count(self) -> int:
        return self._count

    def thread_count(self) -> int:
        return self._count

    def internal_date(self, index: int) -> int:
        return START_MS + index * MINUTE_MS

    def summary(self, index: int) -> MailSummary:
        self.summaries_made += 1
        message_id = f"{_FIRST_ID + index:016x}"
        return MailSummary(
            id=message_id,
            thread_id=message_id,
            label_ids=frozenset({"INBOX"}),
            internal_date=self.internal_date(index),
            sender="Ann <ann@friends.example>",
            to=OWNER,
            cc="",
            subject=f"Letter number{index}",
            message_id=f"<{index}@x.example>",
            list_id="",
            has_attachment=False,
            size=100,
        )

    def raw(self, index: int) -> bytes:
        self.raws_written += 1
        return (
            f"From: Ann <ann@friends.example>\r\nTo: {OWNER}\r\nSubject: Letter number{index}\r\n"
            f"Message-ID: <{index}@x.example>\r\n\r\nThe word is body{index}.\r\n"
        ).encode()

    def index_of(self, message_id: str) -> int | None:
        index = int(message_id, 16) - _FIRST_ID
        return index if 0 <= index < self._count else None

    def thread(self, thread_id: str) -> Sequence[int]:
        index = self.index_of(thread_id)
        return () if index is None else (index,)

    def user_labels(self) -> Mapping[str, str]:
        return {}
