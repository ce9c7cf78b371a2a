"""`postroom contacts`: the people you know, whose mail comes first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from postroom.accounts.account import list_accounts
from postroom.app import App
from postroom.audit import Actor
from postroom.cli import terminal
from postroom.cli.session import change, read, with_app
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.mail.address_books import AddressBook, read_csv, read_vcards
from postroom.switchboard import contacts
from postroom.switchboard.contacts import Contact, ContactSource, Export, ImportResult

app = typer.Typer(help="The people you know; their mail is served first.", no_args_is_help=True)


class ContactFileFormat(StrEnum):
    VCARD = "vcard"
    CSV = "csv"


AddressArgument = Annotated[str, typer.Argument(help="The contact's address.")]
MailboxOption = Annotated[
    str | None, typer.Option(help="Contacts of this mailbox, also given to a connector bound to it.")
]
_BY_SUFFIX = {".vcf": ContactFileFormat.VCARD, ".vcard": ContactFileFormat.VCARD, ".csv": ContactFileFormat.CSV}


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A vCard (.vcf) or CSV file, as Google or Outlook export it.")],
    format: Annotated[
        ContactFileFormat | None, typer.Option(help="The file's format, if its name does not show it.")
    ] = None,
    mailbox: MailboxOption = None,
    dry_run: terminal.DryRunOption = False,
    json: terminal.JsonOption = False,
) -> None:
    """Add the contacts of a file. Importing it again changes nothing."""
    kind = format or _BY_SUFFIX.get(file.suffix.lower())
    if kind is None and not file.exists():
        raise BadInput("file", f"{file} does not exist")
    if kind is None:
        raise BadInput("file", f"{file.name} does not end in .vcf or .csv; say what it is with --format")
    book = _read(file, kind)

    async def run(app: App) -> ImportResult:
        source, now = ContactSource(kind.value), app.clock.now()
        return await app.database.write(
            lambda tx: contacts.import_entries(tx, book.entries, source, now, mailbox=mailbox, dry_run=dry_run)
        )

    result = with_app(run)
    if json:
        terminal.print_json({"result": result, "problems": book.problems, "dry_run": dry_run})
        return
    for problem in book.problems:
        terminal.errors.print(f"left out: {terminal.printable(problem)}", markup=False)
    verb = "would be added" if dry_run else "added"
    terminal.console.print(f"{result.added:,} {verb}, {result.changed:,} changed, {result.unchanged:,} already known.")
    if result.removed:
        terminal.console.print(
            f"{result.removed:,} left out, because you removed them; `postroom contacts add` brings one back."
        )


@app.command()
def add(
    address: AddressArgument,
    name: Annotated[str, typer.Option(help="The contact's name.")] = "",
    mailbox: MailboxOption = None,
    priority: Annotated[bool, typer.Option(help="Serve the contact's mail first.")] = True,
    json: terminal.JsonOption = False,
) -> None:
    """Add a contact, or change the name and priority of a known one."""

    def write(tx: Tx, who: Actor, now: datetime) -> Contact:
        return contacts.add_contact(tx, address, name, who, now, mailbox=mailbox, has_priority=priority)

    _change(write, "{} is a contact" + ("" if priority else ", whose mail is not served first") + ".", json)


@app.command()
def remove(address: AddressArgument, json: terminal.JsonOption = False) -> None:
    """Remove a contact. Neither sent mail nor an import brings it back; `add` does."""
    _change(lambda tx, who, now: contacts.remove_contact(tx, address, who, now), "{} is no longer a contact.", json)


@app.command()
def exclude(address: AddressArgument, json: terminal.JsonOption = False) -> None:
    """Stop serving a contact's mail first. It stays a contact."""
    _change(
        lambda tx, who, now: contacts.set_contact_priority(tx, address, False, who, now),
        "Mail from {} is no longer served first.",
        json,
    )


@app.command()
def include(address: AddressArgument, json: terminal.JsonOption = False) -> None:
    """Serve a contact's mail first again."""
    _change(
        lambda tx, who, now: contacts.set_contact_priority(tx, address, True, who, now),
        "Mail from {} is served first.",
        json,
    )


def _change(transaction: Callable[[Tx, Actor, datetime], Contact], sentence: str, json: bool) -> None:
    contact = change(transaction, dry_run=False)
    if json:
        terminal.print_json(contact)
    else:
        terminal.console.print(terminal.printable(sentence.format(contact.address)), markup=False)


@app.command("list")
def list_all(
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Show at most this many.")] = 1_000,
    json: terminal.JsonOption = False,
) -> None:
    """List the contacts, by address."""
    found, count = read(lambda tx: (contacts.list_contacts(tx, limit), contacts.count_contacts(tx)))
    if json:
        terminal.print_json(found)
        return
    rows = [
        (one.address, one.source, "first" if one.has_priority else "-", one.last_seen_at, one.name or "-")
        for one in found
    ]
    terminal.print_table(
        ("address", "from", "served", "last mail sent", "name"), rows, empty="There are no contacts yet."
    )
    if count > len(found):
        terminal.console.print(f"{count - len(found):,} more; use --limit.")


@app.command()
def export(dry_run: terminal.DryRunOption = False, json: terminal.JsonOption = False) -> None:
    """Write the snapshot for connectors now. A worker does this every 15 minutes."""

    async def run(app: App) -> Export:
        owners = [account.email for account in await app.database.read(list_accounts)]
        people = contacts.people_written_to(app.archive.backend, owners)
        now = app.clock.now()
        if dry_run:
            addresses = {one.address for one in await app.database.read(contacts.list_contacts)}
            return Export(0, now, tuple(sorted(addresses | {one.address for one in people})))

        def write(tx: Tx) -> Export:
            contacts.add_written_to(tx, people, now)
            return contacts.export_contacts(tx, now)

        return await app.database.write(write)

    made = with_app(run)
    if json:
        terminal.print_json(made)
    elif dry_run:
        terminal.console.print(f"{len(made.addresses):,} addresses would be exported.")
    else:
        terminal.console.print(
            f"{len(made.addresses):,} addresses, version {made.version}, {terminal.minute(made.generated_at)}."
        )


def _read(file: Path, kind: ContactFileFormat) -> AddressBook:
    data = terminal.read_file("file", file)
    return read_vcards(data) if kind is ContactFileFormat.VCARD else read_csv(data)
