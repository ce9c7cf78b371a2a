"""A backfill job in progress: its cursor, its unreported counts, and its progress reports to the Switchboard.

Cursor and counts are stored by the Switchboard and move together, so that a crash neither loses nor doubles anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from postroom.connectors.intake import Handled
from postroom.connectors.metrics import Fate
from postroom.connectors.source_mail import Position
from postroom.connectors.switchboard_client import BACKFILL, BackfillReport, FailedMail, SwitchboardClient
from postroom.contract.backfill import BackfillProgressReply, LeasedBackfill
from postroom.domain.backoff import Backoff, retry
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed, PostroomError, Retryable
from postroom.telemetry import logs

TRIES = 3
"""A message that could not be read in so many goes is passed over, counted and named in the log."""
ACTIVE, LOST, SWITCHED_OFF = "active", "lost", "switched_off"
_MOST_OWED = 500
"""More unreadable messages than that are no accident, and the cursor has to hold their names."""
_PAUSE_S = 1.0
_REPORT_BACKOFF = Backoff(_PAUSE_S, _PAUSE_S, longest_asked_s=5.0)
log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class BackfillOutcome:
    """How a pass ended. `status` is the job's, as the Switchboard has it; None where there was no job."""

    job_id: str | None = None
    status: str | None = None
    processed: int = 0
    skipped: int = 0
    retry_after: float | None = None
    """The job goes on after so many seconds; the pass did not want to wait for it."""


@dataclass(frozen=True, slots=True)
class BackfillCursor:
    """How far a job has come: everything at or after `place` is done, but for the messages that are `owed`, which could
    not be read yet, with the number of goes at each."""

    place: Position | None = None
    owed: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        place = None if self.place is None else {"received_ms": self.place[0], "id": self.place[1]}
        return {"version": 1, "place": place, "owed": self.owed}

    @classmethod
    def parse(cls, value: dict[str, Any] | None) -> BackfillCursor:
        if value is None:
            return cls()
        try:
            if value["version"] != 1:
                raise ValueError("another version")
            place = value["place"]
            read = None if place is None else (int(place["received_ms"]), str(place["id"]))
            return cls(read, {str(key): int(tries) for key, tries in value["owed"].items()})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Fatal(
                "The job's cursor was written by another version of Postroom. Cancel the job and create it anew."
            ) from None


class BackfillStopped(Exception):
    """The job is not to be worked on now."""

    def __init__(self, status: str, retry_after: float | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.retry_after = retry_after


@dataclass
class BackfillWork:
    switchboard: SwitchboardClient
    job: LeasedBackfill
    clock: Clock
    patience_s: float | None = None
    """The longest wait within a pass; None waits as long as it takes."""
    deadline: float | None = None
    """By the monotonic clock: then the pass gives way, and the job stays at hand."""
    cursor: BackfillCursor = field(default_factory=BackfillCursor)
    stride: int = 50
    """How many messages are offered at once; fewer while the hour's limit lets only few in."""
    _passed_over: list[FailedMail] = field(default_factory=list)
    _begun: bool = False
    _seq: int = 0
    _processed: int = 0
    _skipped: int = 0
    _total_processed: int = 0
    _total_skipped: int = 0
    _unanswered: BackfillReport | None = None
    _reported_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._reported_at = self.clock.monotonic()

    async def begin(self) -> None:
        """Take up the job where it stands, or where this pass left it; waits where it has no room now."""
        if not self._begun:
            self.cursor, self._begun = BackfillCursor.parse(self.job.cursor), True
            wait = self.job.retry_after
        else:
            wait = (await self.report()).retry_after
        if wait:
            self.stride = 1
            await self.wait_for_room(wait)

    @property
    def unreported(self) -> int:
        return self._processed + self._skipped

    @property
    def is_fresh(self) -> bool:
        """Whether the lease can still be ours."""
        return self.clock.monotonic() - self._reported_at < self.job.lease_s / 2

    def count(self, handled: Handled, *, moves: bool = True) -> None:
        """One message is dealt with; what could not be read stays owed."""
        key = handled.mail.id
        if handled.error is not None:
            self.owe(key, handled.error, archived=handled.mail.archived is not None)
        else:
            self._settled(key)
            if handled.fate in (Fate.FULL, Fate.METADATA, Fate.DUPLICATE):
                self._processed += 1
            else:
                self._skipped += 1
        if moves:
            self.reach(handled.mail.position)

    def reach(self, place: Position) -> None:
        if self.cursor.place is None or place < self.cursor.place:
            self.cursor = replace(self.cursor, place=place)

    def owe(self, key: str, error: PostroomError, *, archived: bool = False) -> None:
        """A message that cannot be read is tried in other goes before it is passed over."""
        tries = self.cursor.owed.get(key, 0) + 1
        if tries >= TRIES:
            self.drop(key)
            self._passed_over.append(FailedMail(key, archived, error.message))
            log.warning("backfill.message_passed_over", message=key, reason=logs.clean(error.message))
            return
        if len(self.cursor.owed) >= _MOST_OWED:
            raise Retryable(f"{_MOST_OWED} messages of this job cannot be read: {error.message}")
        self.cursor = replace(self.cursor, owed=self.cursor.owed | {key: tries})

    def drop(self, key: str) -> None:
        """Not wanted after all, gone, or given up."""
        self._settled(key)
        self._skipped += 1

    def _settled(self, key: str) -> None:
        if key in self.cursor.owed:
            left = {name: tries for name, tries in self.cursor.owed.items() if name != key}
            self.cursor = replace(self.cursor, owed=left)

    async def report(self, status: str | None = None, error: str | None = None) -> BackfillProgressReply:
        """Tell what was done; raises Stop unless the job is still at work."""
        if self._passed_over:
            await self.switchboard.report_trouble(BACKFILL, self._passed_over)
            self._passed_over = []
        if self._unanswered is not None:
            reply = await self._send(self._unanswered)
            if status is None:
                self._heed(reply)
        self._seq += 1
        cursor = self.cursor.to_json() if self._begun else None
        reply = await self._send(
            BackfillReport(
                self.job.job_id, self.job.fence, self._seq, self._processed, self._skipped, cursor, status, error
            )
        )
        if status is None:
            self._heed(reply)
        return reply

    async def _send(self, report: BackfillReport) -> BackfillProgressReply:
        """A report that got no answer may have arrived: its number makes repeating it harmless. Until it is answered
        it is repeated as it was, before any other: under another number its counts would count twice."""
        self._unanswered = report
        reply = await retry(lambda: self.switchboard.backfill_progress(report), _REPORT_BACKOFF, self.clock, attempts=2)
        self._unanswered = None
        self._processed -= report.processed
        self._total_processed += report.processed
        self._skipped -= report.skipped
        self._total_skipped += report.skipped
        self._reported_at = self.clock.monotonic()
        return reply

    def _heed(self, reply: BackfillProgressReply) -> None:
        if reply.status != ACTIVE:
            raise BackfillStopped(reply.status)
        if not self.switchboard.backfill_enabled:
            raise BackfillStopped(SWITCHED_OFF)

    async def wait(self, seconds: float) -> None:
        """Wait, asking now and then whether the job is still ours."""
        if self.patience_s is not None and seconds > self.patience_s:
            await self.report()
            raise BackfillStopped(ACTIVE, seconds)
        while seconds > 0:
            step = min(seconds, max(_PAUSE_S, self.job.lease_s / 4))
            await self.clock.sleep(step)
            seconds -= step
            if self.clock.monotonic() - self._reported_at >= self.job.lease_s / 4:
                await self.report()

    async def wait_for_room(self, seconds: float) -> None:
        """Wait until the job's hour has room for a message; progress is reported meanwhile."""
        wait: float | None = seconds
        while wait:
            await self.wait(wait)
            wait = (await self.report()).retry_after

    async def give_way(self) -> None:
        """If the pass has used up its time, stop after reporting everything."""
        if self.deadline is not None and self.clock.monotonic() >= self.deadline:
            await self.report()
            raise BackfillStopped(ACTIVE, 0.0)

    async def keep_what_is_done(self) -> None:
        """On the way out: what was done is not to be done again."""
        try:
            await self.report()
        except (PostroomError, BackfillStopped) as error:
            log.info("backfill.not_reported", problem=str(error))

    async def complete(self) -> str:
        return (await self.report("completed")).status

    async def fail(self, error: PostroomError) -> str:
        log.error("backfill.failed", problem=error.message)
        try:
            return (await self.report("error", logs.clean(error.message))).status
        except NotAllowed:
            return LOST

    def outcome(self, status: str, retry_after: float | None = None) -> BackfillOutcome:
        return BackfillOutcome(self.job.job_id, status, self._total_processed, self._total_skipped, retry_after)
