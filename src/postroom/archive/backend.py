"""What every archive can do, as protocols: read, write, certify, search, verify. The rest of Postroom uses only these.

Two implementations: SQLite files below a folder (`shards/`), and tables in PostgreSQL (`postgres/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from pathlib import Path
from typing import Protocol, Self

from postroom.archive.certificates import ArchiveProof, Certificate, Removal, RemovalResult
from postroom.archive.conversations.facts import ConversationFacts
from postroom.archive.conversations.forest import ConversationCounts
from postroom.archive.coverage import MessageReadings, PartState, TextCoverage, UnindexedPart, WaitingAttachments
from postroom.archive.importing.state import ImportPosition
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
    TextRow,
)
from postroom.archive.preparing import PreparedMail
from postroom.archive.reader import MessageContent
from postroom.archive.search import Search
from postroom.archive.statistics import ShardStatistics
from postroom.archive.status import Progress, Repair, ShardInfo, SyncMark, VerifyReport
from postroom.domain.clock import Clock
from postroom.mail.headers import Headers
from postroom.mail.parsing import ParsedMail
from postroom.reading.documents import EXTRACTOR_VERSION

StillAlone = Callable[[], None]
"""Raises Retryable if the right to be the only archiver was lost meanwhile."""


class MailReader(Protocol):
    """The archive, read-only. Blocks no writer. Not safe for several threads at once; each opens its own."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def accounts(self) -> list[str]:
        """Addresses of the accounts that have mail here."""

    def count(self, email: str | None = None) -> int: ...

    def holding(self, email: str) -> AccountHolding:
        """How many messages and bytes an account has here."""

    def message(self, email: str, key: str) -> ArchivedMessage | None: ...

    def reread(self, message: ArchivedMessage) -> ArchivedMessage | None:
        """The current state of a message that was read before."""

    def find(self, wanted: str, account: str | None = None) -> ArchivedMessage:
        """The message with this key, beginning of a key, or Message-ID. Raises if there is none or more than one."""

    def find_many(self, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """The messages among these keys that the archive has."""

    def raw(self, email: str, key: str) -> bytes | None:
        """The exact bytes of a message; None if the archive does not have it."""

    def raw_of(self, message: ArchivedMessage) -> bytes:
        """The exact bytes, checked against the hash that was taken when they were stored."""

    def headers_of(self, message: ArchivedMessage) -> Headers:
        """Read from the stored bytes."""

    def senders_of(self, message: ArchivedMessage) -> tuple[str, ...]:
        """Every address in `From`, in its compared form, without reading the bytes; none if those were never read."""

    def parsed(self, message: ArchivedMessage) -> ParsedMail:
        """Parsed from the stored bytes. Never raises because of what they contain: `trouble` says what is wrong."""

    def body_of(self, message: ArchivedMessage) -> str:
        """The text that the search index was made from."""

    def contents_of(self, messages: Sequence[ArchivedMessage]) -> dict[str, MessageContent]:
        """Headers, body and attachments of many messages of one account together, by key. Large ones are left out, and
        those that cannot be read: each is to be read by itself."""

    def attachments_of(self, message: ArchivedMessage) -> Iterator[ArchivedAttachment]: ...

    def attachment_texts_of(self, message: ArchivedMessage) -> list[tuple[str, str]]:
        """File name and text of each attachment that has text in the index, in their order."""

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
        """The ids among these that the archive has."""

    def waiting_attachments(
        self, email: str, after: ArchivedMessage | None, limit: int, version: int = EXTRACTOR_VERSION
    ) -> list[WaitingAttachments]:
        """Messages with attachments that are yet to be read, or to be read again, newest first; those that come after
        `after` in that order."""

    def coverage(self, email: str | None = None, version: int = EXTRACTOR_VERSION) -> TextCoverage:
        """How many parts are indexed, and how many are not for which reason; they add up to all there are."""

    def unindexed(
        self, state: PartState, limit: int, email: str | None = None, version: int = EXTRACTOR_VERSION
    ) -> list[UnindexedPart]:
        """Parts that are not indexed for this reason, the newest of each account."""

    def text_rows(self, email: str) -> Iterator[list[TextRow]]:
        """Every message of the account in portions, newest first."""

    def texts(self, email: str, rows: Sequence[TextRow], longest: int) -> list[tuple[str, str]]:
        """The subject of each and the beginning of its text; empty where there is none."""

    def index_needs_work(self, email: str) -> bool:
        """Whether some of the account's mail was indexed by an older version and lacks words that are found now, or its
        index is in so many pieces that searches are slow."""

    def written_to(self, email: str) -> Iterator[PersonWrittenTo]:
        """Recipients of the account's sent mail; a person may occur more than once."""

    def sent_mail(self, email: str) -> Iterator[ArchivedSentMail]:
        """The account's sent mail that has a Message-ID."""


class ImportPositions(Protocol):
    def position(self, file: str, identity: str) -> int:
        """Where to continue in this file; 0 if its identity has changed."""

    def remember(self, marks: Mapping[str, ImportPosition], counts: Mapping[str, float]) -> None:
        """Record that everything before these positions is in the archive, and what was counted up to there."""

    def counts(self) -> dict[str, float]:
        """What the runs before this one have counted, by name; empty where there was none."""

    def forget(self) -> None:
        """Delete the positions: the import is complete."""

    def close(self) -> None: ...


class ImportTarget(Protocol):
    """What an import needs of an archive."""

    def submit(self, email: str, mails: Sequence[PreparedMail], *, bulk: bool = False) -> Submission:
        """Queue mail without waiting for the disk. Blocks while too much is queued. `bulk` is for an import: it stores
        more in a transaction."""

    def import_positions(self, source: str) -> ImportPositions:
        """How far an unfinished import of this source is."""

    def merge_index(self, email: str) -> None:
        """Make searches fast after much mail was stored at once. Nothing depends on it."""


class MailWriter(Protocol):
    """The right to write to the archive. Use from one thread at a time. When a call returns, its effect is on disk."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def store(self, email: str, mails: Sequence[IncomingMail]) -> list[StoredMessage]:
        """Results are in the order of `mails`."""

    def submit(self, email: str, mails: Sequence[PreparedMail], *, bulk: bool = False) -> Submission:
        """Queue mail without waiting for the disk. Blocks while too much is queued. `bulk` is for an import: it stores
        more in a transaction."""

    def known_gmail_ids(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these are in the archive already and need not be fetched."""

    def some_gmail_ids(self, email: str, count: int) -> list[str]:
        """Ids of the newest messages that are not marked as deleted at the source."""

    def set_labels(self, email: str, labels: Mapping[str, frozenset[str]]) -> set[str]:
        """Record the labels that messages now have at the source; returns the Gmail ids that are not in the archive."""

    def change_labels(self, email: str, changes: Sequence[Relabelling]) -> set[str]:
        """Add and remove labels as the source reports, in this order; returns the ids that are not in the archive.

        Safe to repeat.
        """

    def rename_label(self, email: str, old: str, new: str) -> None: ...

    def label_names(self, email: str) -> set[str]:
        """Every label that some message of the account has or had."""

    def label_members(self, email: str, label: str) -> set[str]:
        """The Gmail ids that have this label, without those that are deleted at the source."""

    def mark_deleted(self, email: str, gmail_ids: Sequence[str], when: datetime) -> set[str]:
        """Mark messages as deleted at the source; nothing is removed here. Returns unknown ids."""

    def unmark_deleted(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        """Remove that mark. Returns unknown ids."""

    def record_readings(self, email: str, messages: Sequence[MessageReadings]) -> None:
        """Index what was read of attachments. Safe to repeat; a message whose bytes changed meanwhile is left out."""

    def improve_index(self, email: str) -> bool:
        """A portion of that work, newest mail first; returns whether more is left. Mail itself stays as it is."""

    def merge_index(self, email: str) -> None:
        """Make searches fast after much mail was stored at once. Nothing depends on it."""

    def import_positions(self, source: str) -> ImportPositions:
        """How far an unfinished import of this source is."""

    def checkpoint(self) -> None:
        """Make everything stored so far durable enough for a watermark to rely on."""

    def close(self) -> None: ...


class CertificateBook(Protocol):
    """An account's certificates, for adding to them. When a method returns, what it wrote is on disk."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def certify(
        self, batch: str, removal: Removal, proofs: Sequence[ArchiveProof], watermark: int, now: datetime
    ) -> list[Certificate]:
        """Record that these are about to be removed. Equal bytes that were certified before keep their certificate."""

    def settle(self, certificates: Iterable[Certificate], result: RemovalResult, detail: str, now: datetime) -> None:
        """Record the results of removals."""

    def open(self) -> list[Certificate]:
        """Certificates of interrupted runs, which have no result."""


class CertificateLedger(Protocol):
    """An account's certificates, read from disk at every call."""

    def certified(self, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these have a certificate of any kind, because the archive may then hold the only copy."""

    def removed_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these were removed in this way before. If they are back, the owner put them back."""

    def intended_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
        """The numbers of these messages' certificates that are on disk without a result."""

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
        """The number of certificates by result."""


class ConversationIndex(Protocol):
    """Which messages belong together, made from the archive. Any process may add to it. Use from one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def waiting(self, limit: int) -> Iterator[list[ConversationFacts]]:
        """Messages that are not indexed as they are now, so many at a time; add them before asking for the next."""

    def add(self, messages: Sequence[ConversationFacts]) -> int:
        """Index these, in one transaction; returns how many were not indexed so before. Safe to repeat."""

    def counts(self) -> ConversationCounts: ...


class ArchiveBackend(Protocol):
    @property
    def name(self) -> str:
        """For people: where the mail is."""

    @property
    def ledger_name(self) -> str:
        """For people: where the certificates are."""

    @property
    def sync_holder(self) -> str:
        """The name under which a sync into this archive holds the lease of an account's changes."""

    @property
    def vectors(self) -> Path | None:
        """The folder below which the accounts' vectors are (`meaning/`); None: there can be none."""

    def reader(self) -> MailReader: ...

    def search(self, clock: Clock | None = None) -> Search: ...

    def conversations(self) -> ConversationIndex:
        """The index of conversations; made if it is missing, or damaged."""

    def writer(self, purpose: str) -> MailWriter:
        """Raises OwnedElsewhere while another process writes, if only one may."""

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        """Messages dated before `below` (seconds since 1970), or all, a few hundred at a time.

        Nothing stays open between portions, and each shows the current state.
        """

    def certificates(self, email: str) -> CertificateBook: ...

    def ledger(self, email: str) -> CertificateLedger: ...

    def one_archiver(self, email: str) -> AbstractContextManager[StillAlone]:
        """Only one at a time removes an account's mail at the source; raises OwnedElsewhere while another does.

        Call the returned function before each removal.
        """

    def read_mark(self, email: str) -> SyncMark | None:
        """None if there is none that can be read."""

    def write_mark(self, email: str, mark: SyncMark) -> None:
        """The mark is on disk when this returns."""

    def settle_lost(self, email: str) -> None:
        """Everything that the source has is stored again: what was lost before is no longer reported."""

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> VerifyReport:
        """Verify every byte; `progress` is called with the number of messages checked since its last call."""

    def repair(self, report: VerifyReport, owner: MailWriter | None = None) -> Repair:
        """Repair what a verification found, as far as possible; damaged data are kept aside.

        `owner` is the writer of this process, if it has one; call this on the writer's thread then.
        """

    def shards(self, email: str) -> list[ShardInfo]:
        """The shards or partitions of an account, newest first, including missing ones."""

    def statistics(self, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
        """What each shard or partition holds, by sender, month and so on; not counted where `known` has its stamp."""

    def free_bytes(self) -> int | None:
        """Free disk space; None if unknown on this host."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
