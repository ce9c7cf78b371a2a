"""`postroom show`: one archived message, its exact bytes, and its attachments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from postroom import settings
from postroom.archive.lookup import attachment_of
from postroom.archive.model import ArchivedAttachment, ArchivedMessage
from postroom.archive.new_files import output_folder, write_under_free_name
from postroom.archive.opening import open_place
from postroom.cli.output import JsonOption, console, print_json, print_table, shown
from postroom.domain.errors import BadInput
from postroom.mail.parsing import ParsedMail
from postroom.reading.mail import read_mail


def show(
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="A key, 8 or more characters of its beginning, or a Message-ID as <...>."),
    ],
    account: Annotated[str | None, typer.Option("--account", help="Look only in this account's mail.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the exact bytes and nothing else.")] = False,
    attachments: Annotated[bool, typer.Option("--attachments", help="List the attachments.")] = False,
    extract: Annotated[int | None, typer.Option("--extract", metavar="N", help="Save attachment N.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder to save to; nothing in it is overwritten.")] = Path(),
    json: JsonOption = False,
) -> None:
    """Show a message of the archive."""
    if sum((raw, attachments, extract is not None)) > 1:
        raise BadInput("raw", "--raw, --attachments and --extract exclude each other")
    with open_place(settings.load()) as place, place.reader() as archive:
        message = archive.find(message_id, account)
        content = archive.raw_of(message)
        listed = list(archive.attachments_of(message))
    if raw:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    elif extract is not None:
        _extract(read_mail(content), extract, out, json=json)
    elif attachments:
        _list(listed, json=json)
    elif json:
        parsed = read_mail(content)
        told = {"text": parsed.best_text, "attachments": listed, "problems": parsed.problems, "trouble": parsed.trouble}
        print_json({"message": message, **told})
    else:
        _print(message, read_mail(content), listed)


def _extract(parsed: ParsedMail, number: int, folder: Path, *, json: bool) -> None:
    attachment = attachment_of(parsed, number)
    name = attachment.filename or f"attachment-{number}"
    path, is_new = write_under_free_name(output_folder(folder), name, attachment.content())
    if json:
        print_json({"path": path, "size": attachment.size, "sha256": attachment.sha256, "written": is_new})
    else:
        said = (
            f"Saved {attachment.size:,} bytes as {path}." if is_new else f"{path} was there already, with these bytes."
        )
        console.print(said, markup=False, soft_wrap=True)


def _list(attachments: list[ArchivedAttachment], *, json: bool) -> None:
    if json:
        print_json(attachments)
        return
    print_table(
        ["n", "size", "type", "name"],
        ([a.number, f"{a.size:,}", a.content_type, _harmless(a.filename)] for a in attachments),
        empty="The message has no attachments.",
    )


def _print(message: ArchivedMessage, parsed: ParsedMail, attachments: list[ArchivedAttachment]) -> None:
    facts = {
        "key": message.key,
        "account": message.account,
        "date": shown(message.date),
        "from": ", ".join(map(str, parsed.from_)),
        "to": ", ".join(map(str, parsed.to)),
        "cc": ", ".join(map(str, parsed.cc)),
        "subject": parsed.subject,
        "labels": ", ".join(message.labels),
        "source": message.provenance,
        "deleted": shown(message.deleted_at_source) if message.deleted_at_source else "",
        "attachments": ", ".join(f"{a.number}: {a.filename or a.content_type}" for a in attachments),
        "problems": "" if parsed.trouble else "; ".join(parsed.problems),
    }
    for name, value in facts.items():
        if value:
            console.print(f"{name:<12} {_harmless(value)}", markup=False, soft_wrap=True)
    text = parsed.best_text
    if parsed.trouble:
        text = (
            f"This message could not be read: {parsed.trouble}.\n"
            f"Its exact bytes are in the archive; `postroom show {message.key} --raw` writes them."
        )
    console.print(f"\n{_harmless(text)}", markup=False, soft_wrap=True)


def _harmless(text: str) -> str:
    """Mail may hold sequences that drive a terminal; here they are only seen."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
