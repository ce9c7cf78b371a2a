"""What every archive can do, as protocols: read, write, certify, search, verify. The rest of Postroom uses only these.

Two implementations: SQLite files below a folder (`shards/`), and tables in PostgreSQL (`postgres/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import NamedTuple, Protocol, Self

from postroom.archive.certificates import ArchiveProof, Certificate, Removal, RemovalResult
from postroom.archive.messages import (
    AccountHolding,
    ArchivedAttachment,
    ArchivedMessage,
    ArchivedSentMail,
    IncomingMail,
    KnownId,
    PersonWrittenTo,
    Relabelling,
    StoredMessage,
    Submission,
)
from postroom.archive.preparing import PreparedMail
from postroom.archive.search import Search
from postroom.archive.status import Progress, Repair, ShardInfo, SyncMark, VerifyReport
from postroom.domain.clock import Clock
from postroom.mail.headers import Headers
from postroom.mail.parsing import ParsedMail

StillAlone = Callable[[], None]
"""Raises Retryable if the right to be the only archiver was lost meanwhile."""


class MailReader(Protocol):
    """The archive, read-only. Blocks no writer. Not safe for several threads at once; each opens its own."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def accounts(self) -> list[str]:
        """Whose mail is here."""

    def count(self, email: str | None = None) -> int: ...

    def holding(self, email: str) -> AccountHolding:
        """How much there is of an account."""

    def message(self, email: str, key: str) -> ArchivedMessage | None: ...

    def reread(self, message: ArchivedMessage) -> ArchivedMessage | None:
        """The message as it stands now, where it stood when it was read before."""

    def find(self, wanted: str, account: str | None = None) -> ArchivedMessage:
        """The one message that a person means by a key, the beginning of one, or a Message-ID; refuses none and
        several."""

    def find_many(self, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Those of the keys that the archive has."""

    def raw(self, email: str, key: str) -> bytes | None:
        """The exact bytes of a message; None if the archive does not have it."""

    def raw_of(self, message: ArchivedMessage) -> bytes:
        """The exact bytes, checked against the hash that was taken when they were stored."""

    def headers_of(self, message: ArchivedMessage) -> Headers:
        """Read from the stored bytes."""

    def parsed(self, message: ArchivedMessage) -> ParsedMail:
        """Parsed from the stored bytes. Never raises because of what they contain: `trouble` says what is wrong."""

    def body_of(self, message: ArchivedMessage) -> str:
        """The text that the search index was made from."""

    def attachments_of(self, message: ArchivedMessage) -> Iterator[ArchivedAttachment]: ...

    def walk(
        self, email: str, date_from: date, date_to: date, after: str | None, limit: int
    ) -> tuple[list[ArchivedMessage], str | None]:
        """Messages with a Gmail id received from the first day to the last, both included, in UTC, newest first.

        `after` is the cursor that the page before ended with; the last page ends with None.
        """

    def newest_first(self, emails: Sequence[str] | None = None) -> Iterator[ArchivedMessage]:
        """All messages of these accounts, or of all."""

    def oldest_first(self, email: str | None = None) -> Iterator[ArchivedMessage]:
        """All messages of an account, or of one account after the other."""

    def all_ids(self, email: str) -> Iterator[list[KnownId]]:
        """Every message of the account that has a Gmail id, in portions."""

    def look_up(self, email: str, gmail_ids: Sequence[str]) -> Mapping[str, KnownId]:
        """Those of the ids that the archive has."""

    def written_to(self, email: str) -> Iterator[PersonWrittenTo]:
        """Whom the account's sent mail was for; a person may come more than once."""

    def sent_mail(self, email: str) -> Iterator[ArchivedSentMail]:
        """The account's sent mail, as far as it has Message-IDs."""


class ImportPosition(NamedTuple):
    """A file is done up to here."""

    identity: str
    position: int


class ImportPositions(Protocol):
    def position(self, file: str, identity: str) -> int:
        """Where to go on in this file; a file that is not what it was is read from its start."""

    def remember(self, marks: Mapping[str, ImportPosition]) -> None:
        """All before these positions is in the archive."""

    def forget(self) -> None:
        """The import is complete."""

    def close(self) -> None: ...


class MailWriter(Protocol):
    """The right to write to the archive. One thread at a time brings mail. What a call has answered is on disk."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def store(self, email: str, mails: Sequence[IncomingMail]) -> list[StoredMessage]:
        """The answers stand in the order of the mail."""

    def submit(self, email: str, mails: Sequence[PreparedMail]) -> Submission:
        """Hand mail over without waiting for the disk. Blocks while that is behind."""

    def known_gmail_ids(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these are in the archive already and need not be fetched."""

    def some_gmail_ids(self, email: str, count: int) -> list[str]:
        """Of the newest mail that is not marked as deleted at the source."""

    def set_labels(self, email: str, labels: Mapping[str, frozenset[str]]) -> set[str]:
        """Record the labels that messages now have at the source; returns the Gmail ids that are not in the archive."""

    def change_labels(self, email: str, changes: Sequence[Relabelling]) -> set[str]:
        """Apply what the source says was given and taken, in this order; returns the ids that are not in the archive.

        Done again, it changes nothing.
        """

    def rename_label(self, email: str, old: str, new: str) -> None: ...

    def label_names(self, email: str) -> set[str]:
        """Every label that some message of the account has or had."""

    def label_members(self, email: str, label: str) -> set[str]:
        """The Gmail ids that have this label, without those that are deleted at the source."""

    def mark_deleted(self, email: str, gmail_ids: Sequence[str], when: datetime) -> set[str]:
        """Record that messages were deleted at the source. A mark: nothing is removed here. Returns unknown ids."""

    def unmark_deleted(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        """They are at the source after all. Returns unknown ids."""

    def import_positions(self, source: str) -> ImportPositions:
        """How far an unfinished import of this source is."""

    def checkpoint(self) -> None:
        """Everything stored so far stands where a watermark may speak for it."""

    def close(self) -> None: ...


class CertificateBook(Protocol):
    """An account's certificates, to be added to. When a method returns, what it wrote is on disk."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def certify(
        self, batch: str, removal: Removal, proofs: Sequence[ArchiveProof], watermark: int, now: datetime
    ) -> list[Certificate]:
        """Write down that these are about to be removed. Equal bytes certified before keep their one certificate."""

    def settle(self, certificates: Iterable[Certificate], result: RemovalResult, detail: str, now: datetime) -> None:
        """Write down what became of removals."""

    def open(self) -> list[Certificate]:
        """Those that a run left behind without saying what became of them."""


class CertificateLedger(Protocol):
    """An account's certificates, read from disk at every call."""

    def certified(self, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these have a certificate of any kind, because the archive may then hold the only copy."""

    def removed_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these were removed in this way before: if they are back, the owner wants them there."""

    def intended_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
        """The certificates of these that are on disk and stand as intended, by number."""

    def certificates(
        self,
        *,
        result: RemovalResult | None = None,
        gmail_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Certificate]:
        """The newest certificates, or those before a number."""

    def counts(self) -> dict[RemovalResult, int]:
        """How many certificates stand at each result."""


class ArchiveBackend(Protocol):
    @property
    def name(self) -> str:
        """For people: where the mail is."""

    @property
    def ledger_name(self) -> str:
        """For people: where the certificates are."""

    @property
    def sync_holder(self) -> str:
        """How a sync that writes here calls itself, as the one reader of an account's changes."""

    def reader(self) -> MailReader: ...

    def search(self, clock: Clock | None = None) -> Search: ...

    def writer(self, purpose: str) -> MailWriter:
        """Where one process at a time may write, raises OwnedElsewhere while another does."""

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        """Those dated before `below` (seconds since 1970), or all, a few hundred at a time.

        Each portion is read afresh: nothing stays open while the caller is at work, and no old state is seen.
        """

    def certificates(self, email: str) -> CertificateBook: ...

    def ledger(self, email: str) -> CertificateLedger: ...

    def one_archiver(self, email: str) -> AbstractContextManager[StillAlone]:
        """Only one at a time removes an account's mail at the source; raises OwnedElsewhere while another does.

        What it gives is to be called before each removal.
        """

    def read_mark(self, email: str) -> SyncMark | None:
        """None where there is none, or none that can be read."""

    def write_mark(self, email: str, mark: SyncMark) -> None:
        """On disk, whole, when this returns."""

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> VerifyReport:
        """Verify every byte; `progress` is called with the number of messages checked since its last call."""

    def repair(self, report: VerifyReport) -> Repair:
        """Make whole again what a verification found, as far as that can be; the damaged is kept aside."""

    def shards(self, email: str) -> list[ShardInfo]:
        """The parts in which an account's mail lies, newest first; those that should be there and are not, too."""

    def free_bytes(self) -> int | None:
        """How much room there is for more mail; None: this host cannot tell."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
