"""Why a backfill job waits, until when, and its place in line: what commands, pages and tools tell a person.

Jobs of a mailbox take turns. Those that can go on now are served in the order of their creation, those that have just
had a turn after the others; the rest follow in the order in which they can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from postroom import kill_switch
from postroom.db import Tx
from postroom.domain.terms import BackfillStatus
from postroom.kill_switch import SwitchState
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import ledger, rate
from postroom.switchboard.backfill.job import BackfillJob, job_from_row, jobs_table
from postroom.switchboard.backfill.leases import UNDECIDED_FOR_A_TURN, Obstacle, WaitReason, live_mail_waits, obstacle
from postroom.switchboard.backfill.rate import Admitted
from postroom.switchboard.backfill.undecided import Backlog, backlog, count_undecided


@dataclass(frozen=True, slots=True)
class JobWait:
    reason: WaitReason
    text: str
    """In words: why it waits, and what ends that."""
    until: datetime | None = None
    """When it can go on by itself; None where that depends on something without a time."""
    place: int | None = None
    """Its place among the waiting jobs of its mailbox, from 1."""


@dataclass(frozen=True, slots=True)
class MailboxLine:
    """The jobs of one mailbox that wait for their turn, in that order. Pure."""

    waiting: Sequence[tuple[BackfillJob, Obstacle | None]]
    is_busy: bool
    """A connector is at work on another job of the mailbox."""

    @classmethod
    def of(
        cls,
        jobs: Sequence[BackfillJob],
        admitted: Mapping[str, Sequence[Admitted]],
        live_waits: bool,
        undecided: Mapping[str, Backlog],
        now: datetime,
    ) -> MailboxLine:
        pending = [job for job in jobs if job.status is BackfillStatus.PENDING and job.walked_at is None]
        waiting = [
            (job, _next_obstacle(job, admitted.get(job.id, []), live_waits, undecided.get(job.id, Backlog()), now))
            for job in pending
        ]
        waiting.sort(key=lambda each: (each[1].wait if each[1] else timedelta(), *_place(each[0])))
        return cls(waiting, any(job.status is BackfillStatus.ACTIVE for job in jobs))

    def wait_of(self, job: BackfillJob, now: datetime) -> JobWait:
        place = 1 + [each.id for each, _ in self.waiting].index(job.id)
        blocked = self.waiting[place - 1][1]
        among = f" It is number {place} of {len(self.waiting)} in line." if len(self.waiting) > 1 else ""
        if blocked is None:
            return JobWait(WaitReason.LINE, self._turn(place) + among, place=place)
        why = blocked.why[:1].upper() + blocked.why[1:]
        if blocked.reason is not WaitReason.HOUR:
            then = (
                "it goes on when some are" if blocked.reason is WaitReason.UNDECIDED else "it goes on when none waits"
            )
            return JobWait(blocked.reason, f"{why}; {then}.{among}", place=place)
        until = now + blocked.wait
        return JobWait(blocked.reason, f"{why}; it goes on from {_spoken(until)}.{among}", until, place)

    def _turn(self, place: int) -> str:
        if self.is_busy:
            return "It waits for its turn: another job of this mailbox is at work."
        if place > 1:
            return "It waits for its turn: other jobs of this mailbox come first."
        return "It waits for its connector, which asks for work every minute."


def _place(job: BackfillJob) -> tuple[bool, datetime, datetime, str]:
    """As `poll` has it: those that gave up a turn come after the others."""
    return job.turn_ends_at is not None, job.turn_ends_at or job.created_at, job.created_at, job.id


def _next_obstacle(
    job: BackfillJob, admitted: Sequence[Admitted], live_waits: bool, undecided: Backlog, now: datetime
) -> Obstacle | None:
    limit = job.rate_limit_per_hour
    hour, is_full = rate.wait(admitted, limit, now, rate.worth_a_turn(limit)), bool(rate.wait(admitted, limit, now))
    return obstacle(job, hour, live_waits, undecided, is_full=is_full, most_undecided=UNDECIDED_FOR_A_TURN)


def waits(tx: Tx, settings: BackfillSettings, jobs: Sequence[BackfillJob], now: datetime) -> dict[str, JobWait]:
    """By job id, for those of the jobs that wait for something other than a person."""
    switch = kill_switch.state(tx, settings)
    lines = {} if not switch.in_force else _lines(tx, jobs, now)
    found: dict[str, JobWait] = {}
    for job in jobs:
        is_deciding = job.walked_at is not None and job.status in (BackfillStatus.ACTIVE, BackfillStatus.PENDING)
        if job.status is BackfillStatus.COST_CAPPED:
            found[job.id] = _capped(job, settings, switch, now)
        elif is_deciding and switch.in_force:
            found[job.id] = _deciding(job, count_undecided(tx, job.id))
        elif job.status is BackfillStatus.PENDING:
            line = lines.get((job.connector_type, job.endpoint_identity))
            found[job.id] = line.wait_of(job, now) if line else _off(switch)
    return found


def _lines(tx: Tx, jobs: Sequence[BackfillJob], now: datetime) -> dict[tuple[str, str], MailboxLine]:
    """The lines that these jobs stand in."""
    mailboxes = {job.endpoint_identity for job in jobs if job.status is BackfillStatus.PENDING}
    if not mailboxes:
        return {}
    table = jobs_table(tx)
    at_stake = table.c.endpoint_identity.in_(sorted(mailboxes)) & table.c.status.in_(
        [BackfillStatus.PENDING, BackfillStatus.ACTIVE]
    )
    all_of_them = [job_from_row(row) for row in tx.execute(select(table).where(at_stake))]
    admitted, live_waits = rate.last_hours(tx, [job.id for job in all_of_them], now), live_mail_waits(tx)
    by_mailbox: dict[tuple[str, str], list[BackfillJob]] = {}
    for job in all_of_them:
        by_mailbox.setdefault((job.connector_type, job.endpoint_identity), []).append(job)
    undecided = {job.id: backlog(tx, job.id, now) for job in all_of_them}
    return {mailbox: MailboxLine.of(mine, admitted, live_waits, undecided, now) for mailbox, mine in by_mailbox.items()}


def _deciding(job: BackfillJob, left: int) -> JobWait:
    messages = "one message is" if left == 1 else f"{left:,} messages are"
    why = "" if job.status_reason is None else f" {job.status_reason}"
    return JobWait(WaitReason.UNDECIDED, f"All of its mail is in; {messages} still to be decided.{why}")


def _off(switch: SwitchState) -> JobWait:
    return JobWait(WaitReason.SWITCH, f"All backfill is off: {switch.reason}. {switch.remedy}")


def _capped(job: BackfillJob, settings: BackfillSettings, switch: SwitchState, now: datetime) -> JobWait:
    why = job.status_reason or "the day's cap is reached"
    why = f"{why[:1].upper()}{why[1:]}."
    if not job.auto_resume:
        return JobWait(WaitReason.CAP, f"{why} Resume it by hand to continue.")
    if not switch.in_force:
        return JobWait(WaitReason.CAP, f"{why} It resumes by itself once backfill is on again.")
    until = ledger.next_day(now, settings.zone)
    return JobWait(WaitReason.CAP, f"{why} It then resumes by itself.", until)


def _spoken(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
