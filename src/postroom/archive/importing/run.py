"""An import from start to end: read, prepare, store, and remember how far everything is on disk, in this order.

Batches pass through in the order of the file, and one that fails ends the run before any later one is remembered. So
the remembered position never passes a message that is not stored.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from postroom.archive.backend import ImportPositions, ImportTarget
from postroom.archive.importing.preparation import PendingBatch, Preparation, PreparedEntry
from postroom.archive.importing.state import (
    COMPLETE,
    FoundMessage,
    ImportFinding,
    ImportPosition,
    ImportProgress,
    ImportReport,
    ImportSource,
    RefusedMessage,
    ShowProgress,
    Unreadable,
    readable,
)
from postroom.archive.messages import StoredMessage, StoreOutcome, Submission, account_name
from postroom.domain.errors import Fatal, PostroomError
from postroom.telemetry import logs

log = logs.get(__name__)

BATCH_MESSAGES = 200
BATCH_BYTES = 2 << 20
MOST_BYTES_ON_THE_WAY = 64 << 20
MOST_TROUBLED = 10_000
MOST_REPORTED = 1_000
_BATCHES_STORING = 2


class _Entry(NamedTuple):
    """What was found next in a file, or its end."""

    file: str
    mark: ImportPosition
    finding: ImportFinding | None
    consumed: int


@dataclass(slots=True)
class _Batch:
    mails: list[FoundMessage] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Of each message."""
    refused: list[RefusedMessage] = field(default_factory=list)
    marks: dict[str, ImportPosition] = field(default_factory=dict)
    bytes: int = 0
    consumed: int = 0  # bytes of the source that it stands for

    def add(self, entry: _Entry) -> None:
        self.marks[entry.file] = entry.mark
        self.consumed += entry.consumed
        match entry.finding:
            case FoundMessage() as found:
                self.mails.append(found)
                self.files.append(entry.file)
                self.bytes += len(found.raw)
            case RefusedMessage() as refused:
                self.refused.append(refused)

    def origin(self, number: int) -> str:
        return f"{readable(self.files[number])}, to byte {self.mails[number].end:,}"

    @property
    def is_full(self) -> bool:
        return len(self.mails) >= BATCH_MESSAGES or len(self.marks) >= BATCH_MESSAGES or self.bytes >= BATCH_BYTES


def import_mail(
    archive: ImportTarget,
    account: str,
    source: ImportSource,
    *,
    progress: ShowProgress | None = None,
    stop: threading.Event | None = None,
) -> ImportReport:
    """Import all mail of a source; what the archive has already is skipped and counted.

    Set `stop` to end after what has been read is stored. Killed or stopped, the same call goes on where it was.
    """
    name = readable(f"{account_name(account)} {source.format} {source.path.absolute()}")
    state = archive.import_positions(name)
    preparation = Preparation(source.interpret)
    try:
        return _Run(archive, account, source, state, preparation, progress, stop or threading.Event()).run()
    finally:
        preparation.close()
        state.close()


def count_mail(source: ImportSource) -> ImportReport:
    """What an import would find, without an archive."""
    report = ImportReport()
    started = time.monotonic()
    for file in source.files():
        for finding in file.read(0):
            if isinstance(finding, FoundMessage):
                report.found += 1
                report.bytes += len(finding.raw)
            else:
                _note(report, _refused(finding))
    report.seconds = time.monotonic() - started
    return report


class _Run:
    def __init__(
        self,
        archive: ImportTarget,
        account: str,
        source: ImportSource,
        state: ImportPositions,
        preparation: Preparation,
        progress: ShowProgress | None,
        stop: threading.Event,
    ) -> None:
        self._archive = archive
        self._account = account
        self._source = source
        self._state = state
        self._preparation = preparation
        self._progress = progress
        self._stop = stop
        self._report = ImportReport()
        self._earlier = state.counts()
        self._started = time.monotonic()
        self._consumed = 0
        self._failure: PostroomError | None = None
        self._preparing: deque[tuple[_Batch, PendingBatch]] = deque()
        self._storing: deque[tuple[_Batch, list[PreparedEntry], Submission]] = deque()

    def run(self) -> ImportReport:
        for batch in self._batches():
            self._preparing.append((batch, self._preparation.start(batch.mails)))
            self._advance(self._preparation.processes + 1, _BATCHES_STORING)
            if self._bytes_on_the_way() > MOST_BYTES_ON_THE_WAY:
                self._advance(0, 0)
        self._advance(0, 0)
        if self._failure is not None:
            raise self._failure
        if not self._report.stopped:
            self._state.forget()
            self._merge_index()
        return self._report

    def _merge_index(self) -> None:
        """Searches are quicker after it, and nothing else depends on it."""
        if not self._report.stored:
            return
        try:
            self._archive.merge_index(self._account)
        except PostroomError as error:
            log.warning("import.index_not_merged", error=error.message)

    def _bytes_on_the_way(self) -> int:
        preparing = sum(batch.bytes for batch, _ in self._preparing)
        return preparing + sum(batch.bytes for batch, _, _ in self._storing)

    def _advance(self, preparing: int, storing: int) -> None:
        """Move batches on until no more than these wait at each station."""
        while len(self._preparing) > preparing:
            batch, pending = self._preparing.popleft()
            prepared = pending()
            submission = self._archive.submit(self._account, [mail for mail, _ in prepared], bulk=True)
            self._storing.append((batch, prepared, submission))
            self._settle_down_to(storing)
        self._settle_down_to(storing)

    def _settle_down_to(self, count: int) -> None:
        while len(self._storing) > count:
            self._settle(*self._storing.popleft())

    def _settle(self, batch: _Batch, prepared: list[PreparedEntry], submission: Submission) -> None:
        """The batch is on disk: count it, remember it, then say so."""
        report = self._report
        stored = self._stored(prepared, submission)
        for number, ((mail, failure), proof) in enumerate(zip(prepared, stored, strict=True)):
            if isinstance(proof, str):
                _note(report, Unreadable(batch.origin(number), proof, kept=False))
                continue
            is_new = proof.outcome is StoreOutcome.STORED
            report.stored += is_new
            report.duplicates += not is_new
            report.with_problems += is_new and bool(mail.problems)
            if failure:
                _note(report, Unreadable(batch.origin(number), failure, kept=True))
                if len(report.troubled) < MOST_TROUBLED:
                    report.troubled[proof.key] = failure
        for refused in batch.refused:
            _note(report, _refused(refused))
        report.found += len(batch.mails)
        report.bytes += batch.bytes
        now = time.monotonic()
        report.seconds += now - self._started
        self._started = now
        self._state.remember(batch.marks, report.counts())
        self._consumed += batch.consumed
        if self._progress is not None:
            self._progress(ImportProgress(self._consumed, self._source.total_bytes, report))

    def _stored(self, prepared: list[PreparedEntry], submission: Submission) -> list[StoredMessage | str]:
        """Where each lies, or why it could not be stored: one of them keeps no other out."""
        try:
            return list(submission.result())
        except PostroomError:
            raise  # it is the archive's fault
        except Exception as error:
            if len(prepared) == 1:
                return [f"could not be stored ({type(error).__name__})"]
            alone = [(each, self._archive.submit(self._account, [each.mail])) for each in prepared]
            return [answer for each, one in alone for answer in self._stored([each], one)]

    def _batches(self) -> Iterator[_Batch]:
        """A source that cannot be read further ends the run too, but what was read before it is stored first."""
        batch = _Batch()
        try:
            for entry in self._entries():
                batch.add(entry)
                if batch.is_full:
                    yield batch
                    batch = _Batch()
                if self._stop.is_set():
                    self._report.stopped = True
                    break
        except PostroomError as error:
            self._failure = error
        except OSError as error:
            self._failure = Fatal(f"{error.filename or self._source.path} cannot be read: {error.strerror or error}")
        if batch.marks:
            yield batch

    def _entries(self) -> Iterator[_Entry]:
        files_done = 0
        for file in self._source.files():
            identity = file.identity()
            position = self._state.position(file.name, identity)
            if position == COMPLETE:
                files_done += 1
                self._consumed += file.size or 0
                self._resume(f"{files_done:,} files done before")
                continue
            if position:
                self._consumed += position
                self._resume(f"byte {position:,} of {readable(file.name)}")
            for finding in file.read(position):
                yield _Entry(file.name, ImportPosition(identity, finding.end), finding, finding.end - position)
                position = finding.end
            yield _Entry(file.name, ImportPosition(identity, COMPLETE), None, 0)

    def _resume(self, from_: str) -> None:
        """What earlier runs counted stands only where their files are what they were."""
        self._report.resumed_from = from_
        self._report.add(self._earlier)
        self._earlier = {}


def _refused(finding: RefusedMessage) -> Unreadable:
    return Unreadable(finding.where, finding.problem, kept=False, is_mail=finding.is_mail)


def _note(report: ImportReport, unreadable: Unreadable) -> None:
    report.unreadable_count += unreadable.is_mail
    report.not_mail += not unreadable.is_mail
    if len(report.unreadable) < MOST_REPORTED:
        report.unreadable.append(unreadable)
