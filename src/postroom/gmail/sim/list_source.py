"""A mailbox given message by message: for tests, demonstrations and small fixed scenes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.summaries import summarise


@dataclass(frozen=True)
class ListedMail:
    """A message of a `ListSource`. Its id follows from its place by date; by default it is a thread of its own."""

    raw: bytes
    internal_date: int
    label_ids: frozenset[str] = frozenset({"INBOX"})
    thread_id: str | None = None
    category: str = ""


class ListSource:
    def __init__(
        self,
        mails: Iterable[ListedMail] = (),
        *,
        email: str = "owner@example.com",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._email = email
        self._labels = dict(labels or {})
        ordered = sorted(mails, key=lambda mail: mail.internal_date)
        self._raws = [mail.raw for mail in ordered]
        self._summaries = [_summary(number, mail) for number, mail in enumerate(ordered)]
        self._index = {summary.id: index for index, summary in enumerate(self._summaries)}
        self._threads: defaultdict[str, list[int]] = defaultdict(list)
        for index, summary in enumerate(self._summaries):
            self._threads[summary.thread_id].append(index)

    @property
    def email(self) -> str:
        return self._email

    def count(self) -> int:
        return len(self._raws)

    def thread_count(self) -> int:
        return len(self._threads)

    def summary(self, index: int) -> MailSummary:
        return self._summaries[index]

    def internal_date(self, index: int) -> int:
        return self._summaries[index].internal_date

    def raw(self, index: int) -> bytes:
        return self._raws[index]

    def index_of(self, message_id: str) -> int | None:
        return self._index.get(message_id)

    def thread(self, thread_id: str) -> Sequence[int]:
        return self._threads.get(thread_id, ())

    def user_labels(self) -> Mapping[str, str]:
        return self._labels


def _summary(number: int, mail: ListedMail) -> MailSummary:
    message_id = f"{0x1900_0000_0000_0000 + number * 0x11_0001:016x}"
    return summarise(
        mail.raw,
        message_id=message_id,
        thread_id=mail.thread_id or message_id,
        label_ids=mail.label_ids,
        internal_date=mail.internal_date,
        category=mail.category,
    )
