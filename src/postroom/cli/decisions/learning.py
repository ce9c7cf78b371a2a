"""`postroom learning`: local triage that learns from the model and from you."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom import kill_switch
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import change, change_queue, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table, printable
from postroom.db import Tx
from postroom.domain.actions import parse_action
from postroom.domain.money import format_dollars
from postroom.queue import JobQueue
from postroom.triage.learning.status import AnswerStanding, LearningStatus, learning_status

app = typer.Typer(
    no_args_is_help=True, help="Local triage that learns: see its figures, switch it, correct a decision."
)


@app.command()
def status(json: JsonOption = False) -> None:
    """Show who decided lately, what was saved, and how often local triage agrees with the model."""

    async def run(app: App) -> LearningStatus:
        now = app.clock.now()
        return await app.database.read(lambda tx: learning_status(tx, app.settings.learning, now))

    found = with_app(run)
    if json:
        print_json(found)
        return
    for line in _summary(found):
        console.print(printable(line), markup=False, soft_wrap=True)
    rows = ([one.account, *_row(each)] for one in found.accounts for each in one.answers)
    columns = ["account", "answer", "right", "in shadow", "differed", "checked", "differed", "decided", "saved"]
    print_table(columns, rows, empty="It has compared nothing with the model yet.")


def _summary(found: LearningStatus) -> list[str]:
    shares = found.decided
    share = "none yet" if shares.without_model is None else f"{shares.without_model:.0%}"
    return [
        "Local triage is on." if found.on else f"Local triage is off: {found.why_off}.",
        f"Decided in the last 30 days: {shares.by_rules:,} by rules, {shares.learned:,} learned, {shares.by_model:,} "
        f"by the model, {shares.undecided:,} left undecided. Decided without the model: {share}.",
        f"Saved so far: about {format_dollars(found.saved_microdollars)}.",
    ]


def _row(each: AnswerStanding) -> list[object]:
    counts = [each.compared, each.differed, each.checked, each.check_differed, each.decided]
    return [each.answer, each.state, *counts, format_dollars(each.saved_microdollars)]


@app.command()
def off(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Switch local triage off in every process. What it has learned stays; the model is asked instead."""
    _turn(False, dry_run=dry_run, json=json)


@app.command()
def on(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Switch local triage on again."""
    _turn(True, dry_run=dry_run, json=json)


@app.command()
def correct(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="A message's key or id.")],
    action: Annotated[
        str | None, typer.Option("--do", metavar="ACTION", help="What should have been done, such as archive.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="With apply_label or remove_label.")] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Correct a decision. What was done is undone, and the right answer is learned at once.

    Without `--do`, the message should have been left alone.
    """
    wanted = None if action is None else parse_action(action, None if label is None else {"label": label})

    def transaction(tx: Tx, queue: JobQueue, who: Actor) -> dict[str, object]:
        from postroom.app.owner_tools.learning_tools import correct

        return correct(tx, queue, message, wanted, who).model_dump()

    made = change_queue(transaction, dry_run=dry_run)
    if json:
        print_json({**made, "dry_run": dry_run})
        return
    learned = "Learned." if made["learned"] else "Nothing is learned from this message; its decision is corrected."
    console.print(f"{learned} Actions taken back: {made['undone']}." if not dry_run else "It would be corrected.")


def _turn(on: bool, *, dry_run: bool, json: bool) -> None:
    switch = change(lambda tx, who, now: kill_switch.turn_learning(tx, on, who, now), dry_run=dry_run)
    if json:
        print_json(
            {"on": switch.on, "changed_by": switch.changed_by, "changed_at": switch.changed_at, "dry_run": dry_run}
        )
    else:
        console.print(f"Local triage {'would be' if dry_run else 'is'} {'on' if on else 'off'}.")
