"""`postroom categories`: which category mail belongs to and why, how well that works, and the owner's corrections.
`postroom policy`: how much of which mail is kept and read.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom import settings
from postroom.app import App
from postroom.archive.service import open_archive
from postroom.audit import Actor
from postroom.cli.session import change, me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table, read_file, shown
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.mail.addresses import canonical_address
from postroom.mail.categories import Categories, CategoryVerdict, facts_of
from postroom.mail.categories.model import NONE
from postroom.mail.categories.records import HeaderRecord, Scores, read_records
from postroom.mail.tier_policy import TierPolicy, parse_rules
from postroom.switchboard import definitions
from postroom.switchboard.ingest import known_contacts

app = typer.Typer(help="Categories of mail: what belongs where, and why.", no_args_is_help=True)

FileArgument = Annotated[
    Path, typer.Argument(help='Lines of JSON: {"id", "headers": [[name, value], ...], "known", "gmail_labels"}.')
]
SenderArgument = Annotated[str, typer.Argument(help="An address or a domain.")]


@app.command()
def match(file: FileArgument) -> None:
    """Say for each header record of a file which categories it belongs to: one line of JSON each."""
    categories = _in_force()
    for record in _records(file):
        found = categories.verdict(facts_of(record.headers, is_known=record.known, labels=record.labels))
        typer.echo(jsonlib.dumps({"id": record.id, **_as_json(found)}, ensure_ascii=False))


@app.command()
def score(file: FileArgument, json: JsonOption = False) -> None:
    """Compare with the `category` that each record of a file names: precision and recall by category and language."""
    categories, scores = _in_force(), Scores()
    for number, record in enumerate(_records(file), 1):
        if record.category is None:
            raise BadInput("category", f"record {number} ({record.id}) does not say what it is")
        facts = facts_of(record.headers, is_known=record.known, labels=record.labels)
        scores.add(record.category, categories.matching(facts), record.lang)
    found = scores.to_json()
    if json:
        print_json(found)
        return
    for title in ("categories", "languages"):
        rows = (
            [name, each["found"] + each["missed"], _share(each["precision"]), _share(each["recall"]), each["mistaken"]]
            for name, each in found[title].items()
        )
        columns = [title, "messages", "precision", "recall", "wrongly chosen"]
        print_table(columns, rows, empty="The file has no records.")
        console.print()


@app.command()
def explain(
    message: Annotated[str, typer.Argument(help="The message's key or id, as `postroom search` prints it.")],
    account: Annotated[str | None, typer.Option(help="The mailbox, if the key is in several.")] = None,
    json: JsonOption = False,
) -> None:
    """Say in words which category an archived message belongs to."""
    with open_archive(settings.load()) as place, place.reader() as archive:
        found = archive.find(message, account)
        headers, labels = archive.headers_of(found), found.labels
    sender = canonical_address(facts_of(headers).address)
    is_known = bool(sender) and bool(read(lambda tx: known_contacts(tx, {sender})))
    verdict = _in_force().verdict(facts_of(headers, is_known=is_known, labels=labels))
    if json:
        print_json({"key": found.key, **_as_json(verdict)})
        return
    console.print(f"{shown(headers.text('Subject') or '(no subject)')}", markup=False)
    console.print(f"is in {' and '.join(verdict.categories) or 'no category'}, because", markup=False)
    for reason in verdict.why:
        console.print(f"  - {shown(reason)}", markup=False)


@app.command()
def correct(
    sender: SenderArgument,
    category: Annotated[str, typer.Argument(help="The category, or `none`.")],
    json: JsonOption = False,
) -> None:
    """Put mail from a sender into a category. This wins over what its headers look like."""
    known = _book().defined

    def write(tx: Tx, who: Actor, now: datetime) -> definitions.CategoryCorrection:
        return definitions.correct_sender(tx, known, sender, category, who, now)

    made = change(write, dry_run=False)
    if json:
        print_json(made)
    else:
        place = "no category" if made.category == NONE else made.category
        console.print(f"Mail from {made.sender} is in {place}.", markup=False)


@app.command()
def forget(sender: SenderArgument) -> None:
    """Remove a correction."""
    gone = change(lambda tx, who, now: definitions.forget_correction(tx, sender, who, now), dry_run=False)
    console.print(f"Mail from {gone.sender} is judged by its headers again.", markup=False)


@app.command()
def corrections(json: JsonOption = False) -> None:
    """List the senders that you put into a category."""
    found = read(definitions.list_corrections)
    if json:
        print_json(found)
        return
    rows = ([each.sender, each.category, each.created_by, each.created_at] for each in found)
    print_table(
        ["sender", "category", "by", "since"],
        rows,
        empty="No corrections yet; `postroom categories correct SENDER CATEGORY` makes one.",
    )


def _book() -> definitions.CategoryBook:
    return definitions.CategoryBook.in_folder(settings.load().home)


def _in_force() -> Categories:
    return _book().defined.corrected(read(definitions.corrected_senders))


def _records(file: Path) -> Iterator[HeaderRecord]:
    try:
        with file.open(encoding="utf-8") as lines:
            yield from read_records(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("file", f"{file} cannot be read: {error}") from None


def _as_json(verdict: CategoryVerdict) -> dict[str, object]:
    scores = {name: round(share, 4) for name, share in verdict.scores.items()}
    return {"categories": list(verdict.categories), "scores": scores, "why": list(verdict.why)}


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}"


policy = typer.Typer(
    no_args_is_help=True, help="The tier policy: which mail is taken in whole, by its headers only, or not at all."
)


@policy.command()
def show(json: JsonOption = False) -> None:
    """Show the rules in order. The first that matches a message decides; mail that none matches is taken in whole."""
    rules = read(definitions.all_policy_rules)
    if json:
        print_json(rules)
        return
    rows = ([number, rule["tier"], "" if rule["enabled"] else "off", rule["note"]] for number, rule in enumerate(rules))
    print_table(["#", "tier", "", "what it is for"], rows, empty="No rules: all mail is taken in whole.")


@policy.command("set")
def set_(
    file: Annotated[Path, typer.Argument(help="JSON as `postroom policy show --json` prints it.")],
    dry_run: DryRunOption = False,
) -> None:
    """Replace all rules by those of a file. If there is a mistake, it is named and nothing changes."""
    rules = _read(file)
    parse_rules(rules)

    async def run(app: App) -> TierPolicy:
        if dry_run:
            return await app.database.read(definitions.policy_in_force)
        return await app.database.write(
            lambda tx: definitions.replace_policy(tx, rules, Actor.of(me()), app.clock.now())
        )

    in_force = with_app(run)
    if dry_run:
        console.print(f"{len(rules)} rules can be read; {len(in_force.rules)} are in force.")
    else:
        console.print(f"{len(in_force.rules)} rules are in force; connectors get them with their next heartbeat.")


def _read(file: Path) -> list[Any]:
    try:
        rules = jsonlib.loads(read_file("file", file))
    except (ValueError, RecursionError):
        raise BadInput("file", f"{file} is not JSON") from None
    if not isinstance(rules, list):
        raise BadInput("file", f"{file} does not hold a list of rules")
    return rules
