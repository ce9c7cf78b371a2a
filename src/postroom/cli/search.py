"""`postroom search`: the archive's mail, newest first or best first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.text import Text

from postroom import settings
from postroom.archive.layout import account_name
from postroom.archive.opening import open_place
from postroom.archive.search import Count, Hit, Page, ShardProblem, Snippet, Sort
from postroom.cli.output import JsonOption, console, errors, print_json
from postroom.domain.errors import BadInput
from postroom.mail.query import QueryError

_MOST_CONTEXT = 60
_INDENT = " " * 18
CONTEXT = {"ignore_unknown_options": True}  # so that `-invoice` is a query and not an option


def search(
    query: Annotated[str, typer.Argument(help="What to look for, as in Gmail: words, from:, subject:, OR, - ...")],
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 500.")] = 20,
    sort: Annotated[Sort, typer.Option(help="Newest first, or best match first.")] = Sort.DATE,
    account: Annotated[
        list[str] | None, typer.Option(help="Only this account's mail; may be given more than once.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Go on where a page ended, with the word that it printed.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only say how many there are.")] = False,
    json: JsonOption = False,
) -> None:
    """Search the archive.

    Spam and trash are left out unless the query names them; `in:anywhere` searches everything.
    """
    if query.startswith("--"):
        raise BadInput("option", f"there is no {query}; `postroom search --help` lists the options")
    with open_place(settings.load()) as place, place.search() as archive:
        _require_accounts(account, archive.accounts())
        try:
            answer = (
                archive.count(query, accounts=account)
                if count
                else archive.search(query, accounts=account, limit=limit, sort=sort, after=after)
            )
        except QueryError as error:
            _point_at(query, error.position)
            raise
        is_empty = not archive.accounts()
    if json:
        print_json(answer)
    elif isinstance(answer, Count):
        console.print(f"{answer.messages:,}")
    else:
        _print(answer, query, is_empty=is_empty)
    _warn(answer.problems)


def _require_accounts(wanted: Sequence[str] | None, known: Sequence[str]) -> None:
    for email in wanted or ():
        if account_name(email) not in known:
            there = f"there is mail of {', '.join(known)}" if known else "it is empty"
            raise BadInput("account", f"no mail of {email} is in the archive; {there}")


def _point_at(query: str, position: int) -> None:
    """The query with a caret under the mistake; of a long one, the part around it."""
    start = max(position - 1 - _MOST_CONTEXT, 0)
    part = query[start : start + 2 * _MOST_CONTEXT]
    errors.print(f"  {_plain(part)}\n  {' ' * (position - 1 - start)}^", markup=False, no_wrap=True)


def _print(page: Page, query: str, *, is_empty: bool) -> None:
    if is_empty:
        console.print("The archive is empty: no mail has been imported or synchronised yet.")
    elif not page.hits:
        console.print("No mail matches. Spam and trash are searched only with in:anywhere, in:spam or in:trash.")
    for hit in page.hits:
        _print_hit(hit)
    if page.next:
        console.print(f"There is more: --after {page.next}", soft_wrap=True)


def _print_hit(hit: Hit) -> None:
    mail = hit.message
    head = Text(f"{mail.date:%Y-%m-%d %H:%M}  {mail.key}  ")
    head.append(_plain(mail.sender) or "(no sender)", style="bold").append("  ")
    head.append(_plain(mail.subject) or "(no subject)")
    console.print(head, no_wrap=True, overflow="ellipsis")
    if hit.snippet.text:
        console.print(Text(_INDENT, style="dim") + _shown(hit.snippet), no_wrap=True, overflow="ellipsis")


def _shown(snippet: Snippet) -> Text:
    text = Text(_plain(snippet.text), style="dim")
    for start, end in snippet.marks:
        text.stylize("bold not dim", start, end)
    return text


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
