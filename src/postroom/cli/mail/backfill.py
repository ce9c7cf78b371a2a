"""`postroom backfill`: recover old mail under a budget.

Every change is made in the name of the person at the terminal, through the functions that the Switchboard's tools
call, and is recorded in the audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from postroom.app import App
from postroom.cli.session import me, with_app
from postroom.cli.terminal import (
    DryRunOption,
    JsonOption,
    console,
    duration,
    errors,
    parse_day,
    print_json,
    print_table,
    shown,
)
from postroom.domain.backfill import BackfillMode, BackfillStatus, Include
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.money import MICROS_PER_CENT, Micros, format_dollars
from postroom.kill_switch import SwitchState
from postroom.switchboard import retention
from postroom.switchboard.backfill.job import FINISHED, BackfillJob
from postroom.switchboard.backfill.operations import Backfill, BackfillFilter, BackfillView
from postroom.switchboard.backfill.terms import NewBackfill
from postroom.switchboard.backfill.waiting import JobWait
from postroom.switchboard.estimate import expected_rows, side_by_side
from postroom.switchboard.retention import Pruned

app = typer.Typer(no_args_is_help=True, help="Recover old mail within a budget: estimate, create, watch and control.")

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `backfill list` shows it.")]
AccountOption = Annotated[str, typer.Option(help="The mailbox, by its address.")]
CategoryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--category",
        metavar="NAME[:DAY]",
        help="finance, health, relationship, travel; may be repeated. Each goes back as far as it usually does, or to "
        "a day of its own: travel:2020-01-01.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all-mail", help="All mail of the days, whatever its category.")]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="DAY", help="The first day; default: as far back as the categories go.")
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day, included; default: today.")]
RateOption = Annotated[int | None, typer.Option("--rate", metavar="N", help="Messages in any hour; default 100.")]
CapOption = Annotated[
    int | None, typer.Option("--cap-cents", metavar="N", help="The most to spend in a day, in cents; default 500 ($5).")
]
BackgroundOption = Annotated[
    bool, typer.Option("--background", help="Run only while no live mail is waiting; slow and cheap.")
]
IncludeOption = Annotated[
    list[Include] | None, typer.Option("--include", help="Also take in mail that is normally left out.")
]
ResumeOption = Annotated[
    bool | None,
    typer.Option("--auto-resume/--no-auto-resume", help="Resume automatically the day after the cap is reached."),
]

RulesOnlyOption = Annotated[bool, typer.Option("--rules-only", help="Ask no model: rules decide alone, at no cost.")]


@app.command()
def estimate(
    account: AccountOption,
    category: CategoryOption = None,
    all_mail: AllOption = False,
    first: FromOption = None,
    last: ToOption = None,
    rate: RateOption = None,
    cap_cents: CapOption = None,
    background: BackgroundOption = False,
    include: IncludeOption = None,
    rules_only: RulesOnlyOption = False,
    json: JsonOption = False,
) -> None:
    """Estimate the messages, cost and duration of a backfill. Nothing is started."""

    async def run(app: App) -> None:
        which = _which(app, category, all_mail, first, last)
        new = replace(
            _wanted(account, which, rate, cap_cents, background, include), uses_model=False if rules_only else None
        )
        found = (await app.estimator().estimate(new)).wire()
        if json:
            print_json(found)
        else:
            _print_estimate(found)

    with_app(run)


@app.command()
def create(
    account: AccountOption,
    category: CategoryOption = None,
    all_mail: AllOption = False,
    first: FromOption = None,
    last: ToOption = None,
    rate: RateOption = None,
    cap_cents: CapOption = None,
    background: BackgroundOption = False,
    include: IncludeOption = None,
    auto_resume: ResumeOption = None,
    rules_only: RulesOnlyOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to the estimate without being asked.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Create a job, after showing an estimate and asking whether you agree."""

    async def run(app: App) -> None:
        which = _which(app, category, all_mail, first, last)
        new = replace(
            _wanted(account, which, rate, cap_cents, background, include),
            auto_resume=auto_resume,
            uses_model=False if rules_only else None,
        )
        await app.backfill.create(me(), new, dry_run=True)  # mistakes are reported before the person is asked
        found = await _estimated(app, new)
        if found is not None and not json:
            _print_estimate(found)
        if not yes and not dry_run:
            await asyncio.to_thread(typer.confirm, "Start this backfill?", abort=True, err=True)
        job = await app.backfill.create(me(), replace(new, estimate=found), dry_run=dry_run)
        if json:
            print_json(_as_json(job, dry_run))
        else:
            console.print("Would create it." if dry_run else f"Created {job.id}; it waits for its connector.")

    with_app(run)


@app.command("list")
def list_(
    account: Annotated[str | None, typer.Option(help="Only this mailbox.")] = None,
    status: Annotated[str | None, typer.Option(help=f"Only this status: {', '.join(BackfillStatus)}.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 1000.")] = 50,
    json: JsonOption = False,
) -> None:
    """List backfill jobs, newest first."""
    which = BackfillFilter(endpoint_identity=account, status=status, limit=limit)

    async def run(app: App) -> None:
        jobs = await app.backfill.list(which)
        if json:
            print_json(jobs)
            return
        waiting = await app.backfill.waits(jobs)
        print_table(
            ["id", "mailbox", "status", "days", "categories", "taken in", "skipped", "spent", "why"],
            (_row(job, waiting.get(job.id)) for job in jobs),
            empty="No backfill jobs; `postroom backfill create --help` says how to start one.",
        )

    with_app(run)


@app.command()
def show(
    job_id: JobId,
    follow_: Annotated[bool, typer.Option("--follow", help="Follow its progress until it ends.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one job: its progress, what it spent, and why it is waiting, if it is."""
    if follow_ and json:
        raise BadInput("follow", "is for people; call the command with --json repeatedly instead")

    async def run(app: App) -> None:
        if follow_:
            await _follow(app.backfill, job_id)
            return
        view: BackfillView = await app.backfill.show(job_id)
        if json:
            print_json(view)
        else:
            _print_view(view)

    with_app(run)


@app.command()
def pause(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Pause a job and keep its place. Its connector finishes the current message."""
    _steer(lambda app: app.backfill.pause(me(), job_id, dry_run=dry_run), dry_run, json)


@app.command()
def resume(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Resume a paused, capped or failed job from its place."""
    _steer(lambda app: app.backfill.resume(me(), job_id, dry_run=dry_run), dry_run, json)


@app.command()
def cancel(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Stop a job permanently. What it brought in stays."""
    _steer(lambda app: app.backfill.cancel(me(), job_id, dry_run=dry_run), dry_run, json)


@app.command()
def change(
    job_id: JobId,
    rate: Annotated[int | None, typer.Option("--rate", metavar="N", help="Messages in any hour.")] = None,
    cap_cents: Annotated[
        int | None, typer.Option("--cap-cents", metavar="N", help="The most to spend in a day, in cents.")
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Change a job's hourly rate or daily cap. A job stopped by its cap continues if there is room now."""
    if rate is None and cap_cents is None:
        raise BadInput("rate", "give a new --rate, a new --cap-cents, or both")
    job = with_app(lambda app: app.backfill.change(me(), job_id, rate, cap_cents, dry_run=dry_run))
    if json:
        limits = {"rate_limit_per_hour": job.rate_limit_per_hour, "daily_cost_cap_cents": job.daily_cost_cap_cents}
        print_json(_as_json(job, dry_run) | limits)
        return
    would = "It would take in" if dry_run else "It takes in"
    most = f"{job.rate_limit_per_hour:,} messages an hour and {format_dollars(job.cap)} a day"
    console.print(f"{would} at most {most}; it is {job.status}.", markup=False)


@app.command("judge-again")
def judge_again(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Judge a job's messages again where judging them failed."""
    count = with_app(lambda app: app.backfill.judge_again(me(), job_id, dry_run=dry_run))
    if json:
        print_json({"job_id": job_id, "messages": count, "dry_run": dry_run})
    else:
        messages = "1 message" if count == 1 else f"{count:,} messages"
        would = "would be" if dry_run else "is" if count == 1 else "are"
        console.print(f"{messages} {would} judged again.")


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


@app.command()
def switch(
    turn: Annotated[OnOff | None, typer.Argument(metavar="[on|off]", help="Default: only show the state.")] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Switch all backfill off or on. Off stops every running job within seconds, losing nothing."""

    async def run(app: App) -> SwitchState:
        if turn is None:
            return await app.backfill.switch()
        return await app.backfill.turn_switch(me(), turn is OnOff.ON, dry_run=dry_run)

    state = with_app(run)
    if json:
        print_json({"in_force": state.in_force, "state": state, "dry_run": dry_run})
        return
    would = "would be" if dry_run else "is"
    off = f"off: {state.reason}. {state.remedy}"
    console.print(f"Backfill {would} {'on.' if state.in_force else off}", markup=False, soft_wrap=True)


@app.command("retention")
def retention_(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Remove mail past its retention from the control database now, as the daily job does. The archive keeps it."""

    async def run(app: App) -> Pruned:
        return await retention.prune(
            app.database,
            retention.RetentionRule.from_settings(app.settings.retention),
            app.clock,
            protected=retention.certified(app.archive.backend),
            dry_run=dry_run,
        )

    pruned = with_app(run)
    if json:
        print_json(retention.describe_pruned(pruned))
        return
    would = "would go" if dry_run else "gone"
    console.print(f"{pruned.full:,} messages in full and {pruned.metadata:,} of metadata {would}.")
    if pruned.protected:
        console.print(f"{pruned.protected:,} stay because they have a removal certificate.")
    if pruned.undecided:
        console.print(f"{pruned.undecided:,} stay because nothing has decided them yet.")


def _steer(act: Callable[[App], Awaitable[BackfillJob]], dry_run: bool, json: bool) -> None:
    job = with_app(act)
    if json:
        print_json(_as_json(job, dry_run))
    else:
        console.print(f"{'It would be' if dry_run else 'It is'} {job.status} now.")


def _which(
    app: App, categories: list[str] | None, all_mail: bool, first: str | None, last: str | None
) -> dict[str, Any]:
    """The categories and days of a new job, as its fields."""
    if not categories and not all_mail:
        raise BadInput("category", f"choose from {', '.join(app.categories.defined.selectable)}, or give --all-mail")
    if categories and all_mail:
        raise BadInput("all-mail", "cannot be combined with a category")
    given = [
        (name, parse_day("category", day or None)) for name, _, day in (c.partition(":") for c in categories or [])
    ]
    names, today = [name for name, _ in given], app.clock.now().date()
    own = {name: day for name, day in given if day is not None}
    early, later = app.categories.defined.first_days(names, today, parse_day("from", first), own)
    days = {"date_from": early, "date_to": parse_day("to", last) or today, "category_from": later}
    return {"target_categories": names, **days}


def _wanted(
    account: str,
    which: Mapping[str, Any],
    rate: int | None,
    cap_cents: int | None,
    background: bool,
    include: list[Include] | None,
) -> NewBackfill:
    return NewBackfill(
        connector_type="gmail",
        endpoint_identity=account,
        **which,
        rate_limit_per_hour=rate,
        daily_cost_cap_cents=cap_cents,
        mode=BackfillMode.BACKGROUND if background else BackfillMode.SELECTIVE,
        includes=[item.value for item in include or []],
    )


async def _estimated(app: App, new: NewBackfill) -> Mapping[str, Any] | None:
    """None, with the reason on the screen, if it cannot be estimated; whether to begin is still the person's choice."""
    try:
        return (await app.estimator().estimate(new)).wire()
    except PostroomError as error:
        errors.print(f"There is no estimate: {error.message}", markup=False, soft_wrap=True)
        return None


def _as_json(job: BackfillJob, dry_run: bool) -> dict[str, Any]:
    return {"job_id": job.id, "status": job.status, "dry_run": dry_run}


def _row(job: BackfillJob, waiting: JobWait | None) -> list[object]:
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


def _print_estimate(estimate: Mapping[str, Any]) -> None:
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


def _print_view(view: BackfillView) -> None:
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


async def _follow(backfill: Backfill, job_id: str) -> None:
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
