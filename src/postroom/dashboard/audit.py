"""Audit: who did what to what, by name, with the state before and after. `rule.add` is "Rule added", an account is its
address.

A name is looked up among what there is now; what is gone has the name that its entry remembers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from sqlalchemy import Select, String, cast, func, select
from starlette.responses import Response

from postroom.accounts.account import list_accounts
from postroom.audit import AuditEntry, AuditFilter, list_entries
from postroom.audit.chain import chain_status
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.display.formatting import clean, words
from postroom.dashboard.paging import ListQuery, Paged
from postroom.db import Tx
from postroom.db.tables.access import access_tokens, audit_log, dashboard_sessions
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import BACKFILL_JOBS, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.restores import restore_runs
from postroom.db.tables.triage import actions, directions, model_rules, rule_applications, rules
from postroom.db.tables.web import backfill_runs
from postroom.domain.ids import is_id, parse_id
from postroom.domain.roles import Permission

_LONGEST = 80
_MOST_CHOICES = 200
_PAST = {
    "add": "added",
    "apply": "applied",
    "apply_resume": "application resumed",
    "apply_stop": "application stopped",
    "apply_undo": "application undone",
    "approve": "approved",
    "ask": "judged again",
    "begin": "started",
    "cancel": "cancelled",
    "change": "changed",
    "correct": "corrected",
    "create": "created",
    "disable": "switched off",
    "dismiss": "dismissed",
    "done": "done",
    "edit": "edited",
    "enable": "switched on",
    "end": "ended",
    "end_session": "login ended",
    "end_sessions": "other logins ended",
    "exclude": "excluded",
    "expire": "expired",
    "forget": "forgotten",
    "include": "included",
    "judge_again": "judged again",
    "move": "moved",
    "name": "renamed",
    "pause": "paused",
    "propose": "proposed",
    "prune": "pruned",
    "reject": "rejected",
    "remove": "removed",
    "reopen": "reopened",
    "reschedule": "rescheduled",
    "resume": "resumed",
    "retry": "retried",
    "retry_failed": "retried (all that failed)",
    "revoke": "revoked",
    "revoke_all": "revoked (all)",
    "start": "started",
    "stop": "stopped",
    "undo": "undone",
    "undo_span": "undone (a span of time)",
    "wake": "woken",
    "want": "requested",
}
_WHOLE = {
    "account.login": "Login at Google",
    "audit.new_key": "Audit key replaced",
    "dashboard.link": "Passphrase link made",
    "dashboard.login": "Logged in",
    "dashboard.login_failed": "Login failed",
    "dashboard.passphrase": "Passphrase changed",
    "dashboard.proof": "Passphrase confirmed",
    "model.ceiling": "Model ceiling changed",
    "outbound.sent": "Mail sent",
    "policy.change": "Tier policy changed",
    "web.look_later": "Web check requested",
}
_SWITCHES = {
    "backfill_enabled": "Backfill",
    "learning_enabled": "Local triage",
    "model_enabled": "Model",
    "restore_enabled": "Putting mail back",
    "setup_checklist": "Setup checklist",
    "setup_model": "Setup checklist: model",
}


def action_title(action: str) -> str:
    """What was done, in words: `token.create` is "Token created"."""
    if action in _WHOLE:
        return _WHOLE[action]
    thing, _, verb = action.rpartition(".")
    return words(f"{thing} {_PAST[verb]}" if thing and verb in _PAST else action)


@dataclass(frozen=True, slots=True)
class SubjectName:
    text: str
    href: str | None = None
    """The page about it."""


Subject = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Lookup:
    query: Callable[[Tx], Select[Any]]
    """Selects ids and names."""
    href: str = ""
    """`{}` stands for the id; empty: it has no page."""


def _backfills(tx: Tx) -> Select[Any]:
    table = BACKFILL_JOBS[tx.dialect]
    return select(table.c.id, table.c.endpoint_identity)


def _actions(tx: Tx) -> Select[Any]:
    about = func.coalesce(actions.c.subject, messages.c.subject, "")
    named = actions.c.type.concat(": ").concat(about)
    return select(actions.c.id, named).join_from(actions, messages, messages.c.id == actions.c.message_id, isouter=True)


_LOOKUPS: Mapping[str, _Lookup] = {
    "account": _Lookup(lambda tx: select(accounts.c.id, accounts.c.email), "/settings#accounts"),
    "action": _Lookup(_actions, "/actions/{}"),
    "backfill_job": _Lookup(_backfills, "/backfill/{}"),
    "dashboard_session": _Lookup(lambda tx: select(dashboard_sessions.c.id, dashboard_sessions.c.client)),
    "direction": _Lookup(lambda tx: select(directions.c.id, directions.c.text), "/rules/instructions"),
    "guidance": _Lookup(lambda tx: select(model_rules.c.id, model_rules.c.name), "/rules/instructions"),
    "job": _Lookup(lambda tx: select(jobs.c.id, jobs.c.type), "/queue/{}"),
    "message": _Lookup(lambda tx: select(messages.c.id, messages.c.subject)),
    "restore": _Lookup(lambda tx: select(restore_runs.c.id, restore_runs.c.target), "/archive/restores/{}"),
    "rule": _Lookup(lambda tx: select(rules.c.id, rules.c.name), "/rules/{}"),
    "rule_application": _Lookup(
        lambda tx: select(rule_applications.c.id, rule_applications.c.rule_name), "/rules/applications/{}"
    ),
    "web_run": _Lookup(lambda tx: select(backfill_runs.c.id, func.lower(backfill_runs.c.mode)), "/web/runs/{}"),
    "token": _Lookup(lambda tx: select(access_tokens.c.id, access_tokens.c.name), "/settings#tokens"),
}
_IN_WORDS = ("action", "job", "web_run")
"""Their names begin with a code."""
_REMEMBERED = (
    *("name", "email", "address", "slug", "text", "type", "endpoint_identity", "rule_name"),
    *("uploaded_as", "path", "account"),
)


def subject_names(tx: Tx, entries: Iterable[AuditEntry]) -> dict[Subject, SubjectName]:
    """By type and id, of everything that these entries are about."""
    entries = list(entries)
    wanted: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        if entry.subject_type in _LOOKUPS and is_id(entry.subject_id):
            wanted[entry.subject_type].add(entry.subject_id)
    found = {kind: _found(tx, kind, ids) for kind, ids in wanted.items()}
    return {
        (entry.subject_type, entry.subject_id): found.get(entry.subject_type, {}).get(entry.subject_id)
        or SubjectName(_remembered(entry))
        for entry in reversed(entries)
    }


def _found(tx: Tx, kind: str, ids: set[str]) -> dict[str, SubjectName]:
    lookup = _LOOKUPS[kind]
    query = lookup.query(tx)
    id_column = query.selected_columns[0]
    rows = tx.execute(query.where(id_column.in_(sorted(ids))))
    return {str(id): SubjectName(_short(kind, name), lookup.href.format(id) or None) for id, name in rows if name}


def _short(kind: str, name: str) -> str:
    text = clean(_words_before_colon(name) if kind in _IN_WORDS else name)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _words_before_colon(name: str) -> str:
    """`apply_label: Lunch?` is "Apply label: Lunch?"."""
    code, colon, rest = name.partition(": ")
    return f"{words(code)}: {rest}" if colon and rest else words(code)


def _remembered(entry: AuditEntry) -> str:
    """What the entry itself says of it, or its id."""
    if entry.subject_type == "switch":
        return _SWITCHES.get(entry.subject_id, words(entry.subject_id))
    if entry.action == "dashboard.link":
        return "One-time link"
    if not is_id(entry.subject_id):
        return clean(entry.subject_id)
    states = [state for state in (entry.after, entry.before) if state]
    known = (str(state[key]) for state in states for key in _REMEMBERED if state.get(key))
    return _short(entry.subject_type, next(known, entry.subject_id))


@dataclass(frozen=True, slots=True)
class AuditChoice:
    """A value that the log can be filtered by."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class AuditChoices:
    actions: list[AuditChoice]
    kinds: list[AuditChoice]
    subjects: dict[str, list[AuditChoice]]
    """By group: mailboxes and rules."""


def audit_choices(tx: Tx) -> AuditChoices:
    """What the log has entries of, and the mailboxes and rules that there are."""
    named_rules = tx.execute(select(rules.c.id, rules.c.name).order_by(rules.c.name).limit(_MOST_CHOICES))
    return AuditChoices(
        _by_label(AuditChoice(each, action_title(each)) for each in _distinct(tx, "action")),
        _by_label(AuditChoice(each, words(each)) for each in _distinct(tx, "subject_type")),
        {
            "Mailboxes": [AuditChoice(each.id, each.email) for each in list_accounts(tx, with_removed=True)],
            "Rules": [AuditChoice(str(id), clean(name)) for id, name in named_rules],
        },
    )


def _by_label(choices: Iterable[AuditChoice]) -> list[AuditChoice]:
    return sorted(choices, key=lambda choice: choice.label.lower())


def _distinct(tx: Tx, name: str) -> list[str]:
    """Its values, jumping from one to the next in the index: reading a log of a million entries would take a while."""
    column = audit_log.c[name]
    first = select(cast(func.min(column), String).label("value")).cte("found", recursive=True)
    following = select(func.min(column)).where(column > first.c.value).correlate(first).scalar_subquery()
    found = first.union_all(select(cast(following, String)).where(first.c.value.is_not(None)))
    return list(tx.execute(select(found.c.value).where(found.c.value.is_not(None)).limit(_MOST_CHOICES)).scalars())


pages = pages_router()
api = api_router("audit")


class AuditQuery(ListQuery):
    action: str | None = Field(None, max_length=200)
    subject_type: str | None = Field(None, max_length=200)
    subject_id: str | None = Field(None, max_length=200)


AuditWanted = Annotated[AuditQuery, Query()]


@pages.get("/audit")
async def audit_page(here: Here, wanted: AuditWanted) -> Response:
    entries, chain = await show_entries(here, wanted), await here.read(chain_status)
    names, choices = await here.read(lambda tx: (subject_names(tx, entries.items), audit_choices(tx)))
    one = next((names[each.subject_type, each.subject_id].text for each in entries.items), None)
    return await here.page(
        "audit.html",
        "audit",
        entries=entries,
        wanted=wanted,
        chain=chain,
        names=names,
        choices=choices,
        chosen_name=one or wanted.subject_id,
        action_title=action_title,
    )


@api.get("")
@permits(Permission.READ)
async def show_entries(here: Here, wanted: AuditWanted) -> Paged[AuditEntry]:
    """Newest first."""
    start = None if wanted.after is None else parse_id(wanted.after, "after")
    which = AuditFilter(wanted.action, wanted.subject_type, wanted.subject_id, start, wanted.limit)
    page = await here.read(lambda tx: list_entries(tx, which))
    return Paged(page.entries, page.next_before_id)
