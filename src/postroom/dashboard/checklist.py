"""The first run: a checklist on the overview, from the passphrase to the first backup, and the page of backups.

Every step is read from what is really there: the database, the archive and the home folder. Only what the owner
dismissed is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import select
from starlette.responses import Response

from postroom import kill_switch
from postroom.accounts.account import list_accounts
from postroom.app.backup import MadeBackup, list_backups
from postroom.contract.steering import SHOW_CHECKLIST, ChecklistArguments
from postroom.dashboard.archive.contents import archived_accounts
from postroom.dashboard.context import Here, RequestContext, Undo, api_router, pages_router, permits
from postroom.dashboard.security.passphrase import stored_hash
from postroom.db import Tx
from postroom.db.tables.triage import rules
from postroom.domain.roles import Permission
from postroom.triage.model import model_problem


class StepState(StrEnum):
    DONE = "done"
    NEXT = "next"
    """The first one that is not done."""
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class SetupStep:
    key: str
    title: str
    note: str
    href: str
    """The page that does it."""
    state: StepState


@dataclass(frozen=True, slots=True)
class SetupFacts:
    """What there is of an installation."""

    has_passphrase: bool
    mailboxes: Sequence[str]
    """Connected ones."""
    archived: Sequence[str]
    """Mailboxes that have mail in the archive, connected or imported."""
    model: str | None
    model_problem: str | None
    is_model_wanted: bool
    """False: the owner said "not now"."""
    has_rule: bool
    backup_at: datetime | None
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class Checklist:
    steps: list[SetupStep]
    is_shown: bool
    """False: the owner dismissed it."""

    @property
    def left(self) -> int:
        return sum(step.state is not StepState.DONE for step in self.steps)


def checklist_of(facts: SetupFacts) -> Checklist:
    steps = [
        _step("passphrase", "Choose a passphrase", _LOGIN_NOTE, "/settings#sessions", facts.has_passphrase),
        _mailbox(facts),
        _mail(facts),
        _model(facts),
        _step("rule", "Make your first rule", _RULE, "/rules/new", facts.has_rule),
        _step("backup", "Make a backup", _BACKUP, "/settings/backups", facts.backup_at is not None),
    ]
    first = next((place for place, step in enumerate(steps) if step.state is not StepState.DONE), None)
    if first is not None:
        steps[first] = replace(steps[first], state=StepState.NEXT)
    return Checklist(steps, facts.is_shown)


_LOGIN_NOTE = "It opens this dashboard. `postroom token link` prints a link for choosing another."
_NO_MAILBOX = (
    "You log in on Google's own page, and are led through its steps. On the command line: "
    "`postroom account add gmail --help`. If you do not run `postroom up`, also start `postroom worker`."
)
_RULE = "It decides what happens to mail of a certain kind. You can try it on past mail before it acts."
_BACKUP = "Database, mail and settings in one folder, made while everything runs."


def _step(key: str, title: str, note: str, href: str, is_done: bool) -> SetupStep:
    return SetupStep(key, title, note, href, StepState.DONE if is_done else StepState.OPEN)


def _mailbox(facts: SetupFacts) -> SetupStep:
    note = ", ".join(facts.mailboxes[:3]) or _NO_MAILBOX
    more = f" and {len(facts.mailboxes) - 3} more" if len(facts.mailboxes) > 3 else ""
    return _step("mailbox", "Add a mailbox", note + more, "/settings/accounts/new", bool(facts.mailboxes))


def _mail(facts: SetupFacts) -> SetupStep:
    if facts.archived:
        note = "Mail is in the archive, in files that you own."
    elif facts.mailboxes:
        note = "The newest mail comes first; the archive shows how far it is."
    else:
        note = "It begins by itself as soon as there is a mailbox."
    return _step("mail", "First mail archived", note, "/archive", bool(facts.archived))


def _model(facts: SetupFacts) -> SetupStep:
    is_ready = facts.model is not None and facts.model_problem is None
    if is_ready:
        note = f"{facts.model} decides mail that no rule decides."
    elif not facts.is_model_wanted:
        note = "Not now: rules decide alone, and the rest goes to review."
    else:
        note = facts.model_problem or "Optional. It decides mail that no rule decides, within a daily ceiling."
    return _step("model", "Connect a model", note, "/settings#model", is_ready or not facts.is_model_wanted)


StoredFacts = tuple[bool, list[str], bool, bool, bool]


def stored_facts(tx: Tx) -> StoredFacts:
    return (
        stored_hash(tx) is not None,
        [account.email for account in list_accounts(tx)],
        tx.execute(select(rules.c.id).limit(1)).first() is not None,
        kill_switch.is_step_shown(tx, "model"),
        kill_switch.is_step_shown(tx, "checklist"),
    )


async def setup_facts(here: RequestContext, stored: StoredFacts) -> SetupFacts:
    app = here.app
    has_passphrase, mailboxes, has_rule, is_model_wanted, is_shown = stored
    home, place = app.settings.home, app.archive.backend
    archived, backups = await asyncio.to_thread(lambda: (archived_accounts(place), list_backups(home)))
    return SetupFacts(
        has_passphrase=has_passphrase,
        mailboxes=mailboxes,
        archived=archived,
        model=None if app.settings.model.provider is None else str(app.settings.model.name),
        model_problem=model_problem(app.settings.model, app.vault),
        is_model_wanted=is_model_wanted,
        has_rule=has_rule,
        backup_at=backups[0].made_at if backups else None,
        is_shown=is_shown,
    )


pages = pages_router()
api = api_router("checklist")


@pages.post("/checklist")
async def submit_checklist(here: Here) -> Response:
    form = await here.form()
    step, shown = form.one_of("step", ("checklist", "model")), form.one_of("shown", ("yes", "no")) == "yes"
    await here.call(SHOW_CHECKLIST, {"step": step, "shown": shown})
    if shown:
        return await here.go("/")
    said = "The checklist is dismissed." if step == "checklist" else "No model for now. Settings has it at any time."
    return await here.go("/", said, undo=Undo("/checklist", {"step": [step], "shown": ["yes"]}))


@pages.get("/settings/backups")
async def backups_page(here: Here) -> Response:
    return await here.page(
        "first_run/backups.html", "settings", backups=await show_backups(here), home=str(here.app.settings.home)
    )


@api.get("")
@permits(Permission.READ)
async def show_checklist(here: Here) -> Checklist:
    """The steps of the first run: which are done, and which comes next."""
    return checklist_of(await setup_facts(here, await here.read(stored_facts)))


@api.get("/backups")
@permits(Permission.READ)
async def show_backups(here: Here) -> list[MadeBackup]:
    """The backups that `postroom backup create` made of this home, newest first."""
    return await asyncio.to_thread(list_backups, here.app.settings.home)


@api.post("")
@permits(Permission.SETTINGS)
async def change_checklist(here: Here, wanted: ChecklistArguments) -> Checklist:
    """Dismiss the checklist or its step about a model, or show it again."""
    await here.call(SHOW_CHECKLIST, wanted)
    return await show_checklist(here)
