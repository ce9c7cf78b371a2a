"""The backfill tools: those that steer jobs, and those with which a connector works on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from postroom.audit import AuditFilter, list_entries
from postroom.contract import backfill as contract
from postroom.db import Database
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.kill_switch import SwitchState
from postroom.switchboard.backfill.leases import ProgressReport
from postroom.switchboard.backfill.operations import Backfill, BackfillFilter, BackfillView
from postroom.switchboard.backfill.terms import NewBackfill, usual_cap
from postroom.switchboard.toolbox import Tool, require_own_mailbox

_POLL_EVERY_S = 60.0


class BackfillEstimator(Protocol):
    """Says beforehand what a job will bring, cost and take."""

    async def estimate(self, wanted: NewBackfill) -> contract.EstimateReply: ...


class BackfillTools:
    def __init__(self, backfill: Backfill, database: Database, estimator: BackfillEstimator | None) -> None:
        self._backfill = backfill
        self._database = database
        self._estimator = estimator

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield from self._steering()
        yield from self._looking()
        yield from self._working()

    def _steering(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.CREATE,
            Role.DASHBOARD,
            Permission.BACKFILL,
            "Create a job that recovers old mail of a mailbox, between two days and within limits of speed and money. "
            "Calling it is the owner's consent: show the answer of backfill.estimate first.",
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
                contract.STEERING[name],
                Role.DASHBOARD,
                Permission.BACKFILL,
                said,
                done,
                keeps_to_mailbox=True,
            )
        yield Tool(
            contract.CHANGE,
            Role.DASHBOARD,
            Permission.BACKFILL,
            "Give a job another speed or daily cap; what is left out stays as it is.",
            self.change,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.JUDGE_AGAIN,
            Role.DASHBOARD,
            Permission.BACKFILL,
            "Judge a job's messages again where judging them failed. Answers how many.",
            self.judge_again,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.SWITCH,
            Role.DASHBOARD,
            Permission.BACKFILL,
            "Switch all backfill off or on. Off stops every running job; live mail goes on.",
            self.switch,
        )

    def _looking(self) -> Iterator[Tool[Any, Any]]:
        listed = "Backfill jobs, newest first, with status, counters, spend and cursor."
        yield Tool(contract.LIST, Role.DASHBOARD, Permission.READ, listed, self.list, reads_only=True)
        shown = "One job with its spend day by day and its speed."
        yield Tool(
            contract.SHOW,
            Role.DASHBOARD,
            Permission.READ,
            shown,
            self.show,
            reads_only=True,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.ESTIMATE,
            Role.DASHBOARD,
            Permission.BACKFILL,
            "What a job would bring, cost and take: messages, money by the price of the configured model, duration and "
            "what limits it. Creates nothing.",
            self.estimate,
            reads_only=True,
        )
        yield Tool(
            contract.SWITCH_STATE,
            Role.DASHBOARD,
            Permission.READ,
            "Whether backfill is switched on, and who said so.",
            self.switch_state,
            reads_only=True,
            keeps_to_mailbox=True,
        )
        audited = "Who did what to which job or switch, newest first; `next` asks for the page after."
        yield Tool(contract.AUDIT, Role.DASHBOARD, Permission.READ, audited, self.audit, reads_only=True)

    def _working(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.POLL,
            Role.CONNECTOR,
            Permission.BACKFILL,
            "Ask for work: the oldest job of your mailbox that can go on is yours under a lease, with `params`, "
            "`cursor` and `fence`; `job_id` null: nothing to do. At most once every 60 seconds.",
            self.poll,
        )
        yield Tool(
            contract.PROGRESS,
            Role.CONNECTOR,
            Permission.BACKFILL,
            "Report what was done since the last report, with the `cursor` to go on from; renews the lease. The "
            "`status` in the answer is authoritative: stop unless it is `active`.",
            self.progress,
            keeps_to_mailbox=True,
        )

    async def create(self, caller: Caller, given: contract.CreateArguments) -> contract.CreatedReply:
        if (given.daily_cost_cap_cents or 0) > usual_cap(self._backfill.settings):
            require_proof(caller, SensitiveChange.RAISE_CAP)
        job = await self._backfill.create(caller, NewBackfill(**given.model_dump()))
        return contract.CreatedReply(job_id=job.id, status=job.status)

    async def pause(self, caller: Caller, given: contract.JobArguments) -> contract.StatusReply:
        await self._own_job(given.job_id, caller)
        return contract.StatusReply(status=(await self._backfill.pause(caller, given.job_id)).status)

    async def cancel(self, caller: Caller, given: contract.JobArguments) -> contract.StatusReply:
        await self._own_job(given.job_id, caller)
        return contract.StatusReply(status=(await self._backfill.cancel(caller, given.job_id)).status)

    async def resume(self, caller: Caller, given: contract.JobArguments) -> contract.StatusReply:
        await self._own_job(given.job_id, caller)
        return contract.StatusReply(status=(await self._backfill.resume(caller, given.job_id)).status)

    async def change(self, caller: Caller, given: contract.ChangeArguments) -> contract.ChangedReply:
        job = (await self._own_job(given.job_id, caller)).job
        cap = given.daily_cost_cap_cents or 0
        if cap > max(usual_cap(self._backfill.settings), job.daily_cost_cap_cents):
            require_proof(caller, SensitiveChange.RAISE_CAP)
        changed = await self._backfill.change(
            caller, given.job_id, given.rate_limit_per_hour, given.daily_cost_cap_cents
        )
        return contract.ChangedReply.model_validate(changed)

    async def judge_again(self, caller: Caller, given: contract.JobArguments) -> contract.JudgeAgainReply:
        await self._own_job(given.job_id, caller)
        return contract.JudgeAgainReply(messages=await self._backfill.judge_again(caller, given.job_id))

    async def _own_job(self, job_id: str, caller: Caller) -> BackfillView:
        """A job of the mailbox that the caller is bound to; a job's mailbox never changes."""
        view = await self._backfill.show(job_id)
        require_own_mailbox(view.job.endpoint_identity, caller)
        return view

    async def list(self, caller: Caller, given: contract.ListArguments) -> contract.ListReply:
        jobs = await self._backfill.list(BackfillFilter(**given.model_dump()))
        return contract.ListReply(jobs=[contract.BackfillJobReply.model_validate(job) for job in jobs])

    async def show(self, caller: Caller, given: contract.JobArguments) -> contract.ShowReply:
        view = await self._own_job(given.job_id, caller)
        return contract.ShowReply.model_validate(view)

    async def estimate(self, caller: Caller, given: contract.EstimateArguments) -> contract.EstimateReply:
        if self._estimator is None:
            raise BadInput("connector_type", "this installation cannot estimate: no model is configured")
        return await self._estimator.estimate(NewBackfill(**given.model_dump()))

    async def switch(self, caller: Caller, given: contract.SwitchArguments) -> contract.SwitchReply:
        return _switch(await self._backfill.turn_switch(caller, given.enabled))

    async def switch_state(self, caller: Caller, given: contract.NoArguments) -> contract.SwitchReply:
        return _switch(await self._backfill.switch())

    async def audit(self, caller: Caller, given: contract.AuditArguments) -> contract.AuditReply:
        which = AuditFilter(**given.model_dump())
        page = await self._database.read(lambda tx: list_entries(tx, which))
        entries = [contract.AuditEntryReply.model_validate(entry) for entry in page.entries]
        return contract.AuditReply(entries=entries, next=page.next_before_id)

    async def poll(self, caller: Caller, given: contract.PollArguments) -> contract.BackfillPollReply:
        reply = await self._backfill.poll(caller, given.connector_type, given.endpoint_identity)
        job, enabled = reply.job, reply.backfill_enabled
        if job is None:
            return contract.BackfillPollReply(
                job_id=None, params=None, cursor=None, retry_after=_POLL_EVERY_S, backfill_enabled=enabled
            )
        return contract.BackfillPollReply(
            job_id=job.job_id,
            fence=job.fence,
            lease_s=job.lease_s,
            params=contract.JobParams.model_validate(job),
            cursor=job.cursor,
            backfill_enabled=enabled,
        )

    async def progress(self, caller: Caller, given: contract.ProgressArguments) -> contract.BackfillProgressReply:
        taken = await self._backfill.progress(caller, ProgressReport(**given.model_dump()))
        return contract.BackfillProgressReply.model_validate(taken)


def _switch(state: SwitchState) -> contract.SwitchReply:
    return contract.SwitchReply(
        backfill_enabled=state.in_force,
        environment=state.environment,
        database=state.database,
        changed_at=state.changed_at,
        changed_by=state.changed_by,
    )
