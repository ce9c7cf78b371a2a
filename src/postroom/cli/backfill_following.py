"""How one backfill job is shown to people: once, or live until it ends."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from postroom.cli.output import console, print_table, shown
from postroom.domain.money import format_dollars
from postroom.switchboard.backfill.jobs import JobView
from postroom.switchboard.backfill.service import Backfill
from postroom.switchboard.backfill.transitions import FINISHED, Status
from postroom.switchboard.estimate import side_by_side

EVERY_S = 1.0

_OVER = FINISHED | {Status.ERROR}


def print_view(view: JobView) -> None:
    job = view.job
    lines = {
        "job": job.id,
        "mailbox": f"{job.endpoint_identity} ({job.connector_type})",
        "status": job.status,
        "why": job.error or job.status_reason,
        "days": f"{job.date_from} to {job.date_to}",
        "categories": ", ".join(job.target_categories) or "all mail",
        "also": ", ".join(job.includes) or None,
        "mode": job.mode,
        "taken in": f"{job.rows_processed:,} ({job.rows_skipped:,} skipped)",
        "last hour": f"{view.admitted_last_hour:,} of {job.rate_limit_per_hour:,}",
        "today": _money(view),
        "spent": f"{format_dollars(job.spent_microdollars)} in all",
        "agreed": f"{job.consent_by}, {shown(job.consent_at)}",
        "started": job.started_at,
        "ended": job.completed_at,
        "lease": None if job.lease_holder is None else f"{job.lease_holder} until {shown(job.lease_expires_at)}",
    }
    for name, value in lines.items():
        if value is not None:
            console.print(f"{name:<11}{shown(value)}", markup=False, soft_wrap=True)
    compared = side_by_side(job)
    if compared is not None:
        console.print()
        rows = ([name, both["estimated"], both["actual"]] for name, both in compared.items())
        print_table(["", "estimated", "actual"], rows, empty="")


async def follow(backfill: Backfill, job_id: str) -> None:
    """A line that lives until the job ends; a pipe gets a line whenever something changed."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("{task.fields[money]}"),
        TimeElapsedColumn(),
    )
    last = ""
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, counts="", money="")
        while True:
            view = await backfill.show(job_id)
            _update(bar, task, view)
            line = _line(view)
            if not console.is_terminal and line != last:
                console.print(line, markup=False, soft_wrap=True)
            last = line
            if view.job.status in _OVER:
                break
            await backfill.clock.sleep(EVERY_S)
    if console.is_terminal:
        console.print(last, markup=False, soft_wrap=True)


def _update(bar: Progress, task: TaskID, view: JobView) -> None:
    job = view.job
    expected = None if job.estimate is None else job.estimate.get("messages")
    bar.update(
        task,
        description=job.status,
        total=None if not expected else max(int(expected), job.rows_processed),
        completed=job.rows_processed,
        counts=_counts(view),
        money=_money(view),
    )


def _line(view: JobView) -> str:
    why = view.job.error or view.job.status_reason
    return f"{view.job.status}: {_counts(view)}, {_money(view)}" + (f" ({why})" if why else "")


def _counts(view: JobView) -> str:
    return f"{view.job.rows_processed:,} taken in, {view.job.rows_skipped:,} skipped"


def _money(view: JobView) -> str:
    spent, cap = format_dollars(view.today.settled), format_dollars(view.job.cap)
    return f"{spent} of {cap} spent today, {format_dollars(view.today.reserved)} reserved"
