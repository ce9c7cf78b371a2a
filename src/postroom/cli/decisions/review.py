"""`postroom review`: mail that nothing decided, or that the model left to you."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.decisions.choosing import AllOption, IdsArgument, print_found, require_choice
from postroom.cli.session import AccountOption, me, read, rehearse, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json
from postroom.db import Tx
from postroom.domain.actions import ReviewCause
from postroom.domain.errors import BadInput
from postroom.domain.ids import normal_email
from postroom.queue import JobQueue
from postroom.triage import review
from postroom.triage.review import MOST_LISTED, ReviewFilter, ReviewItem

app = typer.Typer(no_args_is_help=True, help="Mail that needs review: list it, mark it as done, judge it again.")

T = TypeVar("T")
_Cause = Annotated[ReviewCause | None, typer.Option("--cause", help="Only items with this cause.")]


@app.command("list")
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
    print_found(found, columns, _listed, json=json, empty="Nothing needs review.")
    if found and not json:
        console.print("Act with `postroom actions do TYPE KEY`, or make a rule: `postroom rules add NAME --like KEY`.")


@app.command()
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


@app.command()
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


def _listed(item: ReviewItem) -> tuple[Any, ...]:
    return item.id, item.key, item.received_at, item.sender, item.subject, item.reason


def _mailbox(account: str | None) -> str | None:
    return None if account is None else normal_email(account, "account")


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
