"""`postroom approvals`: actions that need approval, and the answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalOutcome, ApprovalQuestion, ApprovalVerdict
from postroom.actions.wording import deed, outgoing_text
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table, printable, shown
from postroom.db import Tx
from postroom.domain.errors import BadInput, Fatal

app = typer.Typer(no_args_is_help=True, help="Actions that need your approval.")

_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Actions, as `approvals list` shows them.")]
_All = Annotated[bool, typer.Option("--all", help="All questions that are open now.")]
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation with --all.")]
_Note = Annotated[str | None, typer.Option("--note", help="Why; kept in the audit log.")]


@app.command("list")
def list_all(
    limit: Annotated[int, typer.Option(min=1, max=approvals.MOST_LISTED, help="Show at most this many.")] = 100,
    json: JsonOption = False,
) -> None:
    """List the questions, oldest first."""
    found = read(lambda tx: approvals.list_questions(tx, limit))
    if json:
        print_json([_plain(question) for question in found])
        return
    rows = [(each.action.id, each.sender, each.subject, deed(each.action), _reasons(each)) for each in found]
    print_table(("id", "from", "subject", "would", "why approval is needed"), rows, empty="Nothing needs approval.")


@app.command()
def show(
    action_id: Annotated[str, typer.Argument(metavar="ID", help="An action.")],
    json: JsonOption = False,
) -> None:
    """Show one question in full."""
    question = read(lambda tx: approvals.get_question(tx, action_id))
    if json:
        print_json(_plain(question))
    else:
        _print(question)


@app.command()
def approve(
    ids: _Ids = None,
    all_: _All = False,
    yes: _Yes = False,
    note: _Note = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Approve actions."""
    _answer(ApprovalVerdict.APPROVE, ids or [], all_=all_, yes=yes, note=note, dry_run=dry_run, json=json)


@app.command()
def reject(
    ids: _Ids = None,
    all_: _All = False,
    yes: _Yes = False,
    note: _Note = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Reject actions; nothing is done."""
    _answer(ApprovalVerdict.REJECT, ids or [], all_=all_, yes=yes, note=note, dry_run=dry_run, json=json)


def _answer(
    verdict: ApprovalVerdict, ids: list[str], *, all_: bool, yes: bool, note: str | None, dry_run: bool, json: bool
) -> None:
    if all_ == bool(ids):
        raise BadInput("id", "name actions, or use --all for every open question")
    chosen = with_app(lambda app: _chosen(app, ids))
    if dry_run:
        _print_dry(verdict, chosen, json=json)
        return
    if all_ and chosen and not yes:
        _confirm(verdict, chosen)
    answers = with_app(lambda app: _answered(app, verdict, [each.action.id for each in chosen], note))
    _print_answers(answers, json=json)


async def _chosen(app: App, ids: list[str]) -> list[ApprovalQuestion]:
    """Those named, all of which must exist; else every open one. What comes up later was not seen, and is not meant."""

    def read(tx: Tx) -> list[ApprovalQuestion]:
        if not ids:
            return approvals.list_questions(tx, approvals.MOST_LISTED)
        return [approvals.get_question(tx, each) for each in dict.fromkeys(ids)]

    return await app.database.read(read)


async def _answered(app: App, verdict: ApprovalVerdict, ids: list[str], note: str | None) -> list[ApprovalOutcome]:
    """Each in a transaction of its own: one that was answered meanwhile does not hold up the others."""
    who = Actor.of(me())

    async def one(action_id: str) -> ApprovalOutcome:
        return await app.database.write(lambda tx: approvals.answer(tx, app.queue, action_id, verdict, who, note=note))

    return [await one(action_id) for action_id in ids]


def _confirm(verdict: ApprovalVerdict, chosen: list[ApprovalQuestion]) -> None:
    for question in chosen:
        said = f"{deed(question.action)}: {question.subject or '(no subject)'} from {question.sender or 'unknown'}"
        console.print(printable(said), markup=False, soft_wrap=True)
    typer.confirm(f"{verdict} all {len(chosen)}?", abort=True)


def _print_dry(verdict: ApprovalVerdict, chosen: list[ApprovalQuestion], *, json: bool) -> None:
    if json:
        print_json([{"id": each.action.id, "would": str(verdict), "open": each.is_open} for each in chosen])
        return
    for each in chosen:
        would = f"would {verdict}: {deed(each.action)}" if each.is_open else approvals.standing(each.action)
        console.print(printable(f"{each.action.id} {would}"), markup=False, soft_wrap=True)
    if not chosen:
        console.print("Nothing needs approval.")


def _print_answers(answers: list[ApprovalOutcome], *, json: bool) -> None:
    if json:
        print_json([_plain(each.question) | {"counted": each.counted} for each in answers])
    elif not answers:
        console.print("Nothing needs approval.")
    else:
        for each in answers:
            mark = "" if each.counted else "not changed: "
            said = f"{each.question.action.id} {mark}{each.said}"
            console.print(printable(said), markup=False, soft_wrap=True)
    late = [each for each in answers if not each.counted]
    if late:
        raise Fatal(f"{len(late)} of {len(answers)} had already been answered or had ended.")


def _print(question: ApprovalQuestion) -> None:
    action = question.action
    facts = {
        "id": action.id,
        "state": approvals.standing(action),
        "account": question.account,
        "from": question.sender or "unknown",
        "subject": question.subject or "(no subject)",
        "received": question.received_at,
        "would": deed(action),
        "answer to": question.answers_go_to,
        "wanted by": action.wanted_by,
        "asked": action.created_at,
        "expires": action.expires_at,
    }
    for name, value in facts.items():
        if value is not None:
            console.print(f"{name:<10} {shown(value)}", markup=False, soft_wrap=True)
    for reason in action.reasons:
        console.print(f"{'because':<10} {printable(reason)}", markup=False, soft_wrap=True)
    if text := outgoing_text(action):
        console.print(f"\nThe text that would be sent:\n{printable(text)}", markup=False, soft_wrap=True)


def _reasons(question: ApprovalQuestion) -> str:
    return "; ".join(question.action.reasons)


def _plain(question: ApprovalQuestion) -> dict[str, Any]:
    action = question.action
    return {
        "id": action.id,
        "status": action.status,
        "standing": approvals.standing(action),
        "account": question.account,
        "from": question.sender,
        "subject": question.subject,
        "received_at": question.received_at,
        "type": action.type,
        "parameters": dict(action.parameters),
        "would": deed(action),
        "answers_go_to": question.answers_go_to,
        "wanted_by": action.wanted_by,
        "reasons": list(action.reasons),
        "answered_by": action.answered_by,
        "answered_at": action.answered_at,
        "expires_at": action.expires_at,
        "created_at": action.created_at,
    }
