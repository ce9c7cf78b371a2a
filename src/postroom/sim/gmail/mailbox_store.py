"""The mailbox as it stands: a fixed source below, and the callers' changes in dictionaries above it.

Also the order of listings (newest first, but only roughly, as the real service promises no order), the log behind
`history.list`, and drafts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from postroom.domain.clock import Clock
from postroom.sim.gmail.api_errors import not_found
from postroom.sim.gmail.raw_mail import headers_of
from postroom.sim.gmail.sim_labels import SimLabels
from postroom.sim.gmail.sources import MailboxSource, MailSummary, summarise

BLOCK = 8
_BUCKET_MS = 600_000
_MASK = (1 << 64) - 1


@dataclass(frozen=True, order=True, slots=True)
class ListPlace:
    """Smaller comes first in a listing."""

    block: int
    bucket: int
    mix: int


def place_of_base(index: int) -> ListPlace:
    return ListPlace(-(index // BLOCK), 0, _mixed(index + 1))


def place_of_arrival(message_id: str, internal_date: int, base_index: int, base_count: int) -> ListPlace:
    """Where a message that is not of the base stands; `base_index` is where its date would put it there."""
    mix = _mixed(int(message_id, 16))
    if base_index < base_count:
        return ListPlace(-(base_index // BLOCK), 0, mix)
    return ListPlace(newest_block(base_count), -(internal_date // _BUCKET_MS), mix)


def newest_block(base_count: int) -> int:
    """The block of mail newer than all of the base."""
    return -(base_count // BLOCK + 1)


def _mixed(value: int) -> int:
    value = (value * 0x9E37_79B9_7F4A_7C15) & _MASK
    return ((value ^ (value >> 31)) * 0xBF58_476D_1CE4_E5B9) & _MASK


FIRST_ID = 10_000_000


class HistoryKind(StrEnum):
    """The kinds of change, by their key in a history record."""

    ADDED = "messagesAdded"
    DELETED = "messagesDeleted"
    LABELS_ADDED = "labelsAdded"
    LABELS_REMOVED = "labelsRemoved"


TYPES = {
    "messageAdded": HistoryKind.ADDED,
    "messageDeleted": HistoryKind.DELETED,
    "labelAdded": HistoryKind.LABELS_ADDED,
}
TYPES |= {"labelRemoved": HistoryKind.LABELS_REMOVED}


@dataclass(frozen=True, slots=True)
class HistoryChange:
    id: int
    kind: HistoryKind
    message_id: str
    thread_id: str
    label_ids: frozenset[str]
    """The labels after the change."""
    changed: tuple[str, ...] = ()
    at_ms: int = 0

    def concerns(self, label_id: str) -> bool:
        return label_id in self.label_ids or label_id in self.changed

    def as_json(self) -> dict[str, object]:
        short = {"id": self.message_id, "threadId": self.thread_id}
        labels = {"labelIds": sorted(self.label_ids)} if self.label_ids else {}
        entry: dict[str, object] = {"message": short | labels}
        if self.changed:
            entry["labelIds"] = list(self.changed)
        return {"id": str(self.id), "messages": [short], str(self.kind): [entry]}


class HistoryLog:
    """Ids grow, with gaps. Nothing is known from before the stand-in started, nor from before the last expiry."""

    def __init__(self, base_count: int) -> None:
        self._changes: list[HistoryChange] = []
        self.current = FIRST_ID + base_count
        self.oldest = self.current

    def record(self, kind: HistoryKind, mail: MailSummary, changed: tuple[str, ...] = (), *, at_ms: int = 0) -> int:
        self.current += 1 + (self.current * 7919) % 13
        change = HistoryChange(self.current, kind, mail.id, mail.thread_id, mail.label_ids, changed, at_ms)
        self._changes.append(change)
        return self.current

    def expire(self) -> None:
        """Forget everything: every id handed out so far, the current one included, is too old from now on."""
        self.current += 1
        self.oldest = self.current
        self._changes.clear()

    def all(self) -> list[HistoryChange]:
        """Everything since the start or the last expiry."""
        return list(self._changes)

    def since(self, history_id: int, limit: int) -> tuple[list[HistoryChange], bool]:
        """At most `limit` changes after this id, and whether there are more."""
        if not self.oldest <= history_id <= self.current:
            raise not_found()
        start = bisect_right(self._changes, history_id, key=lambda change: change.id)
        return self._changes[start : start + limit], start + limit < len(self._changes)


class MailboxStore:
    def __init__(self, source: MailboxSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._base_count = source.count()
        self.labels = SimLabels(source.user_labels())
        self.history = HistoryLog(self._base_count)
        self._relabelled: dict[str, frozenset[str]] = {}
        self._gone_labels: set[str] = set()
        self._deleted: set[str] = set()
        self._arrived: dict[str, tuple[MailSummary, bytes, ListPlace]] = {}
        self._arrived_in_block: defaultdict[int, list[str]] = defaultdict(list)
        self._arrived_in_thread: defaultdict[str, list[str]] = defaultdict(list)
        self._thread_of_message_id: dict[str, str] = {}
        self._history_ids: dict[str, int] = {}
        self._thread_count = source.thread_count()

    @property
    def email(self) -> str:
        return self._source.email

    @property
    def count(self) -> int:
        return self._base_count + len(self._arrived) - len(self._deleted)

    @property
    def thread_count(self) -> int:
        return self._thread_count

    def now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def find(self, message_id: str) -> MailSummary | None:
        if message_id in self._deleted:
            return None
        if arrived := self._arrived.get(message_id):
            return self._current(arrived[0])
        index = self._source.index_of(message_id)
        return None if index is None else self._current(self._source.summary(index))

    def get(self, message_id: str) -> MailSummary:
        mail = self.find(message_id)
        if mail is None:
            raise not_found()
        return mail

    def raw(self, message_id: str) -> bytes:
        if arrived := self._arrived.get(message_id):
            return arrived[1]
        index = self._source.index_of(message_id)
        if index is None:
            raise not_found()
        return self._source.raw(index)

    def history_id(self, message_id: str) -> int:
        """The id of the last change to a message."""
        known = self._history_ids.get(message_id)
        index = self._source.index_of(message_id) if known is None else None
        return known or FIRST_ID + 1 + (index or 0)

    def thread(self, thread_id: str) -> list[MailSummary]:
        base = (self._source.summary(index) for index in self._source.thread(thread_id))
        arrived = (self._arrived[key][0] for key in self._arrived_in_thread.get(thread_id, ()))
        alive = [self._current(mail) for mail in (*base, *arrived) if mail.id not in self._deleted]
        return sorted(alive, key=lambda mail: mail.internal_date)

    def relabel(self, mail: MailSummary, add: frozenset[str], remove: frozenset[str]) -> MailSummary:
        """Give and take labels; what a message has already, or lacks already, is no change."""
        gained = tuple(sorted(add - mail.label_ids))
        lost = tuple(sorted((remove - add) & mail.label_ids))
        if not gained and not lost:
            return mail
        changed = replace(mail, label_ids=mail.label_ids.union(gained).difference(lost))
        self._relabelled[mail.id] = changed.label_ids
        if gained:
            self._history_ids[mail.id] = self.history.record(
                HistoryKind.LABELS_ADDED, changed, gained, at_ms=self.now_ms()
            )
        if lost:
            self._history_ids[mail.id] = self.history.record(
                HistoryKind.LABELS_REMOVED, changed, lost, at_ms=self.now_ms()
            )
        return changed

    def delete_label(self, label_id: str) -> None:
        self.labels.delete(label_id)
        self._gone_labels.add(label_id)

    def delete(self, mail: MailSummary) -> None:
        self._deleted.add(mail.id)
        if not self.thread(mail.thread_id):
            self._thread_count -= 1
        self.history.record(HistoryKind.DELETED, mail, at_ms=self.now_ms())

    def insert(
        self,
        raw: bytes,
        label_ids: frozenset[str],
        *,
        internal_date: int | None = None,
        thread_id: str | None = None,
        category: str = "",
    ) -> MailSummary:
        """A new message, as if it had just arrived."""
        message_id = self._fresh_id()
        date = self.now_ms() if internal_date is None else internal_date
        mail = summarise(
            raw, message_id=message_id, thread_id="", label_ids=label_ids, internal_date=date, category=category
        )
        mail = replace(mail, thread_id=thread_id or self._thread_for(mail, raw))
        if not self.thread(mail.thread_id):
            self._thread_count += 1
        place = place_of_arrival(message_id, date, self._base_index(date), self._base_count)
        self._arrived[message_id] = (mail, raw, place)
        self._arrived_in_block[place.block].append(message_id)
        self._arrived_in_thread[mail.thread_id].append(message_id)
        if mail.message_id:
            self._thread_of_message_id.setdefault(mail.message_id, mail.thread_id)
        self._history_ids[message_id] = self.history.record(HistoryKind.ADDED, mail, at_ms=self.now_ms())
        return mail

    def walk(
        self, start: int | None, end: int | None, after: ListPlace | None
    ) -> Iterator[tuple[ListPlace, MailSummary]]:
        """The messages received in `[start, end)`, in listing order, from just behind a place on."""
        low = 0 if start is None else self._base_index(start)
        high = self._base_count if end is None else self._base_index(end)
        for block in self._blocks(low, high, after):
            for place, key in self._block(block, low, high):
                if after is not None and place <= after:
                    continue
                mail = self._member(key)
                if mail is not None and (start or 0) <= mail.internal_date < (end if end is not None else 1 << 62):
                    yield place, mail

    def census(self, exact_up_to: int, sample: int) -> Iterator[tuple[int, MailSummary]]:
        """Every message, or a sample of a base too large to look at, each with how many it stands for."""
        step = 1 if self._base_count <= exact_up_to else -(-self._base_count // sample)
        for index in range(0, self._base_count, step):
            if (mail := self._member(index)) is not None:
                yield step, mail
        for key in self._arrived:
            if (mail := self._member(key)) is not None:
                yield 1, mail

    def _blocks(self, low: int, high: int, after: ListPlace | None) -> Iterator[int]:
        newest = newest_block(self._base_count)
        first, last = -(high // BLOCK), -(low // BLOCK)
        if after is None or after.block == newest:
            yield newest
        yield from range(first if after is None else max(first, after.block), last + 1)

    def _block(self, block: int, low: int, high: int) -> list[tuple[ListPlace, int | str]]:
        first = -block * BLOCK
        members: list[tuple[ListPlace, int | str]] = [
            (place_of_base(index), index) for index in range(max(low, first), min(high, first + BLOCK))
        ]
        members += [(self._arrived[key][2], key) for key in self._arrived_in_block.get(block, ())]
        return sorted(members, key=lambda member: member[0])

    def _member(self, key: int | str) -> MailSummary | None:
        mail = self._source.summary(key) if isinstance(key, int) else self._arrived[key][0]
        return None if mail.id in self._deleted else self._current(mail)

    def _current(self, mail: MailSummary) -> MailSummary:
        label_ids = self._relabelled.get(mail.id, mail.label_ids)
        if label_ids is mail.label_ids and not self._gone_labels:
            return mail
        return replace(mail, label_ids=label_ids - self._gone_labels)

    def _base_index(self, date: int) -> int:
        return bisect_left(range(self._base_count), date, key=self._source.internal_date)

    def _fresh_id(self) -> str:
        """Of 16 digits, as Gmail's are, whatever the year of the clock."""
        number = max(self.now_ms() << 20, 1 << 60) + len(self._arrived)
        while self._source.index_of(f"{number:x}") is not None or f"{number:x}" in self._arrived:
            number += 1
        return f"{number:x}"

    def _thread_for(self, mail: MailSummary, raw: bytes) -> str:
        for reference in reversed(references(raw)):
            if thread_id := self._thread_of_message_id.get(reference):
                return thread_id
        return mail.id


def references(raw: bytes) -> list[str]:
    """The Message-IDs that a message answers, the nearest last."""
    found = {key.lower(): value for key, value in headers_of(raw)}
    return f"{found.get('references', '')} {found.get('in-reply-to', '')}".split()


class Drafts:
    def __init__(self, store: MailboxStore) -> None:
        self._store = store
        self._messages: dict[str, str] = {}
        self._next = 1_000_001

    def create(self, raw: bytes, thread_id: str | None) -> tuple[str, MailSummary]:
        draft_id = f"r{self._next * 7_919_317}"
        self._next += 1
        mail = self._store.insert(raw, frozenset({"DRAFT"}), thread_id=thread_id)
        self._messages[draft_id] = mail.id
        return draft_id, mail

    def update(self, draft_id: str, raw: bytes, thread_id: str | None) -> MailSummary:
        """The draft keeps its id; its message is a new one."""
        old = self.get(draft_id)
        mail = self._store.insert(raw, frozenset({"DRAFT"}), thread_id=thread_id or old.thread_id)
        self._store.delete(old)
        self._messages[draft_id] = mail.id
        return mail

    def get(self, draft_id: str) -> MailSummary:
        if draft_id not in self._messages:
            raise not_found()
        return self._store.get(self._messages[draft_id])

    def remove(self, draft_id: str) -> MailSummary:
        """Remove the draft and its message; returns the message."""
        mail = self.get(draft_id)
        del self._messages[draft_id]
        self._store.delete(mail)
        return mail

    def forget(self, message_id: str) -> None:
        """Forget the draft of a message that was deleted directly."""
        self._messages = {key: value for key, value in self._messages.items() if value != message_id}

    def all(self) -> list[tuple[str, MailSummary]]:
        """Newest first."""
        live = [(key, self._store.find(message_id)) for key, message_id in reversed(self._messages.items())]
        return [(key, mail) for key, mail in live if mail is not None]
