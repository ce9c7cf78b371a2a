"""A rule applied to past mail, by the job `rules.apply`: newest first, a page of a search at a time.

Applying is the owner's own order, so nothing of it waits for approval; a rule that sends mail is refused. Actions and
the place to go on from are one transaction, and a message gets the rule's actions once, whatever is interrupted. The
rule is the one that was applied, also if it is changed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, or_, select, update

from postroom import audit
from postroom.accounts.account import Account, get_account, list_accounts
from postroom.accounts.mailbox_state import label_ids_by_name
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import ArchivedMessage, account_name
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import action_links, actions, rule_applications
from postroom.domain.actions import UNDER_WAY, ActionOrder, ActionStatus, Consequence, Origin, Proposal, consequence_of
from postroom.domain.errors import BadInput, Fatal, NotAllowed, NotFound, Retryable
from postroom.domain.ids import new_id, parse_id
from postroom.domain.jobs import RULES_APPLY
from postroom.queue import JobContext, JobQueue, LeaseLost, NewJob, QueueName
from postroom.queue.job import Json, describe
from postroom.triage.classify import ActionSink
from postroom.triage.rules.engine import RuleSet
from postroom.triage.rules.files import as_written
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import Rule, RuleDraft, parse_fields, rule_of
from postroom.triage.rules.trial import OWN_MAIL, first_match_in

DEFAULT_CAP, LARGEST_CAP = 1_000, 100_000
LONGEST_QUERY = 1_000
_PAGE = 100
_CAPPED = "it has acted on as many messages as its cap allows"


class ApplicationState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    CAPPED = "capped"
    STOPPED = "stopped"
    """By a person."""
    FAILED = "failed"
    UNDONE = "undone"
    """A person had all of it undone."""


_CAN_GO_ON = frozenset({ApplicationState.CAPPED, ApplicationState.STOPPED, ApplicationState.FAILED})


@dataclass(frozen=True, slots=True)
class PastMail:
    """Which mail a rule is applied to, and how much of it at most."""

    query: str = ""
    mailbox: str | None = None
    cap: int = DEFAULT_CAP

    def __post_init__(self) -> None:
        _check_cap(self.cap)
        if len(self.query) > LONGEST_QUERY:
            raise BadInput("query", f"is longer than {LONGEST_QUERY:,} characters")

    @property
    def accounts(self) -> list[str] | None:
        return None if self.mailbox is None else [account_name(self.mailbox)]

    def count(self, archive: ArchiveBackend) -> int:
        with archive.search() as search:
            return search.count(self.query, accounts=self.accounts).messages


@dataclass(frozen=True, slots=True)
class RuleApplication:
    id: str
    rule_id: str
    rule_name: str
    rule: Mapping[str, Any]
    query: str
    mailbox: str | None
    cap: int
    state: ApplicationState
    total: int
    looked_at: int
    acted_on: int
    left_alone: int
    """They match, but are no longer in a mailbox of ours, or the rule has acted on them before."""
    cursor: str | None
    reason: str | None
    requested_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None

    @property
    def mail(self) -> PastMail:
        return PastMail(self.query, self.mailbox, self.cap)

    @property
    def can_go_on(self) -> bool:
        return self.state in _CAN_GO_ON

    @property
    def draft(self) -> RuleDraft:
        return parse_fields(self.rule)


def require_applicable(draft: RuleDraft) -> None:
    for wanted in draft.actions:
        if consequence_of(wanted) is Consequence.SPEAKS:
            raise BadInput(
                "rule", f"has the action {wanted.type}; a rule that sends mail is not applied to old messages"
            )


def destroys(draft: RuleDraft) -> bool:
    return any(consequence_of(wanted) is Consequence.DESTROYS for wanted in draft.actions)


def begin(tx: Tx, queue: JobQueue, rule: StoredRule, mail: PastMail, total: int, who: Actor) -> RuleApplication:
    """Record the application and enqueue its job. `total` is what the search finds now."""
    if rule.draft is None:
        raise BadInput("rule", rule.problem or "cannot be read")
    require_applicable(rule.draft)
    if mail.mailbox is not None:
        get_account(tx, mail.mailbox)
    under_way = select(rule_applications.c.id).where(
        rule_applications.c.rule_id == rule.id, rule_applications.c.state == ApplicationState.RUNNING
    )
    if (other := tx.execute(under_way).scalar()) is not None:
        raise BadInput("rule", f"{rule.name} is being applied already, as {other}; wait for its end or stop it")
    now, application_id = queue.clock.now(), new_id()
    tx.execute(
        rule_applications.insert().values(
            id=application_id,
            rule_id=rule.id,
            rule_name=rule.name,
            rule=as_written(rule.draft),
            query=mail.query,
            mailbox=mail.mailbox,
            cap=mail.cap,
            state=ApplicationState.RUNNING,
            total=total,
            requested_by=f"{who.role} {who.name}",
            created_at=now,
            updated_at=now,
        )
    )
    queue.add(tx, _job(application_id))
    after = {"rule": rule.name, "query": mail.query, "mailbox": mail.mailbox, "cap": mail.cap, "total": total}
    audit.record(tx, who, "rule.apply", ("rule_application", application_id), now, after=after)
    return get_application(tx, application_id)


def resume(tx: Tx, queue: JobQueue, application_id: str, cap: int | None, who: Actor) -> RuleApplication:
    """Go on where it ended, with another cap if one is given."""
    before = get_application(tx, application_id, lock=True)
    if not before.can_go_on:
        raise BadInput("application", f"{before.id} is {before.state}, so there is nothing to go on with")
    wanted = before.cap if cap is None else cap
    _check_cap(wanted)
    if wanted <= before.acted_on:
        raise BadInput("cap", f"must be above {before.acted_on:,}, the number of messages that it has acted on")
    changes = {"state": ApplicationState.RUNNING, "cap": wanted, "reason": None, "finished_at": None}
    queue.add(tx, _job(before.id))
    return _change(tx, queue, before, changes, who, "rule.apply_resume")


def stop(tx: Tx, queue: JobQueue, application_id: str, who: Actor) -> RuleApplication:
    """What was ordered so far stays; the next page is not begun."""
    before = get_application(tx, application_id, lock=True)
    if before.state is not ApplicationState.RUNNING:
        raise BadInput("application", f"{before.id} is {before.state}; only a running one can be stopped")
    changes = {"state": ApplicationState.STOPPED, "reason": f"stopped by {who.name}", "finished_at": queue.clock.now()}
    return _change(tx, queue, before, changes, who, "rule.apply_stop")


def mark_undone(tx: Tx, queue: JobQueue, application_id: str, who: Actor) -> RuleApplication:
    """It is over, also if it was at work, and does not go on."""
    before = get_application(tx, application_id, lock=True)
    changes = {"state": ApplicationState.UNDONE, "reason": f"undone by {who.name}", "finished_at": queue.clock.now()}
    return _change(tx, queue, before, changes, who, "rule.apply_undo")


def _change(
    tx: Tx, queue: JobQueue, before: RuleApplication, changes: Mapping[str, Any], who: Actor, what: str
) -> RuleApplication:
    now = queue.clock.now()
    tx.execute(update(rule_applications).where(rule_applications.c.id == before.id).values(**changes, updated_at=now))
    after = {name: str(changes[name]) for name in ("state", "cap") if name in changes}
    audit.record(tx, who, what, ("rule_application", before.id), now, before={"state": str(before.state)}, after=after)
    return get_application(tx, before.id)


def list_applications(tx: Tx, rule_id: str | None = None, limit: int = 50) -> list[RuleApplication]:
    """Newest first."""
    query = select(rule_applications).order_by(rule_applications.c.id.desc()).limit(limit)
    if rule_id is not None:
        query = query.where(rule_applications.c.rule_id == rule_id)
    return [_application(row) for row in tx.execute(query)]


def get_application(tx: Tx, application_id: str, *, lock: bool = False) -> RuleApplication:
    query = select(rule_applications).where(rule_applications.c.id == parse_id(application_id, "application"))
    row = tx.execute(tx.locking(query) if lock else query).one_or_none()
    if row is None:
        raise NotFound("application", f"there is none {application_id}; `postroom rules applications` lists them")
    return _application(row)


def _application(row: Any) -> RuleApplication:
    values = {name: getattr(row, name) for name in RuleApplication.__slots__}
    return RuleApplication(**values | {"state": ApplicationState(row.state)})


def _check_cap(cap: int) -> None:
    if not 1 <= cap <= LARGEST_CAP:
        raise BadInput("cap", f"{cap:,} is not within 1 to {LARGEST_CAP:,}")


def _job(application_id: str) -> NewJob:
    payload = {"application_id": application_id}
    return NewJob(RULES_APPLY.name, payload, QueueName.HISTORY, key=f"{RULES_APPLY.name}:{application_id}")


@dataclass(frozen=True, slots=True)
class JudgedPage:
    """A page of the search, judged by the rule alone."""

    looked_at: int
    matches: Sequence[ArchivedMessage]
    next: str | None


@dataclass(frozen=True, slots=True)
class PastMatch:
    """A message that matches, and the account whose mailbox still has it; None: it is left alone."""

    message: ArchivedMessage
    account_id: str | None
    message_id: str | None
    """Where it was taken in."""
    is_ordered: bool = False
    """By the same application, before it was interrupted."""


@dataclass(frozen=True, slots=True)
class RuleOnArchive:
    """A rule with what is needed to judge archived mail by it."""

    rule: Rule
    accounts: Mapping[str, Account]
    """Ours, by the archive's names."""
    label_ids: Mapping[str, Mapping[str, str]]
    """The same."""

    @classmethod
    def of(cls, tx: Tx, rule_id: str, draft: RuleDraft) -> RuleOnArchive:
        accounts = {account_name(each.email): each for each in list_accounts(tx)}
        return cls(
            rule_of(rule_id, draft), accounts, {name: label_ids_by_name(tx, accounts[name].id) for name in accounts}
        )

    def page(self, archive: ArchiveBackend, mail: PastMail, after: str | None, now: datetime) -> JudgedPage:
        """Blocks: for a thread of its own."""
        with archive.search() as search:
            page = search.search(mail.query, accounts=mail.accounts, limit=_PAGE, after=after)
        if page.problems:
            raise Fatal(f"Not all of the archive could be searched: {page.problems[0]}. Run `postroom verify`.")
        found = [hit.message for hit in page.hits]
        rules = RuleSet([self.rule])
        with archive.reader() as reader:
            matches = [each for each in found if self._fits(rules, reader, each, now)]
        if rules.broken:
            raise Fatal(f"The rule cannot be used: {next(iter(rules.broken.values()))}")
        return JudgedPage(len(found), matches, page.next)

    def _fits(self, rules: RuleSet, reader: MailReader, message: ArchivedMessage, now: datetime) -> bool:
        if not OWN_MAIL.isdisjoint(message.labels):
            return False
        account = self.accounts.get(message.account)
        account_id, label_ids = None if account is None else account.id, self.label_ids.get(message.account, {})
        try:
            return first_match_in(rules, reader, message, now, account_id, label_ids) is not None
        except (Fatal, Retryable):  # `postroom verify` names what cannot be read
            return False

    def placed(self, tx: Tx, found: Sequence[ArchivedMessage], application_id: str | None) -> list[PastMatch]:
        """Which of these can be acted on, in their order."""
        return [
            match
            for account in dict.fromkeys(each.account for each in found)
            for match in self._of_account(tx, [each for each in found if each.account == account], application_id)
        ]

    def _of_account(self, tx: Tx, found: Sequence[ArchivedMessage], application_id: str | None) -> list[PastMatch]:
        account = self.accounts.get(found[0].account)
        if account is None:
            return [PastMatch(each, None, None) for each in found]
        ids = [each.gmail_id for each in found if each.gmail_id is not None]
        taken_in = _taken_in(tx, account, ids)
        done = _acted_on(tx, account.id, ids, _in_effect(self.rule.id))
        mine = actions.c.application_id == application_id
        ordered = set[str]() if application_id is None else _acted_on(tx, account.id, ids, mine)
        return [
            PastMatch(
                each,
                None if each.gmail_id is None or each.deleted_at_source or each.gmail_id in done else account.id,
                taken_in.get(each.gmail_id or ""),
                each.gmail_id in ordered,
            )
            for each in found
        ]


def _taken_in(tx: Tx, account: Account, gmail_ids: Sequence[str]) -> dict[str, str]:
    query = select(messages.c.external_event_id, messages.c.id)
    mine = (messages.c.provider == "gmail", messages.c.endpoint_identity == account.email)
    query = query.where(messages.c.external_event_id.in_(gmail_ids))
    return {row.external_event_id: row.id for row in tx.execute(query.where(*mine))}


def _acted_on(tx: Tx, account_id: str, gmail_ids: Sequence[str], which: ColumnElement[bool]) -> set[str]:
    mine = (actions.c.account_id == account_id, actions.c.gmail_id.in_(gmail_ids), which)
    return set(tx.execute(select(actions.c.gmail_id).where(*mine)).scalars())


def _in_effect(rule_id: str) -> ColumnElement[bool]:
    """What a rule did or is about to do, and was not undone."""
    undo = actions.alias()
    undone = exists(
        select(undo.c.id)
        .join(action_links, action_links.c.cause_action_id == undo.c.id)
        .where(action_links.c.effect_action_id == actions.c.id, undo.c.status == ActionStatus.COMPLETED)
    )
    under_way = actions.c.status.in_(UNDER_WAY)
    done = and_(actions.c.status == ActionStatus.COMPLETED, ~undone)
    return and_(actions.c.rule_id == rule_id, actions.c.origin == Origin.RULE, or_(under_way, done))


class RuleApplier:
    """The handler of `rules.apply`."""

    def __init__(self, archive: ArchiveBackend, sink: ActionSink) -> None:
        self._archive = archive
        self._sink = sink

    async def __call__(self, context: JobContext) -> Json:
        application_id = str(context.job.payload.get("application_id"))
        try:
            async with context.step("apply") as step:
                while (now := await self._next_page(context, application_id)).state is ApplicationState.RUNNING:
                    pass
                step.result = {"state": now.state, "looked_at": now.looked_at, "acted_on": now.acted_on}
        except LeaseLost:
            raise
        except Exception as error:
            if context.job.is_last_attempt or isinstance(error, Fatal | BadInput | NotAllowed):
                reason = error.message if isinstance(error, Fatal | BadInput | NotAllowed) else describe(error)
                await context.write(lambda tx: _fail(tx, application_id, reason, context.queue.clock.now()))
            raise
        return step.result

    async def _next_page(self, context: JobContext, application_id: str) -> RuleApplication:
        read = context.queue.database.read
        at = await read(lambda tx: get_application(tx, application_id))
        if at.state is not ApplicationState.RUNNING:
            return at
        on = await read(lambda tx: RuleOnArchive.of(tx, at.rule_id, at.draft))
        now = context.queue.clock.now()
        page = await asyncio.to_thread(on.page, self._archive, at.mail, at.cursor, now)
        return await context.write(lambda tx: self._take(tx, context, on, at.id, page))

    def _take(
        self, tx: Tx, context: JobContext, on: RuleOnArchive, application_id: str, page: JudgedPage
    ) -> RuleApplication:
        at, now = get_application(tx, application_id, lock=True), context.queue.clock.now()
        if at.state is not ApplicationState.RUNNING:
            return at
        matches = on.placed(tx, page.matches, at.id)
        wanted = [each for each in matches if not each.is_ordered and each.account_id is not None]
        room = at.cap - at.acted_on
        for match in wanted[:room]:
            self._sink.accept(tx, _order(at, on.rule, match))
        values: dict[str, Any] = {"acted_on": at.acted_on + min(len(wanted), room), "updated_at": now}
        if len(wanted) > room:  # the page stays the next one: what is ordered of it is not ordered again
            values |= {"state": ApplicationState.CAPPED, "reason": _CAPPED, "finished_at": now}
        else:
            left = sum(each.account_id is None and not each.is_ordered for each in matches)
            values |= {"looked_at": at.looked_at + page.looked_at, "left_alone": at.left_alone + left}
            values |= {"cursor": page.next}
            values |= {} if page.next else {"state": ApplicationState.COMPLETED, "finished_at": now}
        tx.execute(update(rule_applications).where(rule_applications.c.id == at.id).values(**values))
        return get_application(tx, at.id)


def _order(at: RuleApplication, rule: Rule, match: PastMatch) -> ActionOrder:
    message, only_archived = match.message, match.message_id is None
    return ActionOrder(
        account_id=str(match.account_id),
        message_id=match.message_id,
        gmail_id=str(message.gmail_id),
        thread_id=message.thread_id,
        decision_id=None,
        origin=Origin.RULE,
        wanted_by=f"rule {at.rule_name}, applied by {at.requested_by}",
        proposals=tuple(Proposal(wanted) for wanted in rule.actions),
        rule_id=at.rule_id,
        rule_name=at.rule_name,
        application_id=at.id,
        subject=message.subject if only_archived else None,
        sender=message.sender if only_archived else None,
    )


def _fail(tx: Tx, application_id: str, reason: str, now: datetime) -> None:
    mine = (rule_applications.c.id == application_id, rule_applications.c.state == ApplicationState.RUNNING)
    values = {"state": ApplicationState.FAILED, "reason": reason[:1_000], "finished_at": now, "updated_at": now}
    tx.execute(update(rule_applications).where(*mine).values(values))


@dataclass(frozen=True, slots=True)
class ApplicationPreview:
    looked_at: int
    matches: Sequence[PastMatch]

    @property
    def can_act(self) -> int:
        return sum(each.account_id is not None for each in self.matches)


async def preview(
    database: Database,
    archive: ArchiveBackend,
    rule: StoredRule,
    mail: PastMail,
    now: datetime,
    show: Callable[[int], None],
) -> ApplicationPreview:
    """What an application would do. Changes nothing; `show` is called with the number of messages of each page."""
    if (draft := rule.draft) is None:
        raise BadInput("rule", rule.problem or "cannot be read")
    require_applicable(draft)
    on = await database.read(lambda tx: RuleOnArchive.of(tx, rule.id, draft))
    place: str | None = None
    looked_at, matches = 0, list[PastMatch]()
    while True:
        page = await asyncio.to_thread(on.page, archive, mail, place, now)
        matches += await database.read(partial(on.placed, found=page.matches, application_id=None))
        looked_at, place = looked_at + page.looked_at, page.next
        show(page.looked_at)
        if place is None:
            return ApplicationPreview(looked_at, matches)
