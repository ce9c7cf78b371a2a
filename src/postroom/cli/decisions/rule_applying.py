"""`postroom rules apply`: a rule on past mail, as a job; and the list of such applications, stopping, going on."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.decisions.rule_trying import progress
from postroom.cli.session import change_queue, me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, age, console, print_json, print_table
from postroom.domain.clock import SystemClock
from postroom.domain.ids import normal_email
from postroom.triage.rules import applying, store
from postroom.triage.rules.applying import (
    DEFAULT_CAP,
    LARGEST_CAP,
    ApplicationPreview,
    ApplicationState,
    PastMail,
    RuleApplication,
)
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import described

NameArgument = Annotated[str, typer.Argument(help="The rule's name, or its id.")]
ApplicationId = Annotated[str, typer.Argument(metavar="ID", help="As `rules applications` shows it.")]


def apply(
    name: NameArgument,
    query: Annotated[str, typer.Option("--query", help="Only mail that this search finds.")] = "",
    account: Annotated[str | None, typer.Option("--account", help="Only this account's mail.")] = None,
    cap: Annotated[
        int, typer.Option("--cap", min=1, max=LARGEST_CAP, help="The most messages that it acts on.")
    ] = DEFAULT_CAP,
    yes: Annotated[
        bool, typer.Option("--yes", help="For a rule that destroys mail: do not ask for confirmation.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Apply a rule to past mail that is still in its mailbox, newest first.

    A worker does it, after all other work; `rules applications` shows its progress, and `actions undo --application`
    undoes all of it. `--dry-run` counts what it would act on.
    """
    mail = PastMail(query, None if account is None else normal_email(account, "account"), cap)
    rule = read(lambda tx: store.get_rule(tx, name))
    if dry_run:
        _print_preview(rule, mail, with_app(lambda app: _previewed(app, rule, mail)), json=json)
        return
    if rule.draft is not None and applying.destroys(rule.draft) and not yes:
        which = f"up to {cap:,} messages that match {rule.name}"
        typer.confirm(f"{', '.join(map(described, rule.draft.actions))}: {which}?", abort=True, err=True)
    begun = with_app(lambda app: _begun(app, rule, mail))
    if json:
        print_json(_plain(begun))
        return
    console.print(f"Queued as {begun.id}: {begun.total:,} messages to look at, {cap:,} to act on at most.")
    console.print("`postroom rules applications` shows how far it is.")


async def _begun(app: App, rule: StoredRule, mail: PastMail) -> RuleApplication:
    total = await asyncio.to_thread(mail.count, app.archive.backend)
    who = Actor.of(me())
    return await app.database.write(lambda tx: applying.begin(tx, app.queue, rule, mail, total, who))


async def _previewed(app: App, rule: StoredRule, mail: PastMail) -> ApplicationPreview:
    total = await asyncio.to_thread(mail.count, app.archive.backend)
    with progress(total, "looking") as show:
        return await applying.preview(app.database, app.archive.backend, rule, mail, app.clock.now(), show)


def _print_preview(rule: StoredRule, mail: PastMail, found: ApplicationPreview, *, json: bool) -> None:
    left = len(found.matches) - found.can_act
    if json:
        acts = min(found.can_act, mail.cap)
        print_json({"looked_at": found.looked_at, "would_act_on": acts, "left_alone": left, "dry_run": True})
        return
    rows = (
        [each.message.key, each.message.date, each.message.sender, each.message.subject]
        for each in [each for each in found.matches if each.account_id is not None][:20]
    )
    print_table(["key", "received", "from", "subject"], rows, empty="No message would be acted on.")
    console.print(f"{found.can_act:,} of {found.looked_at:,} messages would be acted on, {mail.cap:,} at most.")
    if left:
        console.print(f"{left:,} more match, but are gone from the mailbox, or the rule has acted on them.")
    if rule.draft is not None and found.can_act:
        console.print(f"Each: {', '.join(map(described, rule.draft.actions))}. Nothing was done.", markup=False)


def applications(json: JsonOption = False) -> None:
    """List rules that were applied to past mail, newest first, with their progress."""
    found = read(applying.list_applications)
    if json:
        print_json([_plain(each) for each in found])
        return
    now = SystemClock().now()
    rows = ([each.id, each.rule_name, each.state, age(each.created_at, now), _progress(each)] for each in found)
    print_table(["id", "rule", "state", "age", "progress"], rows, empty="No rule was applied to past mail.")


def stop(application_id: ApplicationId, dry_run: DryRunOption = False) -> None:
    """Stop applying a rule to past mail. What it did stays, and can be undone."""
    change_queue(lambda tx, queue, who: applying.stop(tx, queue, application_id, who), dry_run=dry_run)
    console.print("It would be stopped." if dry_run else "Stopped.")


def resume(
    application_id: ApplicationId,
    cap: Annotated[
        int | None,
        typer.Option("--cap", min=1, max=LARGEST_CAP, help="A new cap for the whole run; default: unchanged."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Resume one that reached its cap, was stopped, or failed."""
    after = change_queue(lambda tx, queue, who: applying.resume(tx, queue, application_id, cap, who), dry_run=dry_run)
    console.print(f"{'It would go on' if dry_run else 'It goes on'}, up to {after.cap:,} messages in all.")


def _progress(each: RuleApplication) -> str:
    reason = f" ({each.reason})" if each.reason and each.state is not ApplicationState.RUNNING else ""
    total = max(each.total, each.looked_at)
    return f"{each.looked_at:,} of {total:,} looked at, {each.acted_on:,} of at most {each.cap:,} acted on{reason}"


def _plain(each: RuleApplication) -> dict[str, object]:
    return {name: getattr(each, name) for name in RuleApplication.__slots__ if name != "cursor"}
