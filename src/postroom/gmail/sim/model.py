"""The seam between the stand-in and the mail it serves.

A `MailSource` is a fixed mailbox, computed on demand, so that a million messages need no million objects. What callers
change through the API (labels, deletions, new mail) lives in the server's store, never in the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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


class MailSource(Protocol):
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
