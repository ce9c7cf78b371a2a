"""Backfill as tools, commands and the dashboard call it: each method is one transaction, by a caller with a name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from postroom import kill_switch
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.roles import Caller
from postroom.kill_switch import SwitchState
from postroom.queue import Handler, JobContext, JobType, KeyUse, Schedule
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import jobs, leases, switch
from postroom.switchboard.backfill.jobs import JobFilter, JobView, NewBackfill
from postroom.switchboard.backfill.leases import PollReply
from postroom.switchboard.backfill.model import BackfillJob
from postroom.switchboard.backfill.progress import ProgressReply, Report
from postroom.switchboard.backfill.progress import progress as take_report

T = TypeVar("T")

UPKEEP = JobType("backfill.upkeep", key_use=KeyUse.REPEATABLE, time_limit=timedelta(minutes=1), keep_completed=1)
UPKEEP_EVERY_MINUTE = Schedule("backfill.upkeep", UPKEEP.name, "every 1m")


class _TakenBack(Exception):
    """A dry run ends here: what the transaction did is undone."""


@dataclass(frozen=True)
class Backfill:
    database: Database
    settings: BackfillSettings
    categories: Collection[str]
    clock: Clock

    async def create(self, who: Caller, new: NewBackfill, *, dry_run: bool = False) -> BackfillJob:
        actor = Actor.of(who)
        return await self._write(
            lambda tx, now: jobs.create(tx, self.settings, self.categories, actor, new, now), dry_run
        )

    async def pause(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: jobs.pause(tx, job_id, Actor.of(who), now), dry_run)

    async def resume(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: jobs.resume(tx, self.settings, job_id, Actor.of(who), now), dry_run)

    async def cancel(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: jobs.cancel(tx, job_id, Actor.of(who), now), dry_run)

    async def list(self, which: JobFilter) -> list[BackfillJob]:
        return await self.database.read(lambda tx: jobs.list_jobs(tx, which))

    async def show(self, job_id: str) -> JobView:
        return await self.database.read(lambda tx: jobs.show(tx, self.settings, job_id, self.clock.now()))

    async def poll(self, who: Caller, connector_type: str, endpoint_identity: str) -> PollReply:
        return await self._write(
            lambda tx, now: leases.poll(tx, self.settings, who, connector_type, endpoint_identity, now)
        )

    async def progress(self, who: Caller, report: Report) -> ProgressReply:
        return await self._write(lambda tx, now: take_report(tx, self.settings, who, report, now))

    async def switch(self) -> SwitchState:
        return await self.database.read(lambda tx: kill_switch.state(tx, self.settings))

    async def turn_switch(self, who: Caller, on: bool, *, dry_run: bool = False) -> SwitchState:
        return await self._write(lambda tx, now: switch.turn(tx, self.settings, on, Actor.of(who), now), dry_run)

    async def upkeep(self) -> dict[str, int]:
        """What time alone brings about: silent connectors lose their leases, capped jobs get their new day, and what
        runs while backfill is switched off stops. Polling sees to the same; this is for when nobody polls."""
        return await self._write(lambda tx, now: upkeep(tx, self.settings, now))

    async def _write(self, change: Callable[[Tx, datetime], T], dry_run: bool = False) -> T:
        outcome: list[T] = []

        def run(tx: Tx) -> T:
            value = change(tx, self.clock.now())
            if dry_run:
                outcome[:] = [value]
                raise _TakenBack
            return value

        try:
            return await self.database.write(run)
        except _TakenBack:
            return outcome[0]


def upkeep(tx: Tx, settings: BackfillSettings, now: datetime) -> dict[str, int]:
    on = kill_switch.state(tx, settings)
    stopped = [] if on.in_force else switch.stop_running(tx, on, now)
    lost, turned = leases.expire_leases(tx, now), leases.turn_day(tx, settings, now)
    return {"switched_off": len(stopped), "leases_lost": len(lost), "days_turned": len(turned)}


def upkeep_handler(backfill: Backfill) -> Handler:
    async def handle(context: JobContext) -> dict[str, int]:
        return await backfill.upkeep()

    return handle
