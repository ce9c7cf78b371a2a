"""`postroom approvals`: actions that need approval, and the answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalOutcome, ApprovalQuestion, ApprovalVerdict
from postroom.actions.wording import LetterPreview, deed
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.decisions.choosing import AllOption, IdsArgument, print_found, require_choice
from postroom.cli.session import me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, printable, shown
from postroom.db import Tx
from postroom.domain.errors import Fatal

app = typer.Typer(no_args_is_help=True, help="Actions that need your approval.")

_NOTHING = "Nothing needs approval."
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation with --all.")]
_Note = Annotated[str | None, typer.Option("--note", help="Why; kept in the audit log.")]


@app.command("list")
def list_all(
    limit: Annotated[int, typer.Option(min=1, max=approvals.MOST_LISTED, help="Show at most this many.")] = 100,
    json: JsonOption = False,
) -> None:
    """List actions that need approval, oldest first."""
    found = read(lambda tx: approvals.list_questions(tx, limit))
    columns = ("id", "from", "subject", "would", "why approval is needed")
    print_found(found, columns, _listed, json=json, empty=_NOTHING, plain=_plain)


@app.command()
def show(
    action_id: Annotated[str, typer.Argument(metavar="ID", help="An action.")],
    json: JsonOption = False,
) -> None:
    """Show one action in full."""
    question = read(lambda tx: approvals.get_question(tx, action_id))
    if json:
        print_json(_plain(question))
    else:
        _print(question)


@app.command()
def approve(
    ids: IdsArgument = None,
    all_: AllOption = False,
    yes: _Yes = False,
    note: _Note = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Approve actions."""
    _answer(ApprovalVerdict.APPROVE, ids or [], all_=all_, yes=yes, note=note, dry_run=dry_run, json=json)


@app.command()
def reject(
    ids: IdsArgument = None,
    all_: AllOption = False,
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
    require_choice(ids, all_=all_)
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
    typer.confirm(f"{verdict.capitalize()} all {len(chosen):,}?", abort=True)


def _print_dry(verdict: ApprovalVerdict, chosen: list[ApprovalQuestion], *, json: bool) -> None:
    if json:
        print_json([{"id": each.action.id, "would": str(verdict), "open": each.is_open} for each in chosen])
        return
    for each in chosen:
        would = f"would {verdict}: {deed(each.action)}" if each.is_open else approvals.standing(each.action)
        console.print(printable(f"{each.action.id} {would}"), markup=False, soft_wrap=True)
    if not chosen:
        console.print(_NOTHING)


def _print_answers(answers: list[ApprovalOutcome], *, json: bool) -> None:
    if json:
        print_json([_plain(each.question) | {"counted": each.counted} for each in answers])
    elif not answers:
        console.print(_NOTHING)
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
        "wanted by": action.wanted_by,
        "why": question.why,
        "sure": None if question.confidence is None else f"{question.confidence:.0%}",
        "asked": action.created_at,
        "expires": action.expires_at,
    }
    for name, value in facts.items():
        if value is not None:
            console.print(f"{name:<10} {printable(shown(value))}", markup=False, soft_wrap=True)
    for reason in action.reasons:
        console.print(f"{'because':<10} {printable(reason)}", markup=False, soft_wrap=True)
    if question.letter is not None:
        _print_letter(question.letter)
    if question.text:
        console.print(f"\nThe message that it is about:\n{printable(question.text)}", markup=False, soft_wrap=True)


def _print_letter(letter: LetterPreview) -> None:
    facts = {
        "To": ", ".join(letter.to),
        "Cc": ", ".join(letter.cc),
        "Subject": letter.subject,
        "Attached": ", ".join(letter.attachments),
    }
    console.print("\nThe mail that would be sent:")
    for name, value in facts.items():
        if value:
            console.print(f"{name + ':':<10} {printable(value)}", markup=False, soft_wrap=True)
    for said in filter(None, (letter.text, letter.html)):
        console.print(f"\n{printable(said)}", markup=False, soft_wrap=True)
    if letter.carries_original:
        console.print("\n(below it the original, whole)")


def _listed(question: ApprovalQuestion) -> tuple[str | None, ...]:
    action = question.action
    return action.id, question.sender, question.subject, deed(action), "; ".join(action.reasons)


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
        "letter": question.letter,
        "why": question.why,
        "confidence": question.confidence,
        "text": question.text,
        "wanted_by": action.wanted_by,
        "reasons": list(action.reasons),
        "answered_by": action.answered_by,
        "answered_at": action.answered_at,
        "expires_at": action.expires_at,
        "created_at": action.created_at,
    }
