"""Tools for jobs of the queue: retry and cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from postroom import audit
from postroom.actions import requests
from postroom.audit import Actor
from postroom.contract import steering as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import CancelOutcome, FailedJobs, JobQueue
from postroom.switchboard.toolbox import Tool

T = TypeVar("T")


class JobTools:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield _tool(
            contract.RETRY_JOB, "Queue a failed or cancelled job again, and the action that it stands for.", self.retry
        )
        yield _tool(contract.CANCEL_JOB, "Cancel a job that waits or runs.", self.cancel)
        yield _tool(
            contract.RETRY_JOBS,
            "Queue several failed or cancelled jobs again; those that cannot be retried stay as they are.",
            self.retry_many,
        )
        yield _tool(
            contract.CANCEL_JOBS, "Cancel several jobs that wait or run; others stay as they are.", self.cancel_many
        )
        yield _tool(
            contract.RETRY_FAILED_JOBS,
            "Queue all failed jobs of a type again, and the actions that they stand for.",
            self.retry_failed,
        )

    async def retry(self, caller: Caller, given: contract.QueuedJobArguments) -> contract.JobReply:
        await self._write(caller, lambda tx, who: requests.retry_job(tx, self._queue, given.job, who))
        return contract.JobReply(job=given.job)

    async def cancel(self, caller: Caller, given: contract.QueuedJobArguments) -> contract.JobReply:
        """A finished job is refused."""
        await self._write(caller, lambda tx, who: self._cancel(tx, who, given.job))
        return contract.JobReply(job=given.job)

    def _cancel(self, tx: Tx, who: Actor, job: str) -> None:
        match self._queue.cancel_within(tx, job):
            case CancelOutcome.JOB_NOT_FOUND:
                raise NotFound("job", f"there is no job {job}")
            case CancelOutcome.NOT_RUNNING:
                raise BadInput("job", "has already finished, so it cannot be cancelled")
            case CancelOutcome.CANCELED:
                now = self._queue.clock.now()
                audit.record(tx, who, "job.cancel", ("job", job), now, after={"state": "canceled"})

    async def retry_many(self, caller: Caller, given: contract.QueuedJobsArguments) -> contract.ChangedJobs:
        def retry(tx: Tx, who: Actor, job: str) -> None:
            requests.retry_job(tx, self._queue, job, who)

        return await self._write(caller, lambda tx, who: _each(given.jobs, lambda job: retry(tx, who, job)))

    async def cancel_many(self, caller: Caller, given: contract.QueuedJobsArguments) -> contract.ChangedJobs:
        return await self._write(caller, lambda tx, who: _each(given.jobs, lambda job: self._cancel(tx, who, job)))

    async def retry_failed(self, caller: Caller, given: contract.JobTypeArguments) -> contract.RetriedJobs:
        which = FailedJobs(type=self._queue.catalogue[given.type].name)
        retried = await self._write(caller, lambda tx, who: requests.retry_failed_jobs(tx, self._queue, which, who))
        return contract.RetriedJobs(jobs=len(retried.queued), left=dict(retried.left))

    async def _write(self, caller: Caller, change: Callable[[Tx, Actor], T]) -> T:
        return await self._queue.database.write(lambda tx: change(tx, Actor.of(caller)))


def _each(wanted: Iterable[str], change: Callable[[str], None]) -> contract.ChangedJobs:
    """Change each; one that is refused, which changes nothing, does not keep the others from it."""
    left: dict[str, str] = {}
    jobs = list(dict.fromkeys(wanted))
    for job in jobs:
        try:
            change(job)
        except (BadInput, NotFound) as error:
            left[job] = error.message
    return contract.ChangedJobs(jobs=len(jobs) - len(left), left=left)


def _tool(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.ACT, description, run)
