"""The backfill pass: one job of recovering history, from wherever its cursor stands, until it ends or is told to stop.

The cursor and the counts live on the Switchboard and move together; here is nothing that a crash could lose. What was
ingested and not yet reported is ingested again, recognised, and counted once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from postroom.connectors import instruments
from postroom.connectors.contact_cache import ContactCache
from postroom.connectors.gmail.intake import Handled, Intake
from postroom.connectors.gmail.mail import Position, SourceMail
from postroom.connectors.gmail.walking import ArchiveWalk, MailboxWalk, Scope, Stretch, Window
from postroom.connectors.instruments import Fate, PassName
from postroom.connectors.switchboard import Report, Switchboard
from postroom.connectors.wire import BackfillJob, ProgressReply
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.gmail.client import GmailClient
from postroom.mail.headers import Headers
from postroom.telemetry import logs

log = logs.get(__name__)
_TRIES = 3
"""A message that could not be read in so many goes is passed over, counted and named in the log."""
_ACTIVE = "active"
_INGEST_AT_ONCE = 50


class Selector(Protocol):
    """Which categories of mail a job is after."""

    def query(self, names: Sequence[str]) -> str:
        """For the source: everything that may belong."""

    def selects(self, names: Sequence[str], headers: Headers, *, is_known: bool) -> bool:
        """By its headers, whether a message belongs to any of these."""


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
class Cursor:
    """How far a job has come: everything at or after `place` is done. `failing` counts goes at unreadable mail."""

    place: Position | None = None
    failing: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        place = None if self.place is None else {"received_ms": self.place[0], "id": self.place[1]}
        return {"version": 1, "place": place} | ({"failing": self.failing} if self.failing else {})

    @classmethod
    def parse(cls, value: dict[str, Any] | None) -> Cursor:
        if value is None:
            return cls()
        try:
            if value["version"] != 1:
                raise ValueError("another version")
            place = value["place"]
            read = None if place is None else (int(place["received_ms"]), str(place["id"]))
            return cls(read, {str(key): int(tries) for key, tries in value.get("failing", {}).items()})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Fatal(
                "The job's cursor was written by another version of Postroom. Cancel the job and create it anew."
            ) from None


class _Stop(Exception):
    """The job is not ours to work on any longer."""

    def __init__(self, status: str, retry_after: float | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.retry_after = retry_after


class BackfillPass:
    def __init__(
        self,
        switchboard: Switchboard,
        client: GmailClient,
        intake: Intake,
        contacts: ContactCache,
        selector: Selector,
        clock: Clock,
        *,
        progress_interval: int = 50,
        patience_s: float | None = None,
        live_is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`patience_s` is the longest wait for the rate limit within a pass; None waits as long as it takes."""
        self._switchboard = switchboard
        self._client = client
        self._intake = intake
        self._contacts = contacts
        self._selector = selector
        self._clock = clock
        self._interval = progress_interval
        self._patience_s = patience_s
        self._live_is_busy = live_is_busy

    async def run(self) -> BackfillOutcome:
        """Ask for a job and work on it. Raises Retryable where the world is in the way; the job waits then."""
        job = await self._switchboard.backfill_poll()
        if job is None:
            return BackfillOutcome()
        work = _Work(self._switchboard, job, self._clock, self._patience_s)
        logs.bind(backfill_job=job.job_id)
        log.info("backfill.started", fence=job.fence, mode=job.params.mode)
        try:
            await self._work(job, work)
        except _Stop as stop:
            log.info("backfill.stopped", status=stop.status)
            return work.outcome(stop.status, stop.retry_after)
        except NotAllowed as error:
            # Somebody else has the job now. What was ingested is recognised when they come to it.
            log.warning("backfill.fence_refused", problem=error.message)
            return work.outcome("lost")
        except (Fatal, BadInput) as error:
            return work.outcome(await work.fail(error))
        except Retryable:
            await work.keep_what_is_done()
            raise
        return work.outcome(await work.complete())

    async def _work(self, job: BackfillJob, work: _Work) -> None:
        if job.retry_after:
            await work.wait(job.retry_after)
        scope = self._scope(job)
        walk: MailboxWalk | ArchiveWalk = ArchiveWalk(self._switchboard, scope)
        if not await walk.is_complete():
            walk = MailboxWalk(self._client, scope)
        async for stretch in walk.stretches(work.cursor.place):
            await self._through(stretch, job, work)

    def _scope(self, job: BackfillJob) -> Scope:
        params = job.params
        query = self._selector.query(params.target_categories) if params.target_categories else ""
        return Scope(Window.of(params.date_from, params.date_to), query, frozenset(params.includes))

    async def _through(self, stretch: Stretch, job: BackfillJob, work: _Work) -> None:
        work.note_failures(stretch.failures)
        for start in range(0, len(stretch.mails), min(self._interval, _INGEST_AT_ONCE)):
            chunk = stretch.mails[start : start + min(self._interval, _INGEST_AT_ONCE)]
            await self._chunk(chunk, job, work)
            if work.unreported >= self._interval:
                await work.report()
            await self._yield_to_live(work)
        work.reach(stretch.reached)

    async def _chunk(self, mails: Sequence[SourceMail], job: BackfillJob, work: _Work) -> None:
        """Every message of the chunk, again and again where the rate limit lets only some of them in."""
        left = list(mails)
        while left:
            if not self._switchboard.backfill_enabled:
                await work.report()  # the answer says what has become of the job
            handled = await self._handled(left, job)
            refused = next((number for number, each in enumerate(handled) if each.refusal), len(handled))
            for each in handled[:refused]:
                work.count(each)
            left = left[refused:]
            if left:
                await self._refused(handled[refused], work)

    async def _handled(self, mails: Sequence[SourceMail], job: BackfillJob) -> list[Handled]:
        chosen = [mail for mail in mails if self._is_chosen(mail, job)]
        taken = {each.mail.id: each for each in await self._intake.take(chosen, PassName.BACKFILL, job.job_id)}
        instruments.record_message(PassName.BACKFILL, Fate.NOT_SELECTED, len(mails) - len(chosen))
        return [taken.get(mail.id) or Handled(mail, Fate.NOT_SELECTED) for mail in mails]

    def _is_chosen(self, mail: SourceMail, job: BackfillJob) -> bool:
        """By its headers alone, before any body is fetched."""
        names = job.params.target_categories
        if not names:
            return True
        return self._selector.selects(names, mail.headers, is_known=self._contacts.knows_sender(mail.headers))

    async def _refused(self, each: Handled, work: _Work) -> None:
        assert each.refusal is not None  # noqa: S101 - that is why it is asked about
        log.info("backfill.refused", reason=each.refusal.reason, retry_after=each.refusal.retry_after)
        await work.report()
        await work.wait(each.refusal.retry_after or 1.0)

    async def _yield_to_live(self, work: _Work) -> None:
        while self._live_is_busy():
            await work.wait(1.0)


@dataclass
class _Work:
    """A job under way: what is done and not yet reported, and the talk with the Switchboard about it."""

    switchboard: Switchboard
    job: BackfillJob
    clock: Clock
    patience_s: float | None
    cursor: Cursor = field(init=False)
    seq: int = 0
    processed: int = 0
    skipped: int = 0
    total_processed: int = 0
    total_skipped: int = 0
    failures: dict[str, PostroomError] = field(default_factory=dict)
    reported_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.cursor = Cursor.parse(self.job.cursor)
        self.reported_at = self.clock.monotonic()

    @property
    def unreported(self) -> int:
        return self.processed + self.skipped

    def count(self, handled: Handled) -> None:
        if handled.error is not None:
            self.note_failures({handled.mail.id: handled.error})
        elif handled.fate in (Fate.FULL, Fate.METADATA, Fate.DUPLICATE):
            self.processed += 1
        else:
            self.skipped += 1
        self.cursor = replace(self.cursor, place=handled.mail.position)

    def reach(self, place: Position) -> None:
        if self.cursor.place is None or place < self.cursor.place:
            self.cursor = replace(self.cursor, place=place)

    def note_failures(self, failures: dict[str, PostroomError]) -> None:
        """A message that cannot be read is tried in other goes before it is passed over."""
        for key, error in failures.items():
            tries = self.cursor.failing.get(key, 0) + 1
            failing = {name: count for name, count in self.cursor.failing.items() if name != key}
            if tries < _TRIES:
                self.cursor = replace(self.cursor, failing=failing | {key: tries})
                raise error if isinstance(error, Retryable) else Retryable(error.message)
            self.cursor = replace(self.cursor, failing=failing)
            self.skipped += 1
            log.warning("backfill.message_passed_over", message=key, reason=logs.clean(error.message))

    async def report(self, status: str | None = None, error: str | None = None) -> ProgressReply:
        """Tell what was done; raises _Stop unless the job is still at work."""
        self.seq += 1
        report = Report(
            self.job.job_id,
            self.job.fence,
            self.seq,
            self.processed,
            self.skipped,
            self.cursor.to_json(),
            status,
            error,
        )
        reply = await self._told(report)
        self.total_processed, self.processed = self.total_processed + self.processed, 0
        self.total_skipped, self.skipped = self.total_skipped + self.skipped, 0
        self.reported_at = self.clock.monotonic()
        if status is None and reply.status != _ACTIVE:
            raise _Stop(reply.status)
        return reply

    async def _told(self, report: Report) -> ProgressReply:
        """A report that got no answer may have arrived: its number makes repeating it harmless."""
        try:
            return await self.switchboard.backfill_progress(report)
        except Retryable as error:
            await self.clock.sleep(1.0 if error.retry_after is None else min(error.retry_after.total_seconds(), 5.0))
            return await self.switchboard.backfill_progress(report)

    async def wait(self, seconds: float) -> None:
        """Wait for the rate limit, asking now and then whether the job is still ours."""
        if self.patience_s is not None and seconds > self.patience_s:
            await self.report()
            raise _Stop(_ACTIVE, seconds)
        while seconds > 0:
            step = min(seconds, max(1.0, self.job.lease_s / 4))
            await self.clock.sleep(step)
            seconds -= step
            if self.clock.monotonic() - self.reported_at >= self.job.lease_s / 4:
                await self.report()

    async def keep_what_is_done(self) -> None:
        """On the way out: what was done is not to be done again."""
        try:
            await self.report()
        except (PostroomError, _Stop) as error:
            log.info("backfill.not_reported", problem=str(error))

    async def complete(self) -> str:
        return (await self.report("completed")).status

    async def fail(self, error: PostroomError) -> str:
        log.error("backfill.failed", problem=error.message)
        try:
            return (await self.report("error", logs.clean(error.message))).status
        except NotAllowed:
            return "lost"

    def outcome(self, status: str, retry_after: float | None = None) -> BackfillOutcome:
        return BackfillOutcome(self.job.job_id, status, self.total_processed, self.total_skipped, retry_after)


Driver = Callable[[], Awaitable[BackfillOutcome]]
