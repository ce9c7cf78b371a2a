"""The options by which commands take a rule: simple conditions, actions, and its position."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from postroom.domain.errors import BadInput
from postroom.triage.rules import simple

Texts = list[str] | None
_ASKS, _DOES = "What it asks of a message (all of it; of one option given several times, any)", "The rule"


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
        str | None, _option("--header", help="A header that is there, or that has a text.", metavar="'NAME[: TEXT]'")
    ] = None
    label: Annotated[Texts, _option("--label", help="A label that it has.", metavar="LABEL")] = None
    list_id: Annotated[Texts, _option("--list", help="A mailing list's id.", metavar="ID")] = None
    attachment: Annotated[bool | None, _option("--attachment/--no-attachment", help="Whether it has one.")] = None
    larger: Annotated[str | None, _option("--larger", help="Larger than this.", metavar="5M")] = None
    smaller: Annotated[str | None, _option("--smaller", help="Smaller than this.", metavar="200K")] = None
    older: Annotated[str | None, _option("--older", help="Older than this.", metavar="30d")] = None
    younger: Annotated[str | None, _option("--younger", help="Younger than this.", metavar="12h")] = None
    do: Annotated[
        Texts,
        _option("--do", help="What is done, such as archive or apply_label=Receipts.", panel=_DOES, metavar="ACTION"),
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
        return simple.given(self).condition()

    def given(self) -> dict[str, Any]:
        """The parts of a rule that the options speak of."""
        found = {
            "scope": self.scope,
            "priority": self.priority,
            "condition": self.condition() or None,
            "actions": list(self.do) if self.do else None,
            "unattended": self.unattended,
        }
        return {name: value for name, value in found.items() if value is not None}


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
