"""The options by which commands take a rule; `postroom rules try`: what a rule would have done with the mail in the
archive, without any change; and `postroom rules apply`: a rule on past mail, as a job, with its list of applications.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.text import Text

from postroom import settings
from postroom.app import App
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import open_archive
from postroom.audit import Actor
from postroom.cli.mail.search import everything_found, require_accounts
from postroom.cli.session import change_queue, me, read, with_app
from postroom.cli.terminal import (
    DryRunOption,
    JsonOption,
    age,
    console,
    minute,
    print_json,
    print_table,
    printable,
    progress_bar,
)
from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput
from postroom.domain.ids import normal_email
from postroom.triage.rules import applying, store
from postroom.triage.rules.files import read_file
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import Rule, described, parse_actions, parse_draft, parse_scope, rule_of
from postroom.triage.rules.trial import UNSAID, Trial, TrialSubject, mail_to_try, replay, saved_subject
from postroom.triage.rules.wording import simple_given

Texts = list[str] | None
_ASKS, _DOES = "Conditions (all must match; of an option given several times, any)", "The rule"


def _option(*names: str, help: str, panel: str = _ASKS, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


@dataclass(frozen=True)
class RuleOptions:
    """What was given; nothing is None or empty. The annotations are the options themselves."""

    sender: Annotated[Texts, _option("--from", help="The sender's address.", metavar="ADDRESS")] = None
    domain: Annotated[Texts, _option("--domain", help="The sender's domain.", metavar="DOMAIN")] = None
    subdomains: Annotated[bool, _option("--subdomains", help="With --domain: subdomains too.")] = False
    to: Annotated[Texts, _option("--to", help="An address in To or Cc.", metavar="ADDRESS")] = None
    subject: Annotated[Texts, _option("--subject", help="A text in the subject.", metavar="TEXT")] = None
    subject_regex: Annotated[
        Texts, _option("--subject-regex", help="A pattern (RE2) in the subject.", metavar="PATTERN")
    ] = None
    header: Annotated[
        str | None,
        _option("--header", help="A header that is present, or that contains a text.", metavar="'NAME[: TEXT]'"),
    ] = None
    label: Annotated[Texts, _option("--label", help="A label on the message.", metavar="LABEL")] = None
    list_id: Annotated[Texts, _option("--list", help="A mailing list's id.", metavar="ID")] = None
    attachment: Annotated[
        bool | None, _option("--attachment/--no-attachment", help="Whether it has an attachment.")
    ] = None
    larger: Annotated[str | None, _option("--larger", help="Larger than this.", metavar="5M")] = None
    smaller: Annotated[str | None, _option("--smaller", help="Smaller than this.", metavar="200K")] = None
    older: Annotated[str | None, _option("--older", help="Older than this.", metavar="30d")] = None
    younger: Annotated[str | None, _option("--younger", help="Younger than this.", metavar="12h")] = None
    do: Annotated[
        Texts,
        _option("--do", help="The action, such as archive or apply_label=Receipts.", panel=_DOES, metavar="ACTION"),
    ] = None
    scope: Annotated[
        str | None,
        _option("--scope", help="account:E, domain:D or sender:A; all mail otherwise.", panel=_DOES, metavar="SCOPE"),
    ] = None
    priority: Annotated[
        int | None, _option("--priority", help="Lower numbers come first; 100 if not given.", panel=_DOES)
    ] = None
    unattended: Annotated[
        bool | None, _option("--unattended/--attended", help="Dangerous actions need no approval.", panel=_DOES)
    ] = None

    def condition(self) -> dict[str, Any]:
        """As it would stand in a file; empty if nothing was asked for."""
        if self.subdomains and not self.domain:
            raise BadInput("--subdomains", "needs --domain")
        return simple_given(self).condition()

    def given(self) -> dict[str, Any]:
        """The parts of a rule that the options speak of."""
        if self.do:
            _require("--do", parse_actions, list(self.do))
        if self.scope is not None:
            _require("--scope", parse_scope, self.scope)
        found = {
            "scope": self.scope,
            "priority": self.priority,
            "condition": self.condition() or None,
            "actions": list(self.do) if self.do else None,
            "unattended": self.unattended,
        }
        return {name: value for name, value in found.items() if value is not None}


def _require(option: str, parse: Callable[[Any], object], value: object) -> None:
    """Raise what is wrong with it under the name that a person typed."""
    try:
        parse(value)
    except BadInput as error:
        _, _, part = error.field.partition(".")
        problem = f"{part} {error.problem}" if part not in ("", "type") else error.problem
        raise BadInput(option, problem) from None


def takes_rule_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command's parameter `options` becomes one option for each field, as if they stood in its signature."""
    hints = get_type_hints(RuleOptions, include_extras=True)
    own = inspect.signature(command, eval_str=True)
    kept = [each for each in own.parameters.values() if each.name != "options"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(each.name, keyword, default=each.default, annotation=hints[each.name])
        for each in fields(RuleOptions)
        if each.default is not MISSING
    ]
    names = {each.name for each in added}

    @functools.wraps(command)
    def wrapped(*positional: Any, **given: Any) -> None:
        options = RuleOptions(**{name: given.pop(name) for name in names})
        command(*positional, options=options, **given)

    parameters = [each.replace(kind=keyword) for each in kept] + added
    vars(wrapped)["__signature__"] = own.replace(parameters=parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


_INTERRUPTED = 130


@dataclass(frozen=True)
class _Subject(TrialSubject):
    does_nothing: bool = False


@takes_rule_options
def try_(
    name: Annotated[
        str | None, typer.Argument(help="A saved rule, or one in the file; not needed with options.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Try the rules of a TOML or YAML file.")] = None,
    query: Annotated[str | None, typer.Option("--query", help="Only mail that this search finds.")] = None,
    account: Annotated[list[str] | None, typer.Option("--account", help="Only this account's mail.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Look only at the newest N messages.")] = None,
    show: Annotated[int, typer.Option("--show", min=0, max=10_000, help="List at most this many matches.")] = 20,
    json: JsonOption = False,
    options: RuleOptions,
) -> None:
    """Replay a rule over the archive, newest mail first: what it would have matched and done.

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
        if self.query is None:
            return islice(mail_to_try(archive.newest_first(self.accounts)), self.limit)
        return islice(everything_found(self.place, self.query, self.accounts), self.limit)

    def count(self, archive: MailReader) -> int:
        if self.query is None:
            total = sum(map(archive.count, self.accounts)) if self.accounts else archive.count()
        else:
            with self.place.search() as search:
                total = search.count(self.query, accounts=self.accounts, limit=self.limit).messages
        return total if self.limit is None else min(total, self.limit)


def _subject(name: str | None, file: Path | None, options: RuleOptions) -> _Subject:
    given = options.given()
    if file is not None and given:
        raise BadInput("--file", "holds whole rules; give either a file or options, not both")
    if file is not None:
        drafts = [draft for draft in read_file(file) if draft.enabled or name is not None]
        wanted = [draft for draft in drafts if name is None or draft.name.lower() == name.lower()]
        if not wanted:
            raise BadInput("--file", f"{file} holds no rule{f' named {name!r}' if name else ''}")
        return _Subject([rule_of(draft.name, draft) for draft in wanted])
    if given:
        if "condition" not in given:
            raise BadInput("rule", "needs a condition, such as --from, --domain or --subject")
        draft = parse_draft({"name": name or "this rule", "actions": list(UNSAID), **given})
        return _Subject([rule_of(draft.name, draft)], does_nothing="actions" not in given)
    if name is None:
        raise BadInput("rule", "name a saved rule, or give --file or options such as --from; see --help")
    return _saved(name)


def _saved(name: str) -> _Subject:
    found = read(lambda tx: saved_subject(tx, store.get_rule(tx, name)))
    return _Subject(found.rules, found.label_ids)


def _try(subject: _Subject, archive: MailReader, mail: _Mail, trial: Trial, keep: int) -> bool:
    """False if it was interrupted; the trial then holds what was found until then."""
    require_accounts(mail.accounts, archive.accounts())
    try:
        with progress(mail.count(archive), "trying") as show:
            now = SystemClock().now()
            replay(subject, archive, mail.found(archive), now, trial, keep=keep, show=lambda: show(1))
    except KeyboardInterrupt:
        return False
    return True


@contextmanager
def progress(total: int, doing: str) -> Iterator[Callable[[int], None]]:
    with progress_bar(doing, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


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
        line = Text(f"{minute(mail.date)}  {mail.key}  ")
        line.append(_plain(mail.sender) or "(no sender)", style="bold").append("  ")
        line.append(_plain(mail.subject) or "(no subject)")
        line.append(f"  ← {_plain(hit.rule.name)}" if several else "", style="dim")
        console.print(line, no_wrap=True, overflow="ellipsis")
    if trial.total > len(trial.hits):
        console.print(f"... and {trial.total - len(trial.hits):,} more (--show N lists more).")
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
    aside = f" ({' and '.join(passed)} skipped)" if passed else ""
    return f"{trial.total:,} of {trial.looked_at:,} messages match{aside}."


def _does(rule: Rule) -> str:
    return ", ".join(map(described, rule.actions))


def _plain(text: str) -> str:
    return printable("".join(char if char.isprintable() else " " for char in text))


NameArgument = Annotated[str, typer.Argument(help="The rule's name, or its id.")]
ApplicationId = Annotated[str, typer.Argument(metavar="ID", help="As `rules applications` shows it.")]


def apply(
    name: NameArgument,
    query: Annotated[str, typer.Option("--query", help="Only mail that this search finds.")] = "",
    account: Annotated[str | None, typer.Option("--account", help="Only this account's mail.")] = None,
    cap: Annotated[
        int, typer.Option("--cap", min=1, max=applying.LARGEST_CAP, help="The most messages that it acts on.")
    ] = applying.DEFAULT_CAP,
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
    mail = applying.PastMail(query, None if account is None else normal_email(account, "account"), cap)
    rule = read(lambda tx: store.get_rule(tx, name))
    if dry_run:
        _print_preview(rule, mail, with_app(lambda app: _previewed(app, rule, mail)), json=json)
        return
    if rule.draft is not None and applying.destroys(rule.draft) and not yes:
        which = f"up to {cap:,} messages that match {rule.name}"
        typer.confirm(f"{', '.join(map(described, rule.draft.actions))}: {which}?", abort=True, err=True)
    begun = with_app(lambda app: _begun(app, rule, mail))
    if json:
        print_json(_application_json(begun))
        return
    console.print(f"Queued as {begun.id}: {begun.total:,} messages to look at, {cap:,} to act on at most.")
    console.print("`postroom rules applications` shows how far it is.")


async def _begun(app: App, rule: StoredRule, mail: applying.PastMail) -> applying.RuleApplication:
    total = await asyncio.to_thread(mail.count, app.archive.backend)
    who = Actor.of(me())
    return await app.database.write(lambda tx: applying.begin(tx, app.queue, rule, mail, total, who))


async def _previewed(app: App, rule: StoredRule, mail: applying.PastMail) -> applying.ApplicationPreview:
    total = await asyncio.to_thread(mail.count, app.archive.backend)
    with progress(total, "looking") as show:
        return await applying.preview(app.database, app.archive.backend, rule, mail, app.clock.now(), show)


def _print_preview(
    rule: StoredRule, mail: applying.PastMail, found: applying.ApplicationPreview, *, json: bool
) -> None:
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
        print_json([_application_json(each) for each in found])
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
        typer.Option("--cap", min=1, max=applying.LARGEST_CAP, help="A new cap for the whole run; default: unchanged."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Resume one that reached its cap, was stopped, or failed."""
    after = change_queue(lambda tx, queue, who: applying.resume(tx, queue, application_id, cap, who), dry_run=dry_run)
    console.print(f"{'It would go on' if dry_run else 'It goes on'}, up to {after.cap:,} messages in all.")


def _progress(each: applying.RuleApplication) -> str:
    reason = f" ({each.reason})" if each.reason and each.state is not applying.ApplicationState.RUNNING else ""
    total = max(each.total, each.looked_at)
    return f"{each.looked_at:,} of {total:,} looked at, {each.acted_on:,} of at most {each.cap:,} acted on{reason}"


def _application_json(each: applying.RuleApplication) -> dict[str, object]:
    return {name: getattr(each, name) for name in applying.RuleApplication.__slots__ if name != "cursor"}
