"""`postroom account labels | label`: which of a mailbox's labels the model may use, and what it is told about them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from postroom import audit
from postroom.accounts.labels import KnownLabel, describe_label, find_label, labels_of
from postroom.accounts.store import get_account
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.output import DryRunOption, JsonOption, console, print_json, print_table
from postroom.cli.session import me, with_app
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound

LONGEST_DESCRIPTION = 300

EmailArgument = Annotated[str, typer.Argument(metavar="EMAIL", help="The account's address.")]


def labels(email: EmailArgument, json: JsonOption = False) -> None:
    """The labels of a mailbox, as they were last seen there."""

    async def run(app: App) -> list[KnownLabel]:
        return await app.database.read(lambda tx: labels_of(tx, get_account(tx, email).id))

    found = with_app(run)
    if json:
        print_json([asdict(label) for label in found])
        return
    rows = ([each.name, "yes" if each.available_to_classifier else "no", each.description or ""] for each in found)
    print_table(["label", "for the model", "what it is for"], rows, empty="None are known yet; a worker fetches them.")


def label(
    email: EmailArgument,
    name: Annotated[str, typer.Argument(help="The label's name or id.")],
    describe: Annotated[str | None, typer.Option(help="What it is for, in words for the model; empty: none.")] = None,
    model: Annotated[bool | None, typer.Option("--model/--no-model", help="Whether the model may use it.")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Tell the model about a label, or keep it from the model."""
    if describe is None and model is None:
        raise BadInput("describe", "say what to change: --describe TEXT, --model or --no-model")
    if describe is not None and (len(describe) > LONGEST_DESCRIPTION or not describe.isprintable()):
        raise BadInput("describe", f"is one line of at most {LONGEST_DESCRIPTION} characters")

    async def run(app: App) -> KnownLabel:
        def change(tx: Tx) -> KnownLabel:
            account_id, now = get_account(tx, email).id, app.clock.now()
            found = find_label(tx, account_id, name)
            if found is None:
                raise NotFound("name", f"{email} has no label {name[:60]!r}; `postroom account labels` lists them")
            said = found.description if describe is None else describe.strip() or None
            available = found.available_to_classifier if model is None else model
            if not dry_run:
                describe_label(tx, account_id, found.label_id, now, description=said, available=available)
                after = {"description": said, "available_to_classifier": available}
                audit.record(tx, Actor.of(me()), "label.change", ("label", found.label_id), now, after=after)
            return found

        return await (app.database.read if dry_run else app.database.write)(change)

    found = with_app(run)
    console.print(f"{'Would change' if dry_run else 'Changed'} the label {found.name}.", markup=False)
