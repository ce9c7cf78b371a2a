"""How `postroom backfill` shows estimates, jobs and their progress to people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from postroom.cli.terminal import console, duration, print_table, shown
from postroom.domain.money import MICROS_PER_CENT, Micros, format_dollars
from postroom.domain.terms import BackfillStatus
from postroom.switchboard.backfill.job import FINISHED, BackfillJob
from postroom.switchboard.backfill.operations import Backfill, BackfillView
from postroom.switchboard.backfill.waiting import JobWait
from postroom.switchboard.estimate import expected_rows, side_by_side


def job_row(job: BackfillJob, waiting: JobWait | None) -> list[object]:
    categories = ", ".join(job.target_categories) or "all mail"
    days, spent = _days(job), format_dollars(job.spent_microdollars)
    why = waiting.text if waiting else job.error or job.status_reason or ""
    counts = job.rows_processed, job.rows_skipped
    return [job.id, job.endpoint_identity, job.status, days, categories, *counts, spent, why]


def _days(job: BackfillJob) -> str:
    later = "".join(f"; {name} from {day}" for name, day in job.category_from.items())
    return f"{job.date_from} to {job.date_to}{later}"


_BINDS = {
    "rate_limit_per_hour": "the hourly rate limit",
    "daily_cost_cap_cents": "the daily cost cap",
    "daily_ceiling": "the share of the model's ceiling that all backfill has (`postroom model ceiling`)",
    "source_quota": "the quota of the source",
    "nothing": "nothing; there is nothing to do",
}


def print_estimate(estimate: Mapping[str, Any]) -> None:
    """For people. `--json` prints the estimate as it is."""
    about = "" if estimate["is_exact"] else "about "
    where = "counted in the archive" if estimate["counted_in"] == "archive" else "listed at the source"
    margin = f", give or take {estimate['messages_margin']:,}" if estimate["messages_margin"] else ""
    console.print(f"Messages   {about}{estimate['messages']:,} to take in ({where}{margin})")
    in_full = f"           {about}{estimate['messages_full']:,} of them in full"
    console.print(f"{in_full}, {estimate['messages_asked']:,} for the model" if estimate["uses_model"] else in_full)
    console.print(f"           {about}{estimate['messages_left_out']:,} others examined and left out")
    if estimate["messages_known"]:
        console.print(f"           {about}{estimate['messages_known']:,} taken in before; they cost nothing")
    cost = estimate["cost_microdollars"]
    if not estimate["uses_model"]:
        why = ": no model with a known price is configured" if cost is None else ""
        console.print(f"Cost       none{why}. Rules decide alone; what none decides is left as it is")
    else:
        each = f"{estimate['tokens_per_message']:,} tokens each, {estimate['price']}"
        near = "about " if cost >= MICROS_PER_CENT else ""
        console.print(f"Cost       {near}{format_dollars(Micros(cost))} ({each})", markup=False)
    console.print(f"Duration   about {_spoken(estimate['seconds'])}; limited by {_BINDS[estimate['binds']]}")
    for number, term in enumerate(estimate["retention"]):
        console.print(f"{'Kept' if number == 0 else '':<11}{term}", markup=False)
    console.print("           the archive keeps every message")


def _spoken(seconds: int) -> str:
    length = timedelta(seconds=seconds)
    if length >= timedelta(days=2):
        return f"{-(-seconds // 86_400)} days"
    if length >= timedelta(hours=2):
        return f"{-(-seconds // 3_600)} hours"
    minutes = max(1, -(-seconds // 60))
    return "a minute" if minutes == 1 else f"{minutes} minutes"


_FOLLOW_EVERY_S = 1.0

_OVER = FINISHED | {BackfillStatus.ERROR}


def print_view(view: BackfillView) -> None:
    job = view.job
    lines = {
        "job": job.id,
        "mailbox": f"{job.endpoint_identity} ({job.connector_type})",
        "status": job.status,
        "why": _why(view),
        "until": None if view.waiting is None else view.waiting.until,
        "in line": None if view.waiting is None else view.waiting.place,
        "days": _days(job),
        "categories": ", ".join(job.target_categories) or "all mail",
        "also": ", ".join(job.includes) or None,
        "mode": job.mode,
        "taken in": f"{job.rows_processed:,} ({job.rows_skipped:,} skipped)",
        "decided": _judged(view),
        "not judged": _never_judged(view),
        "last hour": f"{view.admitted_last_hour:,} of {job.rate_limit_per_hour:,}",
        "today": _money(view),
        "uncertain": _uncertain(view),
        "spent": f"{format_dollars(job.spent_microdollars)} in all",
        "agreed": f"{job.consent_by}, {shown(job.consent_at)}",
        "started": job.started_at,
        "ended": job.completed_at,
        "lease": _lease(job),
    }
    for name, value in lines.items():
        if value is not None:
            console.print(f"{name:<11}{shown(value)}", markup=False, soft_wrap=True)
    compared = side_by_side(job, view.taken_in)
    if compared is not None:
        console.print()
        rows = (
            [word, form(compared[name]["estimated"]), form(compared[name]["actual"])]
            for name, (word, form) in _COMPARED.items()
        )
        print_table(["", "estimated", "actual"], rows, empty="")


def _lease(job: BackfillJob) -> str | None:
    """Who works on it; one that waits or is over has no holder, whatever its row still says."""
    if job.status is not BackfillStatus.ACTIVE or job.lease_expires_at is None:
        return None
    return f"{job.lease_holder} until {shown(job.lease_expires_at)}"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


_COMPARED: Mapping[str, tuple[str, Callable[[int | None], str]]] = {
    "messages": ("messages", _number),
    "left_out": ("left out", _number),
    "cost_microdollars": ("cost", lambda cost: "-" if cost is None else format_dollars(Micros(cost))),
    "seconds": ("duration", lambda seconds: "-" if seconds is None else duration(seconds)),
}
"""The figures of `side_by_side`, in the words and forms that people read."""


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
            await backfill.clock.sleep(_FOLLOW_EVERY_S)
    if console.is_terminal:
        console.print(last, markup=False, soft_wrap=True)


def _update(bar: Progress, task: TaskID, view: BackfillView) -> None:
    job = view.job
    expected = expected_rows(job)
    bar.update(
        task,
        description=job.status,
        total=None if not expected else max(expected, job.rows_processed),
        completed=job.rows_processed,
        counts=_counts(view),
        money=_money(view),
    )


def _line(view: BackfillView) -> str:
    why = _why(view)
    return f"{view.job.status}: {_counts(view)}, {_money(view)}" + (f" ({why})" if why else "")


def _judged(view: BackfillView) -> str:
    mail = view.judged
    parts = {
        "by rules": mail.by_rule,
        "learned": mail.learned,
        "by the model": mail.by_model,
        "left as they are": mail.left_alone,
        "for review": mail.for_review,
        "to be decided": view.undecided,
    }
    return ", ".join(f"{count:,} {how}" for how, count in parts.items() if count) or "none yet"


def _uncertain(view: BackfillView) -> str | None:
    """Calls whose answer never came count at their most."""
    if not view.uncertain:
        return None
    return f"{format_dollars(view.uncertain)} of it: the answer of a model call never came, so it counts at its most"


def _never_judged(view: BackfillView) -> str | None:
    if not view.never_judged:
        return None
    messages = "1 message" if view.never_judged == 1 else f"{view.never_judged:,} messages"
    return f"{messages}; `postroom backfill judge-again {view.job.id}` tries again"


def _why(view: BackfillView) -> str | None:
    return view.waiting.text if view.waiting else view.job.error or view.job.status_reason


def _counts(view: BackfillView) -> str:
    return f"{view.job.rows_processed:,} taken in, {view.job.rows_skipped:,} skipped"


def _money(view: BackfillView) -> str:
    if not view.job.uses_model and not view.today.total:
        return "rules decide alone, at no cost"
    spent, cap = format_dollars(view.today.spent), format_dollars(view.job.cap)
    return f"{spent} of {cap} spent today, {format_dollars(view.today.reserved)} reserved"
