"""`postroom jobs`: look at the queue, and set right what went wrong."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli.session import change_queue, look, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, age, console, parse_instant, print_json, print_table, shown
from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput, Fatal
from postroom.queue.inspection import JobFilter, JobRecord, StepRecord, list_jobs, show_job, stats

if TYPE_CHECKING:
    from postroom.app import App
    from postroom.audit import Actor
    from postroom.db import Tx
    from postroom.queue import JobQueue

app = typer.Typer(no_args_is_help=True, help="The job queue: list, show, retry, cancel, stats.")

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `jobs list` shows it.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Only jobs of this type, for example classify.")]


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option(help="Only this state: queued, running, completed, failed or canceled.")
    ] = None,
    type: TypeOption = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue: live, work or history.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 1000.")] = 50,
    json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    which = JobFilter(state, type, queue, limit)
    jobs = look(lambda reader: list_jobs(reader, which))
    if json:
        print_json(jobs)
        return
    now = SystemClock().now()
    print_table(
        ["id", "type", "state", "queue", "tier", "tries", "age", "last error"],
        (_row(job, now) for job in jobs),
        empty="No jobs match.",
    )


@app.command()
def show(job_id: JobId, json: JsonOption = False) -> None:
    """Show one job with its payload, result, errors and steps."""
    job, steps = look(lambda reader: show_job(reader, job_id))
    if json:
        print_json({"job": job, "steps": steps})
    else:
        _print_job(job, steps)


@app.command()
def retry(
    job_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One job; use the options to select several.")
    ] = None,
    type: TypeOption = None,
    since: Annotated[str | None, typer.Option(help="Failed at or after this time, with a time zone.")] = None,
    until: Annotated[str | None, typer.Option(help="Failed before this time, with a time zone.")] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Queue failed jobs again: one by its id, or all of a type, of a time window, or of both.

    Retrying the job of an action retries the action too.
    """
    from postroom.actions.requests import JobsRetried, retry_failed_jobs, retry_job
    from postroom.queue import FailedJobs

    many = type is not None or since is not None or until is not None
    if job_id is not None and many:
        raise BadInput("job", "name either one job, or a type or time window, not both")
    which = None if job_id else FailedJobs(type, parse_instant("since", since), parse_instant("until", until))

    def transaction(tx: Tx, queue: JobQueue, who: Actor) -> JobsRetried:
        if which is not None:
            return retry_failed_jobs(tx, queue, which, who)
        retry_job(tx, queue, str(job_id), who)
        return JobsRetried([str(job_id)], {})

    retried = change_queue(transaction, dry_run=dry_run)
    if json:
        print_json({"retried": retried.queued, "left": retried.left, "dry_run": dry_run})
        return
    console.print(f"{'Would queue' if dry_run else 'Queued'} {_jobs(len(retried.queued))} again.")
    for reason in retried.left.values():
        console.print(f"Left as it is: {reason}.", markup=False, soft_wrap=True)


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


@app.command()
def cancel(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Cancel a job that is waiting or running. A finished job stays as it is."""
    from postroom.queue import CancelOutcome

    async def run(app: App) -> CancelOutcome:
        return await app.queue.cancel(job_id, dry_run=dry_run)

    outcome = with_app(run)
    if json:
        print_json({"job": job_id, "outcome": outcome, "dry_run": dry_run})
    match outcome:
        case CancelOutcome.JOB_NOT_FOUND:
            raise Fatal(f"There is no job {job_id}; `postroom jobs list` shows the latest.")
        case CancelOutcome.NOT_RUNNING if not json:
            console.print("It had already finished; nothing was changed.")
        case CancelOutcome.CANCELED if not json:
            console.print("Would be canceled." if dry_run else "Canceled.")


@app.command("stats")
def stats_(json: JsonOption = False) -> None:
    """Count jobs by queue, tier and state, in the order in which they are served."""
    lines = look(stats)
    if json:
        print_json(lines)
        return
    now = SystemClock().now()
    print_table(
        ["queue", "tier", "state", "jobs", "ready", "oldest ready"],
        ([x.queue, x.tier, x.state, x.jobs, x.ready, age(x.oldest_ready_at, now)] for x in lines),
        empty="The queue is empty.",
    )


def _row(job: JobRecord, now: datetime) -> list[object]:
    tries = f"{job.attempts}/{job.max_attempts}"
    return [job.id, job.type, job.state, job.queue, job.tier, tries, age(job.created_at, now), job.last_error or ""]


def _print_job(job: JobRecord, steps: list[StepRecord]) -> None:
    for name in JobRecord.__dataclass_fields__:
        console.print(f"{name.replace('_', ' '):<14} {shown(getattr(job, name))}", markup=False)
    console.print()
    print_table(
        ["step", "attempt", "started", "finished", "outcome"],
        ([s.name, s.attempt, s.started_at, s.finished_at, s.error or shown(s.result)] for s in steps),
        empty="No steps were recorded.",
    )
