"""`postroom actions`: what was done with mail and why, how to undo it, and snoozed mail."""

from __future__ import annotations

import asyncio
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.accounts.account import get_account
from postroom.actions import browsing, requests, snoozes, undo, wording
from postroom.actions import snoozes as waking
from postroom.actions.browsing import ActionFilter, ActionWindow, Listed
from postroom.actions.lifecycle import Action
from postroom.actions.requests import ActionTarget
from postroom.actions.snoozes import Snooze
from postroom.actions.undo import Progress, Survey, Surveyed, UndoSpan, start_undo_many, survey_undo
from postroom.app import App
from postroom.app.owner_tools.rule_tools import undo_application
from postroom.audit import Actor
from postroom.cli import terminal
from postroom.cli.session import AccountOption, change_queue, me, with_app
from postroom.db import Tx
from postroom.domain.actions import (
    LARGEST_FILES,
    OCTET_STREAM,
    ActionStatus,
    ActionType,
    FileParameters,
    Origin,
    WantedAction,
    parameters_of,
    parse_action,
)
from postroom.domain.errors import BadInput
from postroom.queue import JobQueue
from postroom.triage import review

SnoozeId = Annotated[str, typer.Argument(metavar="ID", help="The id of the snooze, as `actions snoozed` shows it.")]


def snoozed(account: AccountOption = None, json: terminal.JsonOption = False) -> None:
    """List snoozed mail, the next to come back first."""

    async def run(app: App) -> list[Snooze]:
        chosen = None if account is None else await app.database.read(lambda tx: get_account(tx, account))
        return await app.database.read(lambda tx: snoozes.waiting_snoozes(tx, None if chosen is None else chosen.id))

    found = with_app(run)
    if json:
        terminal.print_json(found)
        return
    rows = ([each.action_id, each.until, each.subject or each.gmail_id, each.label_name] for each in found)
    terminal.print_table(["id", "comes back", "message", "label"], rows, empty="No mail is snoozed.")


def wake(action_id: SnoozeId, dry_run: terminal.DryRunOption = False) -> None:
    """Bring snoozed mail back now."""

    async def run(app: App) -> None:
        who = Actor.of(me())
        await app.database.write(lambda tx: waking.wake_now(tx, app.queue, action_id, who, dry_run=dry_run))

    with_app(run)
    terminal.console.print("It would come back now." if dry_run else "It will come back as soon as a worker is free.")


def reschedule(
    action_id: SnoozeId,
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="When it comes back, with a time zone.")],
    dry_run: terminal.DryRunOption = False,
) -> None:
    """Change when snoozed mail comes back."""
    moment = terminal.parse_instant("until", until)
    if moment is None:
        raise BadInput("until", "is missing")

    async def run(app: App) -> Snooze:
        who = Actor.of(me())
        return await app.database.write(
            lambda tx: waking.reschedule(tx, app.queue, action_id, moment, who, dry_run=dry_run)
        )

    with_app(run)
    terminal.console.print(
        f"It {'would come' if dry_run else 'comes'} back at {moment.astimezone():%Y-%m-%d %H:%M %Z}."
    )


app = typer.Typer(no_args_is_help=True, help="Actions on mail: list, show, undo, or act yourself.")
app.command("snoozed")(snoozed)
app.command("wake")(wake)
app.command("reschedule")(reschedule)

ActionId = Annotated[str, typer.Argument(metavar="ID", help="The action's id, as `actions list` shows it.")]
RuleOption = Annotated[str | None, typer.Option("--rule", help="Only actions of this rule, by its name or id.")]
SinceOption = Annotated[str | None, typer.Option(help="Done at or after this time, with a time zone.")]
UntilOption = Annotated[str | None, typer.Option(help="Done before this time, with a time zone.")]


@app.command("list")
def list_(
    status: Annotated[ActionStatus | None, typer.Option(help="Only actions with this status.")] = None,
    type: Annotated[ActionType | None, typer.Option("--type", help="Only actions of this type.")] = None,
    by: Annotated[
        Origin | None, typer.Option("--by", help="Only actions of a rule, the model or a person, or undos.")
    ] = None,
    rule: RuleOption = None,
    text: Annotated[str | None, typer.Option(help="Only mail with this in its subject or sender.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    account: AccountOption = None,
    before: Annotated[str | None, typer.Option(help="Only actions older than the one with this id.")] = None,
    limit: Annotated[int, typer.Option(help=f"Show at most this many, 1 to {browsing.MOST_LISTED}.")] = 50,
    json: terminal.JsonOption = False,
) -> None:
    """List actions, newest first."""

    async def run(app: App) -> None:
        which = ActionFilter(
            status=status,
            type=type,
            origin=by,
            rule=rule,
            text=text or None,
            account_id=await _account_id(app, account),
            since=terminal.parse_instant("since", since),
            until=terminal.parse_instant("until", until),
            before_id=before,
            limit=limit,
        )
        found = await app.database.read(lambda tx: browsing.list_actions(tx, which))
        if json:
            terminal.print_json([_as_json(each) for each in found])
            return
        now = app.clock.now()
        rows = (_row(each, terminal.age(each.action.created_at, now)) for each in found)
        terminal.print_table(
            ["id", "age", "what", "requested by", "message", "status"], rows, empty="No actions match."
        )

    with_app(run)


@app.command()
def show(action_id: ActionId, json: terminal.JsonOption = False) -> None:
    """Show one action: what it did, why, its status, and how to undo it."""

    async def run(app: App) -> None:
        def read(tx: Tx) -> tuple[Listed, str | None]:
            found = browsing.show(tx, action_id)
            return found, undo.why_not_now(tx, found.action)

        found, obstacle = await app.database.read(read)
        if json:
            terminal.print_json({**_as_json(found), "can_be_undone": obstacle is None})
        else:
            _print_action(found, obstacle)

    with_app(run)


@app.command("do")
def do_(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="For example archive, apply_label, snooze or reply.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id or key, as `search` shows it.")],
    label: Annotated[str | None, typer.Option(help="For apply_label and remove_label: its name or id.")] = None,
    until: Annotated[str | None, typer.Option(help="For snooze: when it comes back, with a time zone.")] = None,
    for_: Annotated[str | None, typer.Option("--for", help="For snooze: how long, for example 2h or 3d.")] = None,
    to: Annotated[list[str] | None, typer.Option(help="For forward and reply: an address; may be repeated.")] = None,
    cc: Annotated[list[str] | None, typer.Option(help="The same, for a copy.")] = None,
    subject: Annotated[str | None, typer.Option(help="For forward and reply, in place of the usual one.")] = None,
    note: Annotated[str | None, typer.Option(help="For forward: a note above the message.")] = None,
    body: Annotated[str | None, typer.Option(help="For reply: the text.")] = None,
    body_html: Annotated[str | None, typer.Option(help="For forward and reply: the text as HTML.")] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="For reply: a message id, in place of the conversation's.")
    ] = None,
    attach: Annotated[list[Path] | None, typer.Option(help="For forward and reply: a file; may be repeated.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="For delete, which cannot be undone: do not ask for confirmation.")
    ] = False,
    dry_run: terminal.DryRunOption = False,
    json: terminal.JsonOption = False,
) -> None:
    """Act on a message that is still in its mailbox. A worker carries it out; `actions show` shows the result."""
    given: dict[str, Any] = {"label": label, "until": until, "to": to, "cc": cc, "subject": subject, "note": note}
    given |= {"body": body, "body_html": body_html, "references": reference, "attachments": _files(attach or [])}
    given |= terminal.parse_length("for", for_) if for_ is not None else {}
    wanted = _wanted(type, {name: value for name, value in given.items() if value not in (None, [])})

    async def run(app: App) -> str | None:
        target = await requests.find_target(app.database, app.archive.backend, message)
        if dry_run:
            return None
        if wanted.type is ActionType.DELETE and not yes:
            which = terminal.printable(f"{target.subject or '(no subject)'} from {target.sender}")
            question = f"{which}: delete it from the mailbox permanently?"
            await asyncio.to_thread(typer.confirm, question, abort=True, err=True)
        return await app.database.write(lambda tx: _order(tx, app, target, wanted))

    action_id = with_app(run)
    if json:
        terminal.print_json({"action_id": action_id, "action": wanted.outline().to_json(), "dry_run": dry_run})
    else:
        terminal.console.print("It would be done." if dry_run else f"Queued as {action_id}.")


_NEEDED = {
    ActionType.SNOOZE: ({"until", "amount"}, "needs --until or --for"),
    ActionType.AUTO_REPLY: ({"body", "body_html"}, "needs --body or --body-html"),
}
_FLAGS = {"attachments": "attach", "references": "reference", "amount": "for", "units": "for"}


def _wanted(type: str, given: dict[str, Any]) -> WantedAction:
    """A refusal names the option that it is about, or the one that is missing."""
    kind = ActionType.AUTO_REPLY if type == "reply" else next((each for each in ActionType if each == type), None)
    if kind is not None:
        for name in given.keys() - parameters_of(kind).model_fields.keys():
            raise BadInput(_FLAGS.get(name, name), f"does not go with {type}")
        any_of, needs = _NEEDED.get(kind, (given.keys(), ""))
        if needs and given.keys().isdisjoint(any_of):
            raise BadInput("type", f"{type} {needs}")
    try:
        return parse_action(type, given)
    except BadInput as error:
        name = error.field.partition(".")[2].partition(".")[0] or "type"
        raise BadInput(_FLAGS.get(name, name), error.problem) from None


def _files(paths: list[Path]) -> list[dict[str, Any]]:
    if (size := sum(path.stat().st_size for path in paths if path.is_file())) > LARGEST_FILES:
        raise BadInput(
            "attach", f"the files have {size / (1 << 20):.1f} MB; at most {LARGEST_FILES >> 20} MB can be sent"
        )
    return [
        FileParameters.of(
            path.name, guess_type(path.name)[0] or OCTET_STREAM, terminal.read_file("attach", path)
        ).model_dump(exclude_none=True)
        for path in paths
    ]


def _order(tx: Tx, app: App, target: ActionTarget, wanted: WantedAction) -> str:
    who = Actor.of(me())
    if target.message_id is not None:
        review.mark_message_done(tx, target.message_id, who, app.clock.now())
    return requests.request_action(tx, app.queue, target, wanted, who)


@app.command("undo")
def undo_(
    action_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One action; use the options to select several.")
    ] = None,
    rule: RuleOption = None,
    by: Annotated[
        Origin | None, typer.Option("--by", help="Everything that the model, or any rule, did since --since.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Done at or after this time, with a time zone, or this long ago: 2h, 3d.")
    ] = None,
    until: UntilOption = None,
    account: AccountOption = None,
    application: Annotated[
        str | None, typer.Option(help="Everything that one application of a rule to past mail did.")
    ] = None,
    dry_run: terminal.DryRunOption = False,
    json: terminal.JsonOption = False,
) -> None:
    """Undo one action, or all actions of a rule, of the model or of a time window, newest first.

    Only what an action changed is undone. `--dry-run` lists the actions.
    """
    if application is not None:
        if any((action_id, rule, since, until, by, account)):
            raise BadInput("application", "stands alone: it is undone as a whole")
        _undo_application(application, dry_run=dry_run, json=json)
        return
    if (action_id is not None) == any((rule, since, until, by)):
        raise BadInput("action", "name either one action, or a rule, the model or a time window")
    if by is not None:
        _undo_span(by, rule, since, until, account, dry_run=dry_run, json=json)
        return

    async def run(app: App) -> list[tuple[Action, str | None]]:
        if action_id is not None:
            return [await app.database.write(lambda tx: _undo_one(tx, app, action_id, dry_run=dry_run))]
        window = ActionWindow(
            rule,
            terminal.parse_moment("since", since, app.clock.now()),
            terminal.parse_instant("until", until),
            await _account_id(app, account),
        )
        return await app.database.write(lambda tx: _undo_all(tx, app, window, dry_run=dry_run))

    met = with_app(run)
    _print_undone(met, dry_run=dry_run, json=json)


@app.command()
def retry(action_id: ActionId, dry_run: terminal.DryRunOption = False) -> None:
    """Try a failed action again."""

    change_queue(lambda tx, queue, who: requests.retry_action(tx, queue, action_id, who), dry_run=dry_run)
    terminal.console.print("It would be tried again." if dry_run else "Queued again.")


@app.command()
def dismiss(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Failed actions, as `actions list` shows them.")],
    dry_run: terminal.DryRunOption = False,
) -> None:
    """Dismiss failed actions that need no more attention."""

    def dismissed(tx: Tx, queue: JobQueue, who: Actor) -> None:
        for action_id in dict.fromkeys(ids):
            requests.dismiss_action(tx, queue, action_id, who)

    change_queue(dismissed, dry_run=dry_run)
    terminal.console.print("They would be dismissed." if dry_run else "Dismissed.")


@app.command()
def cancel(action_id: ActionId, dry_run: terminal.DryRunOption = False) -> None:
    """Cancel an action that has not started."""

    change_queue(lambda tx, queue, who: requests.cancel_action(tx, queue, action_id, who), dry_run=dry_run)
    terminal.console.print("It would be canceled." if dry_run else "Canceled.")


def _undo_span(
    by: Origin,
    rule: str | None,
    since: str | None,
    until: str | None,
    account: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    """However many there are: a worker undoes them, and the same command with `--dry-run` says how far it is."""
    if since is None or rule is not None:
        raise BadInput("by", "needs --since, and goes with no --rule")

    async def run(app: App) -> Survey:
        now = app.clock.now()
        begin, end = terminal.parse_moment("since", since, now) or now, terminal.parse_instant("until", until) or now
        span = UndoSpan(begin, end, by, await _account_id(app, account))
        found = await app.database.read(lambda tx: survey_undo(tx, span))
        if not dry_run and found.counts[Progress.OPEN] + found.counts[Progress.FAILED]:
            await app.database.write(lambda tx: start_undo_many(tx, app.queue, span, Actor.of(me())))
        return found

    found = with_app(run)
    if json:
        terminal.print_json(_survey_json(found, dry_run=dry_run))
        return
    rows = ([each.action.id, each.action.finished_at, wording.title(each.action), _said(each)] for each in found.items)
    terminal.print_table(["id", "done at", "what", ""], rows, empty="No completed actions match.")
    if found.items and not dry_run:
        terminal.console.print("A worker is undoing them; the same command with --dry-run shows how far it is.")
    if not found.is_whole:
        terminal.console.print(
            f"These are the newest {len(found.items)} of {found.total}; the others are included too."
        )


def _undo_application(application_id: str, *, dry_run: bool, json: bool) -> None:
    job, canceled = change_queue(
        lambda tx, queue, who: undo_application(tx, queue, application_id, who), dry_run=dry_run
    )
    if json:
        terminal.print_json({"job": job, "canceled": canceled, "dry_run": dry_run})
        return
    terminal.console.print("All of it would be undone." if dry_run else "A worker is undoing all of it.")
    if canceled:
        terminal.console.print(f"{canceled:,} actions that had not begun {'would be' if dry_run else 'are'} canceled.")


def _said(each: Surveyed) -> str:
    return f"{each.progress}: {each.reason}" if each.reason else str(each.progress)


def _survey_json(found: Survey, *, dry_run: bool) -> dict[str, Any]:
    counts = {progress.name.lower(): found.counts[progress] for progress in Progress}
    left = [{"id": each.action.id, "reason": each.reason} for each in found.not_undone]
    return {"total": found.total, **counts, "left_with_reason": left, "dry_run": dry_run}


def _undo_one(tx: Tx, app: App, action_id: str, *, dry_run: bool) -> tuple[Action, str | None]:
    action = browsing.show(tx, action_id).action
    if (obstacle := undo.why_not_now(tx, action)) is not None:
        raise BadInput("action", f"{action.id} cannot be undone: {obstacle}")
    if not dry_run:
        undo.request_undo(tx, app.queue, action.id, Actor.of(me()))
    return action, None


def _undo_all(tx: Tx, app: App, window: ActionWindow, *, dry_run: bool) -> list[tuple[Action, str | None]]:
    met = [(action, undo.why_not_now(tx, action)) for action in browsing.completed_in(tx, window)]
    for action, obstacle in met:
        if obstacle is None and not dry_run:
            undo.request_undo(tx, app.queue, action.id, Actor.of(me()))
    return met


def _print_undone(met: list[tuple[Action, str | None]], *, dry_run: bool, json: bool) -> None:
    if json:
        undone = [action.id for action, obstacle in met if obstacle is None]
        left = [{"id": action.id, "reason": obstacle} for action, obstacle in met if obstacle is not None]
        terminal.print_json({"undone": undone, "left": left, "dry_run": dry_run})
        return
    verdict = "would be undone" if dry_run else "is being undone"
    rows = ([each.id, each.finished_at, wording.title(each), obstacle or verdict] for each, obstacle in met)
    terminal.print_table(["id", "done at", "what", ""], rows, empty="No completed actions match.")


def _row(each: Listed, how_old: str) -> list[Any]:
    action = each.action
    about = each.subject or action.gmail_id
    return [action.id, how_old, wording.title(action), action.wanted_by, about, _standing(each)]


def _as_json(each: Listed) -> dict[str, Any]:
    action = each.action
    fields = {name: getattr(action, name) for name in Action.__slots__}
    seen = {"subject": each.subject, "sender": each.sender, "is_undone": each.is_undone}
    return {**fields, **seen, "summary": wording.title(action)}


def _standing(each: Listed) -> str:
    said = wording.standing(each.action)
    return f"{said}, and undone" if each.is_undone else said


def _print_action(each: Listed, obstacle: str | None) -> None:
    action = each.action
    details = {
        "action": action.id,
        "what": wording.title(action),
        "message": f"{each.subject or 'no longer known here'} ({each.sender or 'sender not known'})",
        "in the mailbox": action.gmail_id,
        "requested by": action.wanted_by,
        "status": _standing(each),
        "answered by": action.answered_by,
        "requested at": action.created_at,
        "ended at": action.finished_at,
        "labels before": ", ".join((action.pre_image or {}).get("labels") or ()) or None,
        "job": action.job_id,
    }
    for name, value in details.items():
        if value is not None:
            terminal.console.print(
                f"{name:<14} {terminal.printable(terminal.shown(value))}", markup=False, soft_wrap=True
            )
    terminal.console.print(wording.way_back(action, obstacle), markup=False, soft_wrap=True)


async def _account_id(app: App, email: str | None) -> str | None:
    if email is None:
        return None
    account = await app.database.read(lambda tx: get_account(tx, email))
    return account.id
