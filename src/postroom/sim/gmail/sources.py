"""Where the stand-in's mail comes from: a fixed mailbox, computed on demand or given message by message.

What callers change through the API (labels, deletions, new mail) lives in the mailbox store, never in the source.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from postroom.sim.gmail.raw_mail import take_apart


@dataclass(frozen=True, slots=True)
class MailSummary:
    """What listing and searching need to know of a message; cheap to make, because no body is written for it.

    It must agree with the raw message: the header fields here are the decoded headers there.
    """

    id: str
    """16 lowercase hex digits, unique in the mailbox."""
    thread_id: str
    """16 lowercase hex digits; the id of the first message in the thread."""
    label_ids: frozenset[str]
    """System labels (`INBOX`, `UNREAD`, `CATEGORY_PROMOTIONS` ...) and ids from `MailSource.user_labels`."""
    internal_date: int
    """When Gmail received it, in milliseconds since the epoch; the `Date` header may say something else."""
    sender: str
    """The decoded `From` header, empty where there is none."""
    to: str
    cc: str
    subject: str
    message_id: str
    """The `Message-ID` header with its angle brackets, empty where there is none."""
    list_id: str
    """The `List-ID` header, empty where there is none."""
    has_attachment: bool
    size: int
    """Roughly the length of the raw message; `sizeEstimate` of a list or a search, never of a fetched message."""
    category: str = ""
    """What the message truly is (`receipt`, `newsletter` ...): for evaluation through the control endpoint only."""


class MailboxSource(Protocol):
    """A mailbox that never changes. Index 0 is the oldest message: `internal_date` never falls as the index grows.

    Every method is deterministic and may be called in any order; `summary`, `internal_date` and `index_of` are called
    for every message of a listing and must be quick and need no table of all messages.
    """

    @property
    def email(self) -> str:
        """The address of the mailbox's owner."""

    def count(self) -> int:
        """How many messages there are."""

    def thread_count(self) -> int:
        """How many threads they form."""

    def summary(self, index: int) -> MailSummary:
        """The message at this index, without its body."""

    def internal_date(self, index: int) -> int:
        """`summary(index).internal_date`, cheaper: date ranges are found by bisection over it."""

    def raw(self, index: int) -> bytes:
        """The whole message as RFC 5322 bytes, the same on every call."""

    def index_of(self, message_id: str) -> int | None:
        """Where the message with this Gmail id is, or None if the mailbox has no such message."""

    def thread(self, thread_id: str) -> Sequence[int]:
        """The indexes of a thread's messages, oldest first; empty if there is no such thread."""

    def user_labels(self) -> Mapping[str, str]:
        """The owner's labels: id (`Label_1` ...) to name."""


def summarise(
    raw: bytes,
    *,
    message_id: str,
    thread_id: str,
    label_ids: frozenset[str],
    internal_date: int,
    category: str = "",
) -> MailSummary:
    mail = take_apart(raw)
    return MailSummary(
        id=message_id,
        thread_id=thread_id,
        label_ids=label_ids,
        internal_date=internal_date,
        sender=mail.header("from"),
        to=mail.header("to"),
        cc=mail.header("cc"),
        subject=mail.header("subject"),
        message_id=mail.header("message-id"),
        list_id=mail.header("list-id"),
        has_attachment=any(part.is_attachment for part in mail.walk()),
        size=len(raw),
        category=category,
    )


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


SUMMARIES = 100_000
RAW_BYTES = 64 * 1024 * 1024


class RememberingSource:
    """Another source's mailbox, with the latest summaries and raw messages held up to a limit."""

    def __init__(self, source: MailboxSource, *, summaries: int = SUMMARIES, raw_bytes: int = RAW_BYTES) -> None:
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
