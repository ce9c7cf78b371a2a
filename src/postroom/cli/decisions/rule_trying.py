"""`postroom rules try`: what a rule would have done with the mail in the archive. Nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from postroom import settings
from postroom.app import App
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.layout import account_name
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import open_archive
from postroom.cli.decisions.rule_options import RuleOptions, takes_rule_options
from postroom.cli.session import with_app
from postroom.cli.terminal import JsonOption, console, errors, print_json, print_table, printable
from postroom.db import Tx
from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput, Fatal
from postroom.triage.rules import store
from postroom.triage.rules.files import read_file
from postroom.triage.rules.rule import Rule, described, parse_draft, rule_of
from postroom.triage.rules.trial import UNSAID, Trial, TrialSubject, mail_to_try, replay, saved_subject

_PAGE = 200
_INTERRUPTED = 130


@dataclass(frozen=True)
class _Subject(TrialSubject):
    does_nothing: bool = False


@takes_rule_options
def try_(
    name: Annotated[str | None, typer.Argument(help="A saved rule, or one of the file's; options otherwise.")] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Try the rules of a TOML or YAML file.")] = None,
    query: Annotated[str | None, typer.Option("--query", help="Only mail that this search finds.")] = None,
    account: Annotated[list[str] | None, typer.Option("--account", help="Only this account's mail.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Look at so many messages, the newest.")] = None,
    show: Annotated[int, typer.Option("--show", min=0, max=10_000, help="List so many of the matches.")] = 20,
    json: JsonOption = False,
    options: RuleOptions,
) -> None:
    """Replay a rule over the archive, newest mail first: what it would have matched, and done.

    Takes a saved rule by its name, the rules of a file, or the options of `rules add`. Each message is judged as if it
    came in now. Neither the mailbox nor a model nor the database is touched.
    """
    subject = _subject(name, file, options)
    trial = Trial()
    with open_archive(settings.load()) as place, place.reader() as archive:
        is_whole = _try(subject, archive, _Mail(place, query, account, limit), trial, show)
    if json:
        print_json({"complete": is_whole, **_as_json(subject, trial)})
    else:
        _print(subject, trial, is_whole=is_whole)
    if not is_whole:
        sys.exit(_INTERRUPTED)


@dataclass(frozen=True)
class _Mail:
    """Which mail to look at."""

    place: ArchiveBackend
    query: str | None
    accounts: Sequence[str] | None
    limit: int | None

    def found(self, archive: MailReader) -> Iterator[ArchivedMessage]:
        return islice(
            mail_to_try(archive.newest_first(self.accounts)) if self.query is None else self._searched(), self.limit
        )

    def count(self, archive: MailReader) -> int:
        if self.query is None:
            total = sum(map(archive.count, self.accounts)) if self.accounts else archive.count()
        else:
            with self.place.search() as search:
                total = search.count(self.query, accounts=self.accounts, limit=self.limit).messages
        return total if self.limit is None else min(total, self.limit)

    def _searched(self) -> Iterator[ArchivedMessage]:
        with self.place.search() as search:
            token: str | None = None
            while True:
                page = search.search(self.query or "", accounts=self.accounts, limit=_PAGE, after=token)
                if page.problems:
                    raise Fatal(f"Not all of the archive could be searched: {page.problems[0]}. Run `postroom verify`.")
                yield from (hit.message for hit in page.hits)
                token = page.next
                if token is None:
                    return


def _subject(name: str | None, file: Path | None, options: RuleOptions) -> _Subject:
    given = options.given()
    if file is not None and given:
        raise BadInput("--file", "holds whole rules; give either it or options")
    if file is not None:
        drafts = [draft for draft in read_file(file) if draft.enabled or name is not None]
        wanted = [draft for draft in drafts if name is None or draft.name.lower() == name.lower()]
        if not wanted:
            raise BadInput("--file", f"{file} holds no rule{f' named {name!r}' if name else ''}")
        return _Subject([rule_of(draft.name, draft) for draft in wanted])
    if given:
        if "condition" not in given:
            raise BadInput("rule", "needs something to ask of a message, such as --from, --domain or --subject")
        draft = parse_draft({"name": name or "this rule", "actions": list(UNSAID), **given})
        return _Subject([rule_of(draft.name, draft)], does_nothing="actions" not in given)
    if name is None:
        raise BadInput("rule", "name a saved rule, or give --file or options such as --from; see --help")
    return _saved(name)


def _saved(name: str) -> _Subject:
    def read(tx: Tx) -> _Subject:
        found = saved_subject(tx, store.get_rule(tx, name))
        return _Subject(found.rules, found.label_ids)

    async def run(app: App) -> _Subject:
        return await app.database.read(read)

    return with_app(run)


def _try(subject: _Subject, archive: MailReader, mail: _Mail, trial: Trial, keep: int) -> bool:
    """False if it was interrupted; the trial then holds what was found until then."""
    _require(mail.accounts, archive.accounts())
    try:
        with _progress(mail.count(archive)) as show:
            replay(subject, archive, mail.found(archive), SystemClock().now(), trial, keep=keep, show=show)
    except KeyboardInterrupt:
        return False
    return True


def _require(wanted: Sequence[str] | None, known: Collection[str]) -> None:
    for email in wanted or ():
        if account_name(email) not in known:
            there = f"there is mail of {', '.join(sorted(known))}" if known else "it is empty"
            raise BadInput("account", f"no mail of {email} is in the archive; {there}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    with Progress(
        "trying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=errors, transient=True
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _as_json(subject: _Subject, trial: Trial) -> dict[str, Any]:
    return {
        "looked_at": trial.looked_at,
        "passed_over": {"own": trial.own, "unreadable": trial.unreadable},
        "matched": trial.total,
        "by_rule": {rule.name: trial.matched[rule.name] for rule in subject.rules},
        "messages": [
            {
                "account": hit.message.account,
                "id": hit.message.key,
                "date": hit.message.date,
                "sender": hit.message.sender,
                "subject": hit.message.subject,
                "rule": hit.rule.name,
                "actions": [] if subject.does_nothing else [wanted.to_json() for wanted in hit.rule.actions],
            }
            for hit in trial.hits
        ],
    }


def _print(subject: _Subject, trial: Trial, *, is_whole: bool) -> None:
    several = len(subject.rules) > 1
    for hit in trial.hits:
        mail = hit.message
        line = Text(f"{mail.date:%Y-%m-%d %H:%M}  {mail.key}  ")
        line.append(_plain(mail.sender) or "(no sender)", style="bold").append("  ")
        line.append(_plain(mail.subject) or "(no subject)")
        line.append(f"  ← {_plain(hit.rule.name)}" if several else "", style="dim")
        console.print(line, no_wrap=True, overflow="ellipsis")
    if trial.total > len(trial.hits):
        console.print(f"... and {trial.total - len(trial.hits):,} more (--show N lists more of them).")
    if several:
        rows = ([rule.name, trial.matched[rule.name], _does(rule)] for rule in subject.rules)
        print_table(["rule", "matches", "would do"], rows, empty="")
    stopped = "" if is_whole else "Stopped. So far: "
    console.print(f"{stopped}{_counted(trial)}", markup=False)
    if not several and trial.total and not subject.does_nothing:
        console.print(f"Each: {_does(subject.rules[0])}. Nothing was done.", markup=False)


def _counted(trial: Trial) -> str:
    passed = [
        f"{count:,} {what}" for count, what in ((trial.own, "of your own"), (trial.unreadable, "unreadable")) if count
    ]
    aside = f" ({' and '.join(passed)} passed over)" if passed else ""
    return f"{trial.total:,} of {trial.looked_at:,} messages match{aside}."


def _does(rule: Rule) -> str:
    return ", ".join(map(described, rule.actions))


def _plain(text: str) -> str:
    return printable("".join(char if char.isprintable() else " " for char in text))
