"""How an estimate and a backfill job are shown: once, or live until the job ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from postroom.cli.terminal import console, print_table, shown
from postroom.domain.backfill import BackfillStatus
from postroom.domain.money import Micros, format_dollars
from postroom.switchboard.backfill.job import FINISHED
from postroom.switchboard.backfill.operations import Backfill, BackfillView
from postroom.switchboard.estimate import side_by_side

_BINDS = {
    "rate_limit_per_hour": "the limit of messages an hour",
    "daily_cost_cap_cents": "the cost cap of a day",
    "source_quota": "the quota of the source",
    "nothing": "nothing: there is nothing to do",
}


def print_estimate(estimate: Mapping[str, Any]) -> None:
    """For people. `--json` prints the estimate as it is."""
    about = "" if estimate["is_exact"] else "about "
    where = "counted in the archive" if estimate["counted_in"] == "archive" else "listed at the source"
    margin = f", give or take {estimate['messages_margin']:,}" if estimate["messages_margin"] else ""
    console.print(f"Messages   {about}{estimate['messages']:,} to take in ({where}{margin})")
    console.print(f"           {about}{estimate['messages_full']:,} of them in full, for the model")
    console.print(f"           {about}{estimate['messages_left_out']:,} others looked at and left out")
    cost = estimate["cost_microdollars"]
    if cost is None:
        console.print(
            "Cost       not known: no model with a price is set up; the job would stop at the first that needs it"
        )
    else:
        each = f"{estimate['tokens_per_message']:,} tokens each, {estimate['price']}"
        console.print(f"Cost       about {format_dollars(Micros(cost))} ({each})", markup=False)
    console.print(f"Duration   about {_spoken(estimate['seconds'])}; what decides is {_BINDS[estimate['binds']]}")


def _spoken(seconds: int) -> str:
    length = timedelta(seconds=seconds)
    if length >= timedelta(days=2):
        return f"{-(-seconds // 86_400)} days"
    if length >= timedelta(hours=2):
        return f"{-(-seconds // 3_600)} hours"
    minutes = max(1, -(-seconds // 60))
    return "a minute" if minutes == 1 else f"{minutes} minutes"


EVERY_S = 1.0

_OVER = FINISHED | {BackfillStatus.ERROR}


def print_view(view: BackfillView) -> None:
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


def _update(bar: Progress, task: TaskID, view: BackfillView) -> None:
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


def _line(view: BackfillView) -> str:
    why = view.job.error or view.job.status_reason
    return f"{view.job.status}: {_counts(view)}, {_money(view)}" + (f" ({why})" if why else "")


def _counts(view: BackfillView) -> str:
    return f"{view.job.rows_processed:,} taken in, {view.job.rows_skipped:,} skipped"


def _money(view: BackfillView) -> str:
    spent, cap = format_dollars(view.today.settled), format_dollars(view.job.cap)
    return f"{spent} of {cap} spent today, {format_dollars(view.today.reserved)} reserved"
