"""`postroom contacts`: the people you know, whose mail comes first."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from postroom.accounts.account import list_accounts
from postroom.app import App
from postroom.cli.session import read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, print_json, print_table, printable
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.mail.address_books import AddressBook, read_csv, read_vcards
from postroom.switchboard import contacts
from postroom.switchboard.contacts import ContactSource, Export, ImportResult

app = typer.Typer(help="The people you know; their mail is served first.", no_args_is_help=True)


class ContactFileFormat(StrEnum):
    VCARD = "vcard"
    CSV = "csv"


_BY_SUFFIX = {".vcf": ContactFileFormat.VCARD, ".vcard": ContactFileFormat.VCARD, ".csv": ContactFileFormat.CSV}


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A vCard (.vcf) or CSV file, as Google or Outlook export it.")],
    format: Annotated[
        ContactFileFormat | None, typer.Option(help="The file's format, if its name does not show it.")
    ] = None,
    mailbox: Annotated[
        str | None, typer.Option(help="Contacts of this mailbox, also given to a connector bound to it.")
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Add the contacts of a file. Importing it again changes nothing."""
    kind = format or _BY_SUFFIX.get(file.suffix.lower())
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
        print_json({"result": result, "problems": book.problems, "dry_run": dry_run})
        return
    for problem in book.problems:
        errors.print(f"left out: {printable(problem)}", markup=False)
    verb = "would be added" if dry_run else "added"
    console.print(f"{result.added:,} {verb}, {result.changed:,} changed, {result.unchanged:,} already known.")


@app.command("list")
def list_all(
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Show at most this many.")] = 1_000,
    json: JsonOption = False,
) -> None:
    """Show the contacts, by address."""
    found, count = read(lambda tx: (contacts.list_contacts(tx, limit), contacts.count_contacts(tx)))
    if json:
        print_json(found)
        return
    rows = [(one.address, one.source, one.last_seen_at, one.name or "-") for one in found]
    print_table(("address", "from", "last mail sent", "name"), rows, empty="There are no contacts yet.")
    if count > len(found):
        console.print(f"{count - len(found):,} more; use --limit.")


@app.command()
def export(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
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
        print_json(made)
    elif dry_run:
        console.print(f"{len(made.addresses):,} addresses would be exported.")
    else:
        console.print(f"{len(made.addresses):,} addresses, version {made.version}, {made.generated_at:%Y-%m-%d %H:%M}.")


def _read(file: Path, kind: ContactFileFormat) -> AddressBook:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput("file", f"{file} cannot be read: {error.strerror}") from None
    return read_vcards(data) if kind is ContactFileFormat.VCARD else read_csv(data)
