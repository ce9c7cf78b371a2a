"""`postroom ask`: a question about archived mail, answered by the model in sentences that quote messages."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from postroom.accounts.account import list_accounts
from postroom.app import App
from postroom.app.owner_tools.asking_tools import AskingTools
from postroom.archive.messages import account_name
from postroom.cli.mail.search import require_accounts
from postroom.cli.session import me, with_app
from postroom.cli.terminal import JsonOption, console, errors, print_json, printable, shown
from postroom.contract import agent as contract
from postroom.domain.money import Micros, format_dollars
from postroom.switchboard.toolbox import Direct, Toolbox

_WARNING = "This message seems to give orders to a language model; read it before you believe this."


def ask(
    question: Annotated[str, typer.Argument(help='For example "When did I last visit Dr. Smith?"')],
    account: Annotated[str | None, typer.Option("--account", help="Only this account's mail.")] = None,
    source: Annotated[
        bool,
        typer.Option("--source", help="Search the mailbox itself too, and take in what matches; a worker has to run."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Answer a question about your mail, with quotes.

    The archive is searched for the words of the question, and the language model answers from what was found. Each
    sentence quotes a message or an attachment word for word; what none supports is left out. One call of the model is
    made, within its daily ceiling. Without a model, what was found is shown. Exit code 1 if the model could not be
    asked.
    """

    async def run(app: App) -> contract.AskReply:
        backend = app.archive.backend
        if account is not None:
            await _require(app, account, source)
        toolbox = Toolbox(AskingTools(app.queue, backend, app.current, app.vault, app.budget).tools())
        given = {"question": question, "endpoint_identity": account, "source": source}
        return await Direct(toolbox, me()).call(contract.ASK, given)

    reply = with_app(run)
    if json:
        print_json(reply.wire())
    else:
        _print(reply)
    for problem in reply.problems:
        errors.print(printable(f"not searched: {problem}"), markup=False, soft_wrap=True)
    if reply.source is not None:
        _print_source_problems(reply.source)
    if reply.outcome == "not_asked":
        raise typer.Exit(1)


async def _require(app: App, account: str, source: bool) -> None:
    """With `source`, a mailbox that has no mail in the archive yet can be asked about too."""
    with app.archive.backend.reader() as reader:
        known = reader.accounts()
    if source:
        known = [*known, *(account_name(each.email) for each in await app.database.read(list_accounts))]
    require_accounts([account], known)


def _print(reply: contract.AskReply) -> None:
    for sentence in reply.sentences:
        _print_sentence(sentence)
    if not reply.sentences:
        to = errors if reply.outcome == "not_asked" else console
        to.print(printable(reply.answer), markup=False, soft_wrap=True)
        _print_messages(reply)
    if reply.source is not None:
        _print_source(reply.source)
    if reply.dropped:
        what = "1 sentence was" if reply.dropped == 1 else f"{reply.dropped} sentences were"
        console.print(f"{what} left out: no message supports what the model said there.")
    if reply.cost_microdollars:
        console.print(Text(f"Cost: {format_dollars(Micros(reply.cost_microdollars))}", style="dim"))


def _print_sentence(sentence: contract.CitedSentenceReply) -> None:
    console.print(Text(printable(sentence.text), style="bold"), soft_wrap=True)
    console.print(printable(f"  “{sentence.quote}”"), markup=False, soft_wrap=True)
    if sentence.attachment is not None:
        console.print(Text(printable(f"  in the attachment {sentence.attachment}"), style="dim"), soft_wrap=True)
    source = f"  {shown(sentence.date)}  {sentence.key}  {sentence.sender}  {sentence.subject or '(no subject)'}"
    console.print(Text(printable(source), style="dim"), no_wrap=True, overflow="ellipsis")
    if sentence.from_source:
        console.print(Text("  Taken in from the mailbox for this question.", style="dim"))
    if sentence.addresses_model:
        console.print(Text(f"  {_WARNING}", style="yellow"), soft_wrap=True)


def _print_messages(reply: contract.AskReply) -> None:
    for mail in reply.messages:
        line = f"{shown(mail.date)}  {mail.key}  {mail.sender}  {mail.subject or '(no subject)'}"
        console.print(printable(line), markup=False, no_wrap=True, overflow="ellipsis")


def _print_source(source: contract.AskedSourceReply) -> None:
    if not source.mailboxes:
        console.print("There is no mailbox to search: only the archive was searched.")
        return
    what = "1 message was" if source.taken_in == 1 else f"{source.taken_in} messages were"
    console.print(printable(f"{what} taken in from {', '.join(source.mailboxes)}."), markup=False, soft_wrap=True)


def _print_source_problems(source: contract.AskedSourceReply) -> None:
    for mailbox in source.under_way:
        what = f"{mailbox}: the search of the mailbox is not over; it goes on while a worker runs (`postroom up`)."
        errors.print(printable(f"{what} Ask again then."), markup=False, soft_wrap=True)
    for problem in source.problems:
        errors.print(printable(f"not searched: {problem}"), markup=False, soft_wrap=True)
