"""A source that keeps what was asked for lately, because who lists a message mostly fetches it next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from postroom.gmail.sim.model import MailSource, MailSummary

SUMMARIES = 100_000
RAW_BYTES = 64 * 1024 * 1024


class RememberingSource:
    """Another source's mailbox, with the latest summaries and raw messages held up to a limit."""

    def __init__(self, source: MailSource, *, summaries: int = SUMMARIES, raw_bytes: int = RAW_BYTES) -> None:
        self._source = source
        self._summary = lru_cache(maxsize=summaries)(source.summary)
        self._raws: OrderedDict[int, bytes] = OrderedDict()
        self._room = raw_bytes

    @property
    def email(self) -> str:
        return self._source.email

    def count(self) -> int:
        return self._source.count()

    def thread_count(self) -> int:
        return self._source.thread_count()

    def summary(self, index: int) -> MailSummary:
        return self._summary(index)

    def internal_date(self, index: int) -> int:
        return self._source.internal_date(index)

    def raw(self, index: int) -> bytes:
        known = self._raws.get(index)
        if known is not None:
            self._raws.move_to_end(index)
            return known
        raw = self._source.raw(index)
        self._raws[index] = raw
        self._room -= len(raw)
        while self._room < 0:
            self._room += len(self._raws.popitem(last=False)[1])
        return raw

    def index_of(self, message_id: str) -> int | None:
        return self._source.index_of(message_id)

    def thread(self, thread_id: str) -> Sequence[int]:
        return self._source.thread(thread_id)

    def user_labels(self) -> Mapping[str, str]:
        return self._source.user_labels()
