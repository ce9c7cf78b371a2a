"""The backfill tools: those that steer jobs, and those with which a connector works on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import date, datetime
from typing import Any, Protocol

from postroom.audit import AuditFilter, list_entries
from postroom.contract.backfill import (
    AuditArguments,
    CreateArguments,
    EstimateArguments,
    JobArguments,
    ListArguments,
    NoArguments,
    PollArguments,
    ProgressArguments,
    SwitchArguments,
)
from postroom.db import Database
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.leases import ProgressReport
from postroom.switchboard.backfill.operations import Backfill, BackfillFilter, BackfillView, NewBackfill, usual_cap
from postroom.switchboard.toolbox import Answer, Tool, require_own_mailbox

_POLL_EVERY_S = 60.0
_HIDDEN = frozenset({"lease_holder", "last_report_seq", "refused_microdollars", "capped_day"})


class BackfillEstimator(Protocol):
    """Says beforehand what a job will bring, cost and take."""

    async def estimate(self, wanted: NewBackfill) -> Mapping[str, Any]: ...


class BackfillTools:
    def __init__(self, backfill: Backfill, database: Database, estimator: BackfillEstimator | None) -> None:
        self._backfill = backfill
        self._database = database
        self._estimator = estimator

    def tools(self) -> Iterator[Tool[Any]]:
        yield from self._steering()
        yield from self._looking()
        yield from self._working()

    def _steering(self) -> Iterator[Tool[Any]]:
        yield Tool(
            "create_backfill_job",
            Role.DASHBOARD,
            Permission.BACKFILL,
            "Create a job that recovers old mail of a mailbox, between two days and within limits of speed and money. "
            "Calling it is the owner's consent: show the answer of backfill.estimate first.",
            CreateArguments,
            self.create,
        )
        for name, done in (("pause", self.pause), ("cancel", self.cancel), ("resume", self.resume)):
            meaning = {
                "pause": "Stop a job and keep its place.",
                "cancel": "Stop a job for good; what it brought stays.",
                "resume": "Let a paused, capped or failed job go on from its place.",
            }[name]
            said = f"{meaning} Answers `{{status}}`."
            yield Tool(
                f"backfill.{name}",
                Role.DASHBOARD,
                Permission.BACKFILL,
                said,
                JobArguments,
                done,
                keeps_to_mailbox=True,
            )
        yield Tool(
            "backfill.switch",
            Role.DASHBOARD,
            Permission.BACKFILL,
            "Switch all backfill off or on. Off stops every running job; live mail goes on.",
            SwitchArguments,
            self.switch,
        )

    def _looking(self) -> Iterator[Tool[Any]]:
        listed = "Backfill jobs, newest first, with status, counters, spend and cursor."
        yield Tool("backfill.list", Role.DASHBOARD, Permission.READ, listed, ListArguments, self.list, reads_only=True)
        shown = "One job with its spend day by day and its speed."
        yield Tool(
            "backfill.show",
            Role.DASHBOARD,
            Permission.READ,
            shown,
            JobArguments,
            self.show,
            reads_only=True,
            keeps_to_mailbox=True,
        )
        yield Tool(
            "backfill.estimate",
            Role.DASHBOARD,
            Permission.BACKFILL,
            "What a job would bring, cost and take: messages, money by the price of the configured model, duration and "
            "what limits it. Creates nothing.",
            EstimateArguments,
            self.estimate,
            reads_only=True,
        )
        told = "Whether backfill is switched on, and who said so."
        yield Tool(
            "backfill.switch_state",
            Role.DASHBOARD,
            Permission.READ,
            told,
            NoArguments,
            self.switch_state,
            reads_only=True,
            keeps_to_mailbox=True,
        )
        audited = "Who did what to which job or switch, newest first; `next` asks for the page after."
        yield Tool("audit.list", Role.DASHBOARD, Permission.READ, audited, AuditArguments, self.audit, reads_only=True)

    def _working(self) -> Iterator[Tool[Any]]:
        yield Tool(
            "backfill.poll",
            Role.CONNECTOR,
            Permission.BACKFILL,
            "Ask for work: the oldest waiting job of your mailbox is yours under a lease, with `params`, `cursor` and "
            "`fence`; `job_id` null: nothing to do. At most once every 60 seconds.",
            PollArguments,
            self.poll,
        )
        yield Tool(
            "backfill.progress",
            Role.CONNECTOR,
            Permission.BACKFILL,
            "Report what was done since the last report, with the `cursor` to go on from; renews the lease. The "
            "`status` in the answer is authoritative: stop unless it is `active`.",
            ProgressArguments,
            self.progress,
            keeps_to_mailbox=True,
        )

    async def create(self, given: CreateArguments, caller: Caller) -> Answer:
        most = usual_cap(self._backfill.settings)
        if caller.token_id is not None and (given.daily_cost_cap_cents or 0) > most:
            raise NotAllowed(
                f"A token can create no job that may spend more than {most} cents a day, as the settings say; use the "
                "dashboard, or `postroom backfill` on the command line."
            )
        job = await self._backfill.create(caller, NewBackfill(**given.model_dump()))
        return {"job_id": job.id, "status": job.status.value}

    async def pause(self, given: JobArguments, caller: Caller) -> Answer:
        await self._own_job(given.job_id, caller)
        return {"status": (await self._backfill.pause(caller, given.job_id)).status.value}

    async def cancel(self, given: JobArguments, caller: Caller) -> Answer:
        await self._own_job(given.job_id, caller)
        return {"status": (await self._backfill.cancel(caller, given.job_id)).status.value}

    async def resume(self, given: JobArguments, caller: Caller) -> Answer:
        await self._own_job(given.job_id, caller)
        return {"status": (await self._backfill.resume(caller, given.job_id)).status.value}

    async def _own_job(self, job_id: str, caller: Caller) -> BackfillView:
        """A job of the mailbox that the caller is bound to; a job's mailbox never changes."""
        view = await self._backfill.show(job_id)
        require_own_mailbox(view.job.endpoint_identity, caller)
        return view

    async def list(self, given: ListArguments, caller: Caller) -> Answer:
        jobs = await self._backfill.list(BackfillFilter(**given.model_dump()))
        return {"jobs": [_summary(job) for job in jobs]}

    async def show(self, given: JobArguments, caller: Caller) -> Answer:
        view = await self._own_job(given.job_id, caller)
        days = [plain(asdict(day)) for day in view.days]
        speed = {"admitted_last_hour": view.admitted_last_hour, "retry_after": view.retry_after}
        return {"job": _summary(view.job), "today": plain(asdict(view.today)), "days": days, **speed}

    async def estimate(self, given: EstimateArguments, caller: Caller) -> Answer:
        if self._estimator is None:
            raise BadInput("connector_type", "this installation cannot estimate: no model is configured")
        return await self._estimator.estimate(NewBackfill(**given.model_dump()))

    async def switch(self, given: SwitchArguments, caller: Caller) -> Answer:
        return _switch(await self._backfill.turn_switch(caller, given.enabled))

    async def switch_state(self, given: NoArguments, caller: Caller) -> Answer:
        return _switch(await self._backfill.switch())

    async def audit(self, given: AuditArguments, caller: Caller) -> Answer:
        which = AuditFilter(**given.model_dump())
        page = await self._database.read(lambda tx: list_entries(tx, which))
        return {"entries": [plain(asdict(entry)) for entry in page.entries], "next": page.next_before_id}

    async def poll(self, given: PollArguments, caller: Caller) -> Answer:
        reply = await self._backfill.poll(caller, given.connector_type, given.endpoint_identity)
        enabled = {"backfill_enabled": reply.backfill_enabled}
        if reply.job is None:
            return {"job_id": None, "params": None, "cursor": None, "retry_after": _POLL_EVERY_S, **enabled}
        params = plain(asdict(reply.job))
        own = {name: params.pop(name) for name in ("job_id", "fence", "lease_s", "cursor")}
        return {**own, "params": params, "retry_after": reply.retry_after, **enabled}

    async def progress(self, given: ProgressArguments, caller: Caller) -> Answer:
        return plain(asdict(await self._backfill.progress(caller, ProgressReport(**given.model_dump()))))


def _summary(job: BackfillJob) -> dict[str, Any]:
    return plain({name: value for name, value in asdict(job).items() if name not in _HIDDEN})


def _switch(state: Any) -> dict[str, Any]:
    return plain({"backfill_enabled": state.in_force, **asdict(state)})


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON writes them: days and times as texts."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    return plain(value) if isinstance(value, Mapping) else value
