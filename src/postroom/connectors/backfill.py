"""The backfill pass: works on one job from its cursor until the job ends or is stopped, and reports its progress.

Messages are selected by their headers; a body is fetched only for what is ingested in full and is not in the
archive. The Switchboard stores cursor and counts, which move together, so that a crash neither loses nor doubles
anything: messages that were ingested but not reported are recognised and counted once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from postroom.connectors import metrics
from postroom.connectors.guidance import ConnectorGuidance
from postroom.connectors.intake import Handled, MailIntake, as_our_error
from postroom.connectors.metrics import Fate, PassName
from postroom.connectors.source_mail import Position, SourceMail, from_mailbox
from postroom.connectors.switchboard_client import SwitchboardAway, SwitchboardClient, TokenRefused, failed_mail
from postroom.connectors.walking import HEADERS, ArchiveWalk, MailboxWalk, WalkBatch, WalkScope, WalkWindow
from postroom.contract.backfill import BackfillProgressReply, LeasedBackfill, ProgressArguments
from postroom.contract.mail import TroubledMailArgument
from postroom.domain.clock import Backoff, Clock, retry
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.domain.terms import BackfillStatus
from postroom.mail.categories import facts_of, names_on
from postroom.mailboxes.errors import LoginNeeded, PermissionMissing
from postroom.mailboxes.protocol import Detail, Failed, Got, Mailbox, MissingMessage
from postroom.telemetry import logs

TRIES = 3
"""A message that fails this often is skipped, counted and named in the log."""
ACTIVE, LOST, SWITCHED_OFF = "active", "lost", "switched_off"
_MOST_OWED = 500
"""With more failing messages than this, no message is to blame; the cursor has to hold their ids."""
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
    """The job can go on after so many seconds."""


@dataclass(frozen=True, slots=True)
class BackfillCursor:
    """How far a job has come: everything at or after `place` is done, except for the messages that are `owed`, which
    failed and are tried again; with the number of attempts at each."""

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
    deadline: float | None = None
    """By the monotonic clock: then the pass yields and keeps the job for the next run."""
    cursor: BackfillCursor = field(default_factory=BackfillCursor)
    stride: int = 50
    """How many messages are offered at once; fewer while the hour's limit lets only few in."""
    _passed_over: list[TroubledMailArgument] = field(default_factory=list)
    _begun: bool = False
    _seq: int = 0
    _processed: int = 0
    _skipped: int = 0
    _total_processed: int = 0
    _total_skipped: int = 0
    _unanswered: ProgressArguments | None = None
    _reported_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._reported_at = self.clock.monotonic()

    async def begin(self) -> None:
        """Continue the job where it stands, or where this pass left it."""
        if self._begun:
            await self.report()
        else:
            self.cursor, self._begun = BackfillCursor.parse(self.job.cursor), True

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
        """Keep a message that failed for another attempt, or skip it after the last one."""
        tries = self.cursor.owed.get(key, 0) + 1
        if tries >= TRIES:
            self.drop(key)
            self._passed_over.append(failed_mail(key, error, archived=archived))
            log.warning("backfill.message_passed_over", message=key, reason=logs.clean(error.message))
            return
        if len(self.cursor.owed) >= _MOST_OWED:
            raise Retryable(f"{_MOST_OWED} messages of this job cannot be read: {error.message}")
        self.cursor = replace(self.cursor, owed=self.cursor.owed | {key: tries})

    def drop(self, key: str) -> None:
        """Count a message as skipped: not wanted, gone, or given up."""
        self._settled(key)
        self._skipped += 1

    def _settled(self, key: str) -> None:
        if key in self.cursor.owed:
            left = {name: tries for name, tries in self.cursor.owed.items() if name != key}
            self.cursor = replace(self.cursor, owed=left)

    async def report(self, status: BackfillStatus | None = None, error: str | None = None) -> BackfillProgressReply:
        """Report progress. Raises BackfillStopped unless the job is still active."""
        if self._passed_over:
            await self.switchboard.report_trouble(PassName.BACKFILL.lane, self._passed_over)
            self._passed_over = []
        if self._unanswered is not None:
            reply = await self._send(self._unanswered)
            if status is None:
                self._heed(reply)
        self._seq += 1
        cursor = self.cursor.to_json() if self._begun else None
        reply = await self._send(
            ProgressArguments(
                job_id=self.job.job_id,
                fence=self.job.fence,
                report_seq=self._seq,
                rows_processed=self._processed,
                rows_skipped=self._skipped,
                cursor=cursor,
                status=status,
                error=error,
            )
        )
        if status is None:
            self._heed(reply)
        return reply

    async def _send(self, report: ProgressArguments) -> BackfillProgressReply:
        """A report that got no answer may have arrived: its number makes repeating it harmless. Until it is answered
        it is repeated as it was, before any other: under another number its counts would count twice."""
        self._unanswered = report
        reply = await retry(lambda: self.switchboard.backfill_progress(report), _REPORT_BACKOFF, self.clock, attempts=2)
        self._unanswered = None
        self._processed -= report.rows_processed
        self._total_processed += report.rows_processed
        self._skipped -= report.rows_skipped
        self._total_skipped += report.rows_skipped
        self._reported_at = self.clock.monotonic()
        return reply

    def _heed(self, reply: BackfillProgressReply) -> None:
        if reply.status != ACTIVE:
            raise BackfillStopped(reply.status, reply.retry_after)
        if not self.switchboard.backfill_enabled:
            raise BackfillStopped(SWITCHED_OFF)

    async def wait(self, seconds: float) -> None:
        """Wait, and report now and then to learn whether the job is still ours."""
        while seconds > 0:
            step = min(seconds, max(_PAUSE_S, self.job.lease_s / 4))
            await self.clock.sleep(step)
            seconds -= step
            if self.clock.monotonic() - self._reported_at >= self.job.lease_s / 4:
                await self.report()

    async def give_way(self) -> None:
        """If the pass has used up its time, stop after reporting everything."""
        if self.deadline is not None and self.clock.monotonic() >= self.deadline:
            await self.report()
            raise BackfillStopped(ACTIVE, 0.0)

    async def keep_what_is_done(self) -> None:
        """A last report before the end, so that nothing is done again."""
        try:
            await self.report()
        except (PostroomError, BackfillStopped) as error:
            log.info("backfill.not_reported", problem=str(error))

    async def complete(self) -> str:
        return (await self.report(BackfillStatus.COMPLETED)).status

    async def fail(self, error: PostroomError) -> str:
        log.error("backfill.failed", problem=error.message)
        try:
            return (await self.report(BackfillStatus.ERROR, logs.clean(error.message))).status
        except NotAllowed:
            return LOST

    def outcome(self, status: str, retry_after: float | None = None) -> BackfillOutcome:
        return BackfillOutcome(self.job.job_id, status, self._total_processed, self._total_skipped, retry_after)


T = TypeVar("T")
_INGEST_AT_ONCE = 50
_NOT_THE_JOBS_FAULT = (LoginNeeded, PermissionMissing, TokenRefused)
"""The connector itself needs a person; the job waits and need not be resumed by hand."""
_BETWEEN_TRIES_S = 30.0
_LAST_WORDS_S = 10.0
_LAST_BATCH_S = 8.0


class BackfillPass:
    def __init__(
        self,
        switchboard: SwitchboardClient,
        mailbox: Mailbox,
        intake: MailIntake,
        guidance: ConnectorGuidance,
        clock: Clock,
        *,
        progress_interval: int = 50,
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._intake = intake
        self._guidance = guidance
        self._clock = clock
        self._interval = progress_interval
        self._held: BackfillWork | None = None
        self._polled_at: float | None = None

    def polls_in(self, every_s: float) -> float:
        """Seconds until the next run may ask for work; 0 as well for a run that still has some."""
        if self._polled_at is None or (self._held is not None and self._held.is_fresh):
            return 0.0
        return max(0.0, self._polled_at + every_s - self._clock.monotonic())

    async def run(self, budget_s: float | None = None) -> BackfillOutcome:
        """Work on the held job, or ask for one.

        Raises Retryable if a service is unavailable. Then, and after `budget_s`, the pass yields and keeps its job for
        the next run.
        """
        work = await self._at_hand()
        if work is None:
            return BackfillOutcome()
        work.deadline = None if budget_s is None else self._clock.monotonic() + budget_s
        self._held = None
        try:
            return await self._ended(work)
        except Retryable as error:
            self._held = work
            if not isinstance(error, SwitchboardAway):
                await _last_words(work)
            raise
        except (*_NOT_THE_JOBS_FAULT, asyncio.CancelledError):
            await _last_words(work)
            raise

    async def _at_hand(self) -> BackfillWork | None:
        if self._held is not None and self._held.is_fresh:
            return self._held
        self._polled_at = self._clock.monotonic()
        job = await self._switchboard.backfill_poll()
        if job is None:
            return None
        log.info("backfill.started", backfill_job=job.job_id, fence=job.fence, mode=job.params.mode)
        return BackfillWork(self._switchboard, job, self._clock)

    async def _ended(self, work: BackfillWork) -> BackfillOutcome:
        try:
            await self._work(work.job, work)
        except BackfillStopped as stop:
            if stop.status == ACTIVE:
                self._held = work
            log.info("backfill.stopped", backfill_job=work.job.job_id, status=stop.status)
            return work.outcome(stop.status, stop.retry_after)
        except _NOT_THE_JOBS_FAULT:
            raise
        except NotAllowed as error:
            # Another connector has the job now. What was ingested is recognised when it comes to it.
            log.warning("backfill.fence_refused", backfill_job=work.job.job_id, problem=error.message)
            return work.outcome(LOST)
        except (Fatal, BadInput) as error:
            return work.outcome(await work.fail(error))
        return work.outcome(await work.complete())

    async def _work(self, job: LeasedBackfill, work: BackfillWork) -> None:
        await work.begin()
        scope = self._scope(job)
        await self._settle_owed(job, scope, work)
        in_archive = ArchiveWalk(self._switchboard, scope, self._headers_read())
        walk = in_archive if await in_archive.is_complete() else MailboxWalk(self._mailbox, scope)
        async for stretch in walk.stretches(work.cursor.place):
            await self._through(stretch, job, work)
            await self._settle_owed(job, scope, work)
        while work.cursor.owed:
            await work.wait(_BETWEEN_TRIES_S)
            await self._settle_owed(job, scope, work)

    def _headers_read(self) -> frozenset[str]:
        """Every header that a decision uses, so that mail from the archive is treated like mail from the source."""
        read = self._guidance.categories().headers_read
        return frozenset({*HEADERS, *read, *self._guidance.policy().headers_read})

    def _scope(self, job: LeasedBackfill) -> WalkScope:
        params = job.params
        names = params.target_categories
        query = self._guidance.categories().query(names, params.category_from) if names else ""
        return WalkScope(WalkWindow.of(params.date_from, params.date_to), query, frozenset(params.includes))

    async def _through(self, stretch: WalkBatch, job: LeasedBackfill, work: BackfillWork) -> None:
        self._refuse_outage(stretch)
        for key, error in stretch.failures.items():
            work.owe(key, error)
        left = stretch.mails
        while left:  # a report may take the job away, so none is made before there is more to do
            if work.unreported >= self._interval or not self._switchboard.backfill_enabled:
                await work.report()
            await work.give_way()
            left = left[await self._step(left[: min(work.stride, self._interval)], job, work) :]
        work.reach(stretch.reached)

    def _refuse_outage(self, stretch: WalkBatch) -> None:
        """Raise the error if every message failed: then no message is to blame."""
        first = next(iter(stretch.failures.values()), None)
        if not stretch.mails and len(stretch.failures) > 1 and isinstance(first, Retryable):
            raise first

    async def _handled(self, mails: Sequence[SourceMail], job: LeasedBackfill) -> list[Handled]:
        choices = {mail.id: self._choice(mail, job) for mail in mails}
        chosen = [mail for mail in mails if choices[mail.id] is None]
        taken = {each.mail.id: each for each in await self._intake.take(chosen, PassName.BACKFILL, job.job_id)}
        metrics.record_message(PassName.BACKFILL, Fate.NOT_SELECTED, len(mails) - len(chosen))
        return [choices[mail.id] or taken[mail.id] for mail in mails]

    def _choice(self, mail: SourceMail, job: LeasedBackfill) -> Handled | None:
        """Why it is not taken in; None where it is chosen."""
        try:
            return None if self._is_chosen(mail, job) else Handled(mail, Fate.NOT_SELECTED)
        except Exception as error:  # whatever its headers do to the selection, the others go on
            return Handled(mail, error=as_our_error(error))

    def _is_chosen(self, mail: SourceMail, job: LeasedBackfill) -> bool:
        """By its day and its headers alone, before any body is fetched."""
        if not job.params.target_categories:
            return True
        names = names_on(job.params.target_categories, job.params.category_from, mail.day)
        if not names:
            return False
        is_known = self._guidance.contacts.knows_sender(mail.headers)
        facts = facts_of(mail.headers, is_known=is_known, labels=mail.label_ids)
        return bool(self._guidance.categories().matching(facts, names))

    async def _step(
        self, mails: Sequence[SourceMail], job: LeasedBackfill, work: BackfillWork, *, moves: bool = True
    ) -> int:
        """Take in and count those before the first that is refused, and say how many are done. A refusal means that the
        job has to wait: the report that follows gives it back."""
        handled, refused = await _to_the_end(self._counted(mails, job, work, moves=moves))
        if refused is None:
            work.stride = min(work.stride * 2, _INGEST_AT_ONCE)
            return len(handled)
        refusal = handled[refused].refusal
        work.stride = max(1, refused)
        await work.report()
        await work.wait((refusal.retry_after if refusal else None) or _PAUSE_S)  # the wait was over by then
        return refused

    async def _counted(
        self, mails: Sequence[SourceMail], job: LeasedBackfill, work: BackfillWork, *, moves: bool
    ) -> tuple[list[Handled], int | None]:
        handled = await self._handled(mails, job)
        refused = next((number for number, each in enumerate(handled) if each.refusal), None)
        for each in handled[:refused]:
            work.count(each, moves=moves)
        return handled, refused

    async def _settle_owed(self, job: LeasedBackfill, scope: WalkScope, work: BackfillWork) -> None:
        """Try again what failed before."""
        mails: list[SourceMail] = []
        for answer in await self._mailbox.fetch(list(work.cursor.owed), Detail.HEADERS):
            match answer:
                case Got() if scope.admits(mail := from_mailbox(answer.message)):
                    mails.append(mail)
                case Got() | MissingMessage():
                    work.drop(answer.id)
                case Failed():
                    work.owe(answer.id, answer.error)
        while mails:
            mails = mails[await self._step(mails[: work.stride], job, work, moves=False) :]


async def _to_the_end(step: Coroutine[Any, Any, T]) -> T:
    """When stopped, still wait for the outcome of the batch on its way: the Switchboard may have taken it in
    already."""
    task = asyncio.create_task(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(TimeoutError, PostroomError):  # the next holder of the job offers it again
            await asyncio.wait_for(task, _LAST_BATCH_S)
        raise


async def _last_words(work: BackfillWork) -> None:
    with suppress(TimeoutError):  # the next holder of the job recognises what was not reported
        await asyncio.wait_for(work.keep_what_is_done(), _LAST_WORDS_S)
