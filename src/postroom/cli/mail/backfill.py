"""`postroom backfill`: recover old mail under a budget.

Every change is made in the name of the person at the terminal, through the functions that the Switchboard's tools
call, and is recorded in the audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import date
from enum import StrEnum
from typing import Annotated, Any

import typer

from postroom.app import App
from postroom.cli.mail.backfill_display import follow, print_estimate, print_view
from postroom.cli.session import me, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, print_json, print_table
from postroom.domain.backfill import BackfillMode, BackfillStatus, Include
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.money import format_dollars
from postroom.kill_switch import SwitchState
from postroom.mail.categories import shipped
from postroom.switchboard import retention
from postroom.switchboard.backfill.admission import JobSpending
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.operations import BackfillFilter, BackfillView, NewBackfill
from postroom.switchboard.retention import Pruned

app = typer.Typer(no_args_is_help=True, help="Recover old mail within a budget: estimate, create, watch and control.")

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `backfill list` shows it.")]
AccountOption = Annotated[str, typer.Option(help="The mailbox, by its address.")]
CategoryOption = Annotated[
    list[str] | None, typer.Option("--category", help="finance, health, relationship, travel; may be repeated.")
]
AllOption = Annotated[bool, typer.Option("--all-mail", help="All mail of the days, whatever its category.")]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="DAY", help="The first day; default: as far back as the categories go.")
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day, included; default: today.")]
RateOption = Annotated[int | None, typer.Option("--rate", metavar="N", help="Messages in any hour; default 100.")]
CapOption = Annotated[int | None, typer.Option("--cap-cents", metavar="N", help="Spend a day, in cents; default 500.")]
BackgroundOption = Annotated[bool, typer.Option("--background", help="Only while no live mail waits; slow and cheap.")]
IncludeOption = Annotated[list[Include] | None, typer.Option("--include", help="Mail that is left out otherwise.")]
ResumeOption = Annotated[
    bool | None, typer.Option("--auto-resume/--no-auto-resume", help="Go on by itself on the day after the cap.")
]


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
    json: JsonOption = False,
) -> None:
    """Say what a backfill would bring, cost and take. Nothing is begun."""

    async def run(app: App) -> None:
        days = _days(app, category, all_mail, first, last)
        new = _wanted(account, category, days, rate, cap_cents, background, include)
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
    yes: Annotated[bool, typer.Option("--yes", help="You agree to what it will bring and cost; do not ask.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Create a job, after showing what it will bring, cost and take, and asking whether you agree."""

    async def run(app: App) -> None:
        days = _days(app, category, all_mail, first, last)
        new = replace(_wanted(account, category, days, rate, cap_cents, background, include), auto_resume=auto_resume)
        await app.backfill.create(me(), new, dry_run=True)  # mistakes are reported before the person is asked
        found = await _estimated(app, new)
        if found is not None and not json:
            print_estimate(found)
        if not yes and not dry_run:
            await asyncio.to_thread(typer.confirm, "Begin this backfill?", abort=True, err=True)
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
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 1000.")] = 50,
    json: JsonOption = False,
) -> None:
    """List backfill jobs, newest first."""
    which = BackfillFilter(endpoint_identity=account, status=status, limit=limit)

    async def run(app: App) -> None:
        jobs = await app.backfill.list(which)
        if json:
            print_json(jobs)
            return
        print_table(
            ["id", "mailbox", "status", "days", "categories", "taken in", "skipped", "spent", "why"],
            (_row(job) for job in jobs),
            empty="No backfill jobs; `postroom backfill create --help` says how to begin one.",
        )

    with_app(run)


@app.command()
def show(
    job_id: JobId,
    follow_: Annotated[bool, typer.Option("--follow", help="Keep showing its progress until it ends.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one job: how far it is, what it spent, and why it waits if it does."""
    if follow_ and json:
        raise BadInput("follow", "is for people; ask for --json again and again instead")

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
    """Stop a job and keep its place. Its connector finishes the message in hand."""
    _steer(lambda app: app.backfill.pause(me(), job_id, dry_run=dry_run), dry_run, json)


@app.command()
def resume(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Let a paused, capped or failed job go on from its place."""
    _steer(lambda app: app.backfill.resume(me(), job_id, dry_run=dry_run), dry_run, json)


@app.command()
def cancel(job_id: JobId, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Stop a job for good. What it brought stays."""
    _steer(lambda app: app.backfill.cancel(me(), job_id, dry_run=dry_run), dry_run, json)


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


@app.command()
def switch(
    turn: Annotated[OnOff | None, typer.Argument(metavar="[on|off]", help="Left out: only say how it stands.")] = None,
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
    console.print(f"Backfill {would} on." if state.in_force else f"Backfill {would} off: {state.reason}.", markup=False)


@app.command("retention")
def retention_(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Remove mail that is past its time from the control database now, as the daily job does. The archive keeps it."""

    async def run(app: App) -> Pruned:
        settings = app.settings
        return await retention.prune(
            app.database,
            retention.RetentionRule.from_settings(settings.retention),
            app.clock,
            protected=retention.certified(app.archive.backend),
            spending=JobSpending(settings.backfill, app.clock),
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


def _steer(act: Callable[[App], Awaitable[BackfillJob]], dry_run: bool, json: bool) -> None:
    job = with_app(act)
    if json:
        print_json(_as_json(job, dry_run))
    else:
        console.print(f"{'It would be' if dry_run else 'It is'} {job.status} now.")


def _days(app: App, names: list[str] | None, all_mail: bool, first: str | None, last: str | None) -> tuple[date, date]:
    if not names and not all_mail:
        raise BadInput("category", f"choose from {', '.join(shipped().selectable)}, or give --all-mail")
    if names and all_mail:
        raise BadInput("all-mail", "leaves no room for a category")
    early, late = shipped().window(names or [], app.clock.now().date())
    return _day("from", first) or early, _day("to", last) or late


def _wanted(
    account: str,
    categories: list[str] | None,
    days: tuple[date, date],
    rate: int | None,
    cap_cents: int | None,
    background: bool,
    include: list[Include] | None,
) -> NewBackfill:
    return NewBackfill(
        connector_type="gmail",
        endpoint_identity=account,
        date_from=days[0],
        date_to=days[1],
        target_categories=categories or [],
        rate_limit_per_hour=rate,
        daily_cost_cap_cents=cap_cents,
        mode=BackfillMode.BACKGROUND if background else BackfillMode.SELECTIVE,
        includes=[item.value for item in include or []],
    )


def _day(name: str, text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadInput(name, f"{text!r} is not a day; write for example 2024-01-31") from None


async def _estimated(app: App, new: NewBackfill) -> Mapping[str, Any] | None:
    """None, with the reason on the screen, if it cannot be estimated; whether to begin is still the person's choice."""
    try:
        return (await app.estimator().estimate(new)).wire()
    except PostroomError as error:
        errors.print(f"No estimate can be given: {error.message}", markup=False, soft_wrap=True)
        return None


def _as_json(job: BackfillJob, dry_run: bool) -> dict[str, Any]:
    return {"job_id": job.id, "status": job.status, "dry_run": dry_run}


def _row(job: BackfillJob) -> list[object]:
    categories = ", ".join(job.target_categories) or "all mail"
    days, spent = f"{job.date_from} to {job.date_to}", format_dollars(job.spent_microdollars)
    why = job.error or job.status_reason or ""
    counts = job.rows_processed, job.rows_skipped
    return [job.id, job.endpoint_identity, job.status, days, categories, *counts, spent, why]
