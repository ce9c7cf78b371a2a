"""`postroom search` and `postroom show`: find archived mail; print one message, its exact bytes and its attachments."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from postroom import settings
from postroom.archive.backend import ArchiveBackend
from postroom.archive.exporting import output_folder, write_under_free_name
from postroom.archive.messages import ArchivedAttachment, ArchivedMessage, account_name
from postroom.archive.search import (
    ArchivedConversation,
    SearchCount,
    SearchHit,
    SearchPage,
    ShardProblem,
    Snippet,
    Sort,
)
from postroom.archive.service import open_archive
from postroom.cli.terminal import JsonOption, console, errors, minute, print_json, print_table, shown
from postroom.domain.errors import BadInput, Fatal, NotFound
from postroom.mail.parsing import ParsedMail, date_problem
from postroom.mail.query import QueryError

_MOST_CONTEXT = 60
_PAGE = 200
_MOST_SHOWN = 100
_INDENT = " " * 18
_UNREAD = (
    "Some attachments have not been read yet, so their words cannot be found. A running Postroom (`postroom up`) reads "
    "them; `postroom archive coverage` counts those that wait."
)


def search(
    query: Annotated[
        str | None, typer.Argument(help="The query, as in Gmail: words, from:, subject:, OR, - ...")
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 500.")] = 20,
    sort: Annotated[
        Sort,
        typer.Option(
            help="Newest first; best match by words first; or, with the meaning extra, best by words and meaning."
        ),
    ] = Sort.DATE,
    account: Annotated[
        list[str] | None, typer.Option(help="Only this account's mail; may be given more than once.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Continue after a page, with the token that it printed.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of matches.")] = False,
    saved: Annotated[
        str | None, typer.Option("--saved", metavar="NAME", help="Run a search that was saved under this name.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search the archive.

    Spam and trash are left out unless the query names them; `in:anywhere` searches everything.
    """
    query, account = _asked(query, saved, account)
    if query.startswith("--"):
        raise BadInput("option", f"there is no {query}; `postroom search --help` lists the options")
    with open_archive(settings.load()) as place, place.search() as archive:
        require_accounts(account, archive.accounts())
        try:
            answer = (
                archive.count(query, accounts=account)
                if count
                else archive.search(query, accounts=account, limit=limit, sort=sort, after=after)
            )
            if isinstance(answer, SearchPage) and after is None and answer.next is None:
                answer = replace(answer, suggestion=archive.suggestion(query, len(answer.hits), accounts=account))
        except QueryError as error:
            _point_at(query, error.position)
            raise
        has_nothing = not archive.accounts()
        is_unread = isinstance(answer, SearchPage) and not answer.hits and _attachments_wait(place, account)
    if json:
        print_json(answer)
    elif isinstance(answer, SearchCount):
        console.print(f"{answer.messages:,}")
    else:
        _print_page(answer, query, is_empty=has_nothing)
        if is_unread:
            console.print(_UNREAD, soft_wrap=True)
    _warn(answer.problems)


def _asked(query: str | None, saved: str | None, account: list[str] | None) -> tuple[str, list[str] | None]:
    """The query and the accounts to search; a saved search may name a mailbox of its own."""
    if (query is None) == (saved is None):
        raise BadInput("query", "write a query, or `--saved NAME` for a saved one, but not both")
    if saved is None:
        return query or "", account
    from postroom.app.owner_tools.search_tools import find_search
    from postroom.cli.session import read

    try:
        found = read(lambda tx: find_search(tx, saved))
    except NotFound as error:
        raise NotFound("saved", error.problem) from None
    return found.query, account or (None if found.mailbox is None else [found.mailbox])


def _attachments_wait(place: ArchiveBackend, accounts: Sequence[str] | None) -> bool:
    with place.reader() as reader:
        return any(reader.waiting_attachments(each, None, 1) for each in accounts or reader.accounts())


def require_accounts(wanted: Sequence[str] | None, known: Collection[str]) -> None:
    for email in wanted or ():
        if account_name(email) not in known:
            there = f"there is mail of {', '.join(sorted(known))}" if known else "it is empty"
            raise BadInput("account", f"no mail of {email} is in the archive; {there}")


def everything_found(place: ArchiveBackend, query: str, accounts: Sequence[str] | None) -> Iterator[ArchivedMessage]:
    """All that a search finds, page by page. A shard that cannot be searched is an error: the answer must be whole."""
    with place.search() as search:
        token: str | None = None
        while True:
            page = search.search(query, accounts=accounts, limit=_PAGE, after=token)
            if page.problems:
                raise Fatal(f"Not all of the archive could be searched: {page.problems[0]}. Run `postroom verify`.")
            yield from (hit.message for hit in page.hits)
            token = page.next
            if token is None:
                return


def _point_at(query: str, position: int) -> None:
    """The query with a caret under the mistake; of a long one, the part around it."""
    start = max(position - 1 - _MOST_CONTEXT, 0)
    part = query[start : start + 2 * _MOST_CONTEXT]
    errors.print(f"  {_plain(part)}\n  {' ' * (position - 1 - start)}^", markup=False, no_wrap=True)


def _print_page(page: SearchPage, query: str, *, is_empty: bool) -> None:
    if is_empty:
        console.print("The archive is empty: no mail has been imported or synchronised yet.")
    elif not page.hits:
        console.print("No mail matches. Spam and trash are searched only with in:anywhere, in:spam or in:trash.")
    for hit in page.hits:
        _print_hit(hit)
    if page.suggestion:
        console.print(f"Did you mean: {_plain(page.suggestion)}", markup=False, soft_wrap=True)
    if page.next:
        console.print(f"There is more: --after {page.next}", soft_wrap=True)


def _print_hit(hit: SearchHit) -> None:
    mail = hit.message
    head = Text(f"{minute(mail.date)}  {mail.key}  ")
    head.append(_plain(mail.sender) or "(no sender)", style="bold").append("  ")
    head.append(_plain(mail.subject) or "(no subject)")
    console.print(head, no_wrap=True, overflow="ellipsis")
    if hit.snippet.text:
        console.print(Text(_INDENT, style="dim") + _shown(hit.snippet), no_wrap=True, overflow="ellipsis")


def _shown(snippet: Snippet) -> Text:
    text = Text(_plain(snippet.text), style="dim")
    for start, end in snippet.marks:
        text.stylize("bold not dim", start, end)
    return text if snippet.attachment is None else Text(f"{_plain(snippet.attachment)}: ", style="dim") + text


def _plain(text: str) -> str:
    """Character by character what was there, but nothing that a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)


def _warn(problems: Iterable[ShardProblem]) -> None:
    """An answer with a gap says so, and the exit code too."""
    lines = [f"not searched: {problem.shard}: {problem.problem}" for problem in problems]
    for line in lines:
        errors.print(line, markup=False, soft_wrap=True)
    if lines:
        sys.exit(1)


def show(
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="A key, its first 8 or more characters, or a Message-ID as <...>."),
    ],
    account: Annotated[str | None, typer.Option("--account", help="Look only in this account's mail.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the exact bytes and nothing else.")] = False,
    attachments: Annotated[bool, typer.Option("--attachments", help="List the attachments.")] = False,
    extract: Annotated[int | None, typer.Option("--extract", metavar="N", help="Save attachment N.")] = None,
    out: Annotated[
        Path, typer.Option("--out", help="The folder to save to; existing files are never overwritten.")
    ] = Path(),
    json: JsonOption = False,
) -> None:
    """Show one archived message."""
    if sum((raw, attachments, extract is not None)) > 1:
        raise BadInput("raw", "--raw, --attachments and --extract cannot be combined")
    with open_archive(settings.load()) as place, place.reader() as archive:
        message = archive.find(message_id, account)
        if raw:
            sys.stdout.buffer.write(archive.raw_of(message))
            sys.stdout.buffer.flush()
            return
        listed = list(archive.attachments_of(message))
        if attachments:
            _list(listed, json=json)
            return
        parsed = archive.parsed(message)
        with place.search() as search:
            conversation = search.conversation(message, newest=_MOST_SHOWN)
    if extract is not None:
        _extract(parsed, extract, out, json=json)
    elif json:
        details = {
            "text": parsed.best_text,
            "attachments": listed,
            "problems": _problems(message, parsed),
            "trouble": parsed.trouble,
            "conversation": {
                "name": conversation.name,
                "messages": conversation.count,
                "people": conversation.people,
            },
        }
        print_json({"message": message, **details})
    else:
        _print_message(message, parsed, listed, conversation)


def _problems(message: ArchivedMessage, parsed: ParsedMail) -> list[str]:
    mark = date_problem(parsed.date, message.date)
    return [*parsed.problems, *([mark] if mark else [])]


def _extract(parsed: ParsedMail, number: int, folder: Path, *, json: bool) -> None:
    attachment = parsed.attachment(number)
    name = attachment.filename or f"attachment-{number}"
    path, is_new = write_under_free_name(output_folder(folder), name, attachment.content())
    if json:
        print_json({"path": path, "size": attachment.size, "sha256": attachment.sha256, "written": is_new})
    else:
        said = (
            f"Saved {attachment.size:,} bytes as {path}." if is_new else f"{path} already exists, with the same bytes."
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


def _print_message(
    message: ArchivedMessage,
    parsed: ParsedMail,
    attachments: list[ArchivedAttachment],
    conversation: ArchivedConversation,
) -> None:
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
        "conversation": _conversation(message, conversation),
        "attachments": ", ".join(f"{a.number}: {a.filename or a.content_type}" for a in attachments),
        "problems": "" if parsed.trouble else "; ".join(_problems(message, parsed)),
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


def _conversation(message: ArchivedMessage, conversation: ArchivedConversation) -> str:
    if conversation.count < 2:
        return ""
    people = ", ".join(f"{each.address} ({each.wrote})" for each in conversation.people if each.wrote)
    query = f"`postroom search thread:{conversation.name or message.key}`"
    return f"{conversation.count} messages{f' of {people}' if people else ''}; {query} finds them"


def _harmless(text: str) -> str:
    """Mail may hold sequences that drive a terminal; here they are only seen."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
