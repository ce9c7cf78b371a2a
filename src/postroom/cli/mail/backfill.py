"""`postroom backfill`: recover old mail under a budget.

Every change is made in the name of the person at the terminal, through the functions that the Switchboard's tools
call, and is recorded in the audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from postroom.app import App
from postroom.cli.mail.backfill_display import follow, job_row, print_estimate, print_view
from postroom.cli.session import me, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, parse_day, print_json, print_table
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.money import format_dollars
from postroom.domain.terms import BackfillMode, BackfillStatus, Include
from postroom.kill_switch import SwitchState
from postroom.switchboard import retention
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.operations import BackfillFilter, BackfillView
from postroom.switchboard.backfill.terms import NewBackfill
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
            print_estimate(found)

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
            print_estimate(found)
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
            (job_row(job, waiting.get(job.id)) for job in jobs),
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
            await follow(app.backfill, job_id)
            return
        view: BackfillView = await app.backfill.show(job_id)
        if json:
            print_json(view)
        else:
            print_view(view)

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
