"""The backfill pass: works on one job from its cursor until the job ends or is stopped.

Messages are selected by their headers; a body is fetched only for what is ingested in full and is not in the
archive. Messages that were ingested but not reported before a crash are recognised and counted once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from postroom.connectors import metrics
from postroom.connectors.backfill_job import ACTIVE, LOST, BackfillOutcome, BackfillStopped, BackfillWork
from postroom.connectors.intake import ConnectorGuidance, Handled, MailIntake, as_our_error
from postroom.connectors.mcp_client import SwitchboardAway, TokenRefused
from postroom.connectors.metrics import Fate, PassName
from postroom.connectors.source_mail import SourceMail, from_mailbox
from postroom.connectors.switchboard_client import LeasedBackfill, SwitchboardClient
from postroom.connectors.walking import HEADERS, ArchiveWalk, MailboxWalk, WalkBatch, WalkScope, WalkWindow
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.mail.categories import Categories, facts_of, shipped
from postroom.mail.headers import Headers
from postroom.mailboxes.errors import LoginNeeded, PermissionMissing
from postroom.mailboxes.protocol import Detail, Failed, Got, Mailbox, MissingMessage
from postroom.telemetry import logs


class CategorySelector:
    def __init__(self, categories: Categories | None = None) -> None:
        self._categories = categories or shipped()

    @property
    def headers_read(self) -> frozenset[str]:
        return self._categories.headers_read

    def query(self, names: Sequence[str]) -> str:
        return self._categories.query(names)

    def selects(self, names: Sequence[str], headers: Headers, *, is_known: bool) -> bool:
        return bool(self._categories.matching(facts_of(headers, is_known=is_known), names))


log = logs.get(__name__)
T = TypeVar("T")
_INGEST_AT_ONCE = 50
_NOT_THE_JOBS_FAULT = (LoginNeeded, PermissionMissing, TokenRefused)
"""The connector itself needs a person's help; the job waits for it and is not to be resumed by hand."""
_BETWEEN_TRIES_S = 30.0
_PAUSE_S = 1.0
_LAST_WORDS_S = 10.0
_LAST_BATCH_S = 8.0


class MailSelector(Protocol):
    """Which categories of mail a job is after."""

    @property
    def headers_read(self) -> frozenset[str]:
        """The headers that it looks at."""

    def query(self, names: Sequence[str]) -> str:
        """For the source: everything that may belong."""

    def selects(self, names: Sequence[str], headers: Headers, *, is_known: bool) -> bool:
        """By its headers, whether a message belongs to any of these."""


class BackfillPass:
    def __init__(
        self,
        switchboard: SwitchboardClient,
        mailbox: Mailbox,
        intake: MailIntake,
        guidance: ConnectorGuidance,
        selector: MailSelector,
        clock: Clock,
        *,
        progress_interval: int = 50,
        patience_s: float | None = None,
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._intake = intake
        self._guidance = guidance
        self._selector = selector
        self._clock = clock
        self._interval = progress_interval
        self._patience_s = patience_s
        self._held: BackfillWork | None = None

    async def run(self, budget_s: float | None = None) -> BackfillOutcome:
        """Work on the job at hand, or ask for one. Raises Retryable where the world is in the way.

        Then, and after `budget_s`, the pass gives way with its job at hand; the next run goes on with it.
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
        job = await self._switchboard.backfill_poll()
        if job is None:
            return None
        log.info("backfill.started", backfill_job=job.job_id, fence=job.fence, mode=job.params.mode)
        return BackfillWork(self._switchboard, job, self._clock, self._patience_s)

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
            # Somebody else has the job now. What was ingested is recognised when they come to it.
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
        """All that anybody decides by, so that mail from the archive is judged like mail from the source."""
        return frozenset({*HEADERS, *self._selector.headers_read, *self._guidance.policy().headers_read})

    def _scope(self, job: LeasedBackfill) -> WalkScope:
        params = job.params
        query = self._selector.query(params.target_categories) if params.target_categories else ""
        return WalkScope(WalkWindow.of(params.date_from, params.date_to), query, frozenset(params.includes))

    async def _through(self, stretch: WalkBatch, job: LeasedBackfill, work: BackfillWork) -> None:
        self._refuse_outage(stretch)
        for key, error in stretch.failures.items():
            work.owe(key, error)
        left = stretch.mails
        while left:
            left = left[await self._step(left[: min(work.stride, self._interval)], job, work) :]
            if work.unreported >= self._interval or not self._switchboard.backfill_enabled:
                await work.report()
            await work.give_way()
        work.reach(stretch.reached)

    def _refuse_outage(self, stretch: WalkBatch) -> None:
        """Where nothing at all can be read, it is not the messages."""
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
        """By its headers alone, before any body is fetched."""
        names = job.params.target_categories
        if not names:
            return True
        return self._selector.selects(names, mail.headers, is_known=self._guidance.contacts.knows_sender(mail.headers))

    async def _step(
        self, mails: Sequence[SourceMail], job: LeasedBackfill, work: BackfillWork, *, moves: bool = True
    ) -> int:
        """Take in and count those before the first that is refused, wait where one is, and say how many are done."""
        handled, refused = await _to_the_end(self._counted(mails, job, work, moves=moves))
        if refused is None:
            work.stride = min(work.stride * 2, _INGEST_AT_ONCE)
            return len(handled)
        refusal = handled[refused].refusal
        work.stride = max(1, refused)
        told = await work.report()  # a job that was stopped says so here
        await work.wait_for_room(told.retry_after or (refusal.retry_after if refusal else None) or _PAUSE_S)
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
        """Another go at what could not be read before."""
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
    """Told to stop, still learn what became of the batch on its way: the Switchboard may have taken it in already."""
    task = asyncio.create_task(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(TimeoutError, PostroomError):  # whoever takes the job up offers it again
            await asyncio.wait_for(task, _LAST_BATCH_S)
        raise


async def _last_words(work: BackfillWork) -> None:
    with suppress(TimeoutError):  # whoever takes the job up recognises what was not told
        await asyncio.wait_for(work.keep_what_is_done(), _LAST_WORDS_S)
