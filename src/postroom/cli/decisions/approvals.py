"""What waits for a person. `postroom approvals`: actions that need approval, and the answers. `postroom review`:
mail that nothing decided, or that the model left to you.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalOutcome, ApprovalQuestion, ApprovalVerdict
from postroom.actions.wording import LetterPreview, deed
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import AccountOption, me, read, rehearse, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table, printable, shown
from postroom.db import Tx
from postroom.domain.actions import ReviewCause
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.ids import normal_email
from postroom.queue import JobQueue
from postroom.triage import review
from postroom.triage.review import MOST_LISTED, ReviewFilter, ReviewItem

T = TypeVar("T")

AllOption = Annotated[bool, typer.Option("--all", help="Everything that is on the list now.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="As the command `list` shows them.")]


def print_found(
    found: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[Any]],
    *,
    json: bool,
    empty: str,
    plain: Callable[[T], Any] = lambda each: each,
    names: int = 1,
) -> None:
    """`plain` is an item for programs; `names` is as for `print_table`."""
    if json:
        print_json([plain(each) for each in found])
    else:
        print_table(columns, [row(each) for each in found], empty=empty, names=names)


def require_choice(ids: Sequence[str], *, all_: bool) -> None:
    if all_ == bool(ids):
        raise BadInput("id", "name one or more as the command `list` shows them, or use --all")


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


def _answering(verdict: ApprovalVerdict, help: str) -> None:
    """The command that gives this answer."""

    @app.command(str(verdict), help=help)
    def answer(
        ids: IdsArgument = None,
        all_: AllOption = False,
        yes: _Yes = False,
        note: _Note = None,
        dry_run: DryRunOption = False,
        json: JsonOption = False,
    ) -> None:
        _answer(verdict, ids or [], all_=all_, yes=yes, note=note, dry_run=dry_run, json=json)


_answering(ApprovalVerdict.APPROVE, "Approve actions.")
_answering(ApprovalVerdict.REJECT, "Reject actions; nothing is done.")


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
        "requested by": action.wanted_by,
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


reviews = typer.Typer(no_args_is_help=True, help="Mail that needs review: list it, mark it as done, judge it again.")

_Cause = Annotated[ReviewCause | None, typer.Option("--cause", help="Only items with this cause.")]


@reviews.command("list")
def list_(
    cause: _Cause = None,
    account: AccountOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="Show at most this many.")] = 50,
    before: Annotated[str | None, typer.Option(help="Only items older than the one with this id.")] = None,
    json: JsonOption = False,
) -> None:
    """List mail that needs review, newest first.

    `postroom actions do TYPE KEY` acts on one, `postroom rules add NAME --like KEY --do ACTION` makes a rule from it.
    """
    which = ReviewFilter(cause, _mailbox(account), before, limit)
    found = read(lambda tx: review.list_review(tx, which))
    columns = ("id", "key", "received", "from", "subject", "why")
    print_found(found, columns, _review_row, json=json, empty="Nothing needs review.", names=2)
    if found and not json:
        console.print("Act with `postroom actions do TYPE KEY`, or make a rule: `postroom rules add NAME --like KEY`.")


@reviews.command()
def done(
    ids: IdsArgument = None,
    all_: AllOption = False,
    cause: _Cause = None,
    account: AccountOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Mark mail as reviewed. Nothing is done to the mail itself."""

    def change(tx: Tx, queue: JobQueue, items: list[ReviewItem]) -> int:
        review.mark_done(tx, items, Actor.of(me()), queue.clock.now())
        return len(items)

    which = _Chosen(ids or [], all_, ReviewFilter(cause, _mailbox(account)))
    count = sum(_changed(which, change, dry_run=dry_run))
    if json:
        print_json({"done": count, "dry_run": dry_run})
    else:
        console.print(f"{_messages(count)} {'would be ' if dry_run else ''}marked as reviewed.")


@reviews.command()
def ask(
    ids: IdsArgument = None,
    all_: AllOption = False,
    cause: _Cause = None,
    account: AccountOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Run rules and the model again on mail that nothing has decided.

    For example once the day's budget has room: `postroom review ask --all --cause budget`.
    """

    def change(tx: Tx, queue: JobQueue, items: list[ReviewItem]) -> tuple[int, int]:
        left = len(review.ask_again(tx, queue, items, Actor.of(me())))
        return len(items) - left, left

    changed = _changed(_Chosen(ids or [], all_, ReviewFilter(cause, _mailbox(account))), change, dry_run=dry_run)
    asked, left = (sum(each[place] for each in changed) for place in (0, 1))
    if json:
        print_json({"asked": asked, "left": left, "dry_run": dry_run})
        return
    console.print(f"{_messages(asked)} {'would be' if dry_run else 'will be'} judged again.")
    if left:
        console.print(f"{_messages(left)} stay on the list: the model has answered about them, and left them to you.")


@dataclass(frozen=True, slots=True)
class _Chosen:
    ids: list[str]
    all_: bool
    which: ReviewFilter

    def __post_init__(self) -> None:
        require_choice(self.ids, all_=self.all_)
        if self.ids and self.which.cause is not None:
            raise BadInput("cause", "goes with --all")


def _changed(chosen: _Chosen, change: Callable[[Tx, JobQueue, list[ReviewItem]], T], *, dry_run: bool) -> list[T]:
    """Items by their ids in one transaction, or all of them in several."""

    async def run(app: App) -> list[T]:
        write = partial(rehearse, app.database) if dry_run else app.database.write

        def named(tx: Tx) -> T:
            return change(tx, app.queue, review.find_items(tx, chosen.ids, chosen.which.mailbox))

        if chosen.ids:
            return [await write(named)]
        return await review.change_all(write, chosen.which, lambda tx, items: change(tx, app.queue, items))

    return with_app(run)


def _review_row(item: ReviewItem) -> tuple[Any, ...]:
    return item.id, item.key, item.received_at, item.sender, item.subject, item.reason


def _mailbox(account: str | None) -> str | None:
    return None if account is None else normal_email(account, "account")


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
