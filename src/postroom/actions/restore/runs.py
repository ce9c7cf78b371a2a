"""Restores as rows: what is wanted, the journal of its messages, and what a person may do with it.

One restore at a time writes to a mailbox, so that two cannot put the same message there. A restore that an assistant
proposed does nothing until the owner starts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select, update

from postroom import audit, kill_switch
from postroom.accounts.account import Account, get_account
from postroom.actions.restore.items import (
    ADDED,
    OVER,
    RestoreItem,
    certificate_of,
    is_put_back,
    require_step,
    wanted_labels,
)
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import ArchivedMessage, account_name
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.queue import jobs
from postroom.db.tables.restores import restore_items, restore_runs
from postroom.domain.actions import ItemState
from postroom.domain.errors import BadInput, Fatal, NotAllowed, NotFound
from postroom.domain.ids import new_id, normal_email, parse_id
from postroom.domain.jobs import RESTORE, JobState
from postroom.mail.query import opens_spam_and_trash, parse
from postroom.mailboxes.gmail.methods import CHANGE, EVERYTHING, INSERT, login_command
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.settings import RestoreSettings

_RUNS, _ITEMS = restore_runs.c, restore_items.c
LONGEST_QUERY, LONGEST_FOLDER = 1_000, 200
_PAGE = 200
MOST_PROPOSED = 20
_NEVER_A_FOLDER = frozenset({"TRASH", "SPAM", "DRAFT", "CHAT", "SENT", "UNREAD", "STARRED", "IMPORTANT"})


class RunState(StrEnum):
    PROPOSED = "proposed"
    """By an assistant; the owner starts or rejects it."""
    REJECTED = "rejected"
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    """By a person; it can go on."""
    FAILED = "failed"
    UNDOING = "undoing"
    UNDONE = "undone"


AT_WORK = (RunState.RUNNING, RunState.UNDOING)
_CAN_GO_ON = (RunState.STOPPED, RunState.FAILED)
_CAN_BE_UNDONE = (RunState.RUNNING, RunState.COMPLETED, RunState.STOPPED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """Which archived mail goes into which mailbox."""

    source: str
    target: str
    query: str = ""
    folder: str | None = None

    @classmethod
    def of(
        cls, account: str, query: str = "", to_account: str | None = None, folder: str | None = None
    ) -> RestoreOrder:
        """As it was typed. Raises BadInput for what cannot be meant."""
        source = normal_email(account, "account")
        target = source if to_account is None else normal_email(to_account, "to_account")
        if len(query) > LONGEST_QUERY:
            raise BadInput("query", f"is longer than {LONGEST_QUERY:,} characters")
        parse(query, 0, strict=True)
        return cls(source, target, query, None if folder is None else _folder(folder))

    @property
    def search(self) -> str:
        """In the trash too, because that is where removed mail ends; in spam only if the query names it."""
        if opens_spam_and_trash(parse(self.query, 0, strict=True)):
            return self.query
        return f"({self.query}) in:anywhere -in:spam"


def _folder(name: str) -> str:
    name = name.strip()
    if not name or len(name) > LONGEST_FOLDER or not name.isprintable():
        raise BadInput("folder", f"must be a name of 1 to {LONGEST_FOLDER} characters")
    if name.upper() in _NEVER_A_FOLDER:
        raise BadInput("folder", f"{name} is not a place that mail can be put into; name a folder or label of your own")
    return "INBOX" if name.upper() == "INBOX" else name


@dataclass(frozen=True, slots=True)
class RestoreRun:
    id: str
    source: str
    target_account_id: str
    target: str
    query: str
    folder: str | None
    state: RunState
    is_planned: bool
    cursor: str | None
    left_out: int
    reason: str | None
    certificate: Mapping[str, Any] | None
    requested_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None

    @property
    def order(self) -> RestoreOrder:
        return RestoreOrder(self.source, self.target, self.query, self.folder)


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """A run, and how far it is."""

    run: RestoreRun
    counts: Mapping[ItemState, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        return sum(number for state, number in self.counts.items() if state in OVER)

    @property
    def can_go_on(self) -> bool:
        """Also one that is over, to try again what failed. Not one whose undo has begun: that is finished instead."""
        if self.counts.get(ItemState.TRASHED, 0):
            return False
        failed = self.counts.get(ItemState.FAILED, 0)
        return self.run.state in _CAN_GO_ON or (self.run.state is RunState.COMPLETED and failed > 0)

    @property
    def can_be_undone(self) -> bool:
        return self.run.state in _CAN_BE_UNDONE


# What is found


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore would put back, as far as the archive knows. Changes nothing."""

    messages: int
    bytes: int
    left_out: int
    at_source: int
    """The archive believes that so many are still in the target."""
    oldest: datetime | None
    newest: datetime | None


def plan(archive: ArchiveBackend, order: RestoreOrder, settings: RestoreSettings) -> RestorePlan:
    """Looks through the archive, so it blocks: for a thread of its own. Raises BadInput beyond the caps."""
    seen: set[str] = set()
    messages = size = found = at_source = 0
    oldest = newest = None
    for page in _pages(archive, order):
        found += len(page)
        for each in page:
            if each.sha256 in seen or not is_put_back(each.labels):
                continue
            seen.add(each.sha256)
            messages, size = messages + 1, size + each.size
            at_source += _source_id(order, each) is not None
            oldest, newest = min(oldest or each.date, each.date), max(newest or each.date, each.date)
        require_within(messages, size, settings)
    return RestorePlan(messages, size, found - messages, at_source, oldest, newest)


def require_within(messages: int, size: int, settings: RestoreSettings) -> None:
    if messages > settings.max_messages or size > settings.max_bytes:
        raise BadInput(
            "query",
            f"finds more than one restore may put back: {settings.max_messages:,} messages or "
            f"{settings.max_bytes:,} bytes. Narrow it, for example with before:2024/01/01, or raise "
            "restore.max_messages and restore.max_bytes",
        )


def _pages(archive: ArchiveBackend, order: RestoreOrder) -> Iterator[Sequence[ArchivedMessage]]:
    after: str | None = None
    while True:
        found, after = search_page(archive, order, after)
        yield found
        if after is None:
            return


def search_page(
    archive: ArchiveBackend, order: RestoreOrder, after: str | None
) -> tuple[Sequence[ArchivedMessage], str | None]:
    """A page of what the order means, newest first, and where the next begins."""
    with archive.search() as search:
        page = search.search(order.search, accounts=[account_name(order.source)], limit=_PAGE, after=after)
    if page.problems:
        raise Fatal(f"Not all of the archive could be searched: {page.problems[0].problem}. Run `postroom verify`.")
    return [hit.message for hit in page.hits], page.next


def _source_id(order: RestoreOrder, message: ArchivedMessage) -> str | None:
    """The id under which the target may still have it."""
    mine = order.source == order.target and message.deleted_at_source is None
    return message.gmail_id if mine else None


def add_items(tx: Tx, run: RestoreRun, found: Sequence[ArchivedMessage], after: str | None, now: datetime) -> None:
    """Journal a page of the search; a message whose bytes are in the run already is left out."""
    last = tx.execute(select(func.max(_ITEMS.position)).where(_ITEMS.run_id == run.id)).scalar()
    wanted = [each for each in found if is_put_back(each.labels)]
    rows = [_row(run, each, position, now) for position, each in enumerate(wanted, 0 if last is None else last + 1)]
    added = 0
    if rows:
        statement = insert(tx, restore_items).on_conflict_do_nothing(index_elements=["run_id", "sha256"])
        added = len(tx.execute(statement.returning(_ITEMS.position), rows).all())
    values = {"cursor": after, "is_planned": after is None, "left_out": run.left_out + len(found) - added}
    _set(tx, run.id, now, **values)


def _row(run: RestoreRun, message: ArchivedMessage, position: int, now: datetime) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "position": position,
        "key": message.key,
        "sha256": message.sha256,
        "size": message.size,
        "date": message.date,
        "labels": list(wanted_labels(message.labels, run.folder)),
        "thread_id": message.thread_id,
        "message_id": message.message_id,
        "source_id": _source_id(run.order, message),
        "state": ItemState.PLANNED,
        "updated_at": now,
    }


# What a person does


def require_permission(account: Account) -> None:
    """The scopes of a bare token are unknown, so it is not refused here."""
    if account.scopes and account.scopes.isdisjoint({INSERT, CHANGE, EVERYTHING}):
        raise NotAllowed(
            f"{account.email} has not granted gmail.modify (or gmail.insert), so nothing can be put into the mailbox. "
            f"Log in again with {login_command(account.email)} and leave every box on Google's page ticked."
        )


def begin(tx: Tx, queue: JobQueue, order: RestoreOrder, who: Actor, *, proposed: str | None = None) -> RestoreRun:
    """Record a restore and enqueue its job; with `proposed`, the reason, only record it."""
    account, now, run_id = _target(tx, order), queue.clock.now(), new_id()
    require_permission(account)
    state = RunState.RUNNING if proposed is None else RunState.PROPOSED
    if proposed is None:
        _require_alone(tx, account)
    else:
        _require_few_proposed(tx, who)
    tx.execute(
        restore_runs.insert().values(
            id=run_id,
            source=order.source,
            target_account_id=account.id,
            target=account.email,
            query=order.query,
            folder=order.folder,
            state=state,
            reason=proposed,
            requested_by=_name(who),
            created_at=now,
            updated_at=now,
        )
    )
    after = {"source": order.source, "target": order.target, "query": order.query, "folder": order.folder}
    what = "restore.begin" if proposed is None else "restore.propose"
    audit.record(tx, who, what, ("restore", run_id), now, after=after)
    run = get_run(tx, run_id)
    if proposed is None:
        queue.add(tx, job_of(run))
    return run


def _target(tx: Tx, order: RestoreOrder) -> Account:
    try:
        return get_account(tx, order.target)
    except NotFound as error:
        raise NotFound("account" if order.source == order.target else "to_account", error.problem) from error


def _require_alone(tx: Tx, account: Account) -> None:
    tx.lock_table(restore_runs)
    mine = select(_RUNS.id).where(_RUNS.target_account_id == account.id, _RUNS.state.in_(AT_WORK))
    if (other := tx.execute(mine.limit(1)).scalar()) is not None:
        raise BadInput(
            "account", f"{account.email} is being restored into already, by {other}; wait for its end or stop it"
        )


def _require_few_proposed(tx: Tx, who: Actor) -> None:
    """One that proposes cannot bury the proposals of others."""
    mine = select(_RUNS.id).where(_RUNS.state == RunState.PROPOSED, _RUNS.requested_by == _name(who))
    if len(tx.execute(mine.limit(MOST_PROPOSED)).all()) >= MOST_PROPOSED:
        raise NotAllowed(f"{MOST_PROPOSED} proposed restores of {who.name} need an answer first.")


def _name(who: Actor) -> str:
    return f"{who.role} {who.name}"


def start(tx: Tx, queue: JobQueue, run_id: str, who: Actor) -> RestoreRun:
    """The owner agrees to what was proposed."""
    before = _locked(tx, run_id)
    _require(before, (RunState.PROPOSED,), "only a proposed restore can be started")
    account = _target(tx, before.order)
    require_permission(account)
    _require_alone(tx, account)
    run = _change(tx, queue, before, who, "restore.approve", state=RunState.RUNNING)
    queue.add(tx, job_of(run))
    return run


def reject(tx: Tx, queue: JobQueue, run_id: str, who: Actor) -> RestoreRun:
    before = _locked(tx, run_id)
    _require(before, (RunState.PROPOSED,), "only a proposed restore can be rejected")
    return _change(tx, queue, before, who, "restore.reject", state=RunState.REJECTED, finished_at=queue.clock.now())


def stop(tx: Tx, queue: JobQueue, run_id: str, who: Actor) -> RestoreRun:
    """What was put back stays; the next messages are not begun."""
    before = _locked(tx, run_id)
    _require(before, (RunState.RUNNING,), "only one that is running can be stopped")
    return _change(tx, queue, before, who, "restore.stop", state=RunState.STOPPED, reason=f"stopped by {who.name}")


def resume(tx: Tx, queue: JobQueue, run_id: str, who: Actor) -> RestoreRun:
    """Go on, and try again what failed without being added."""
    before = _locked(tx, run_id)
    found = progress_of(tx, before)
    if not found.can_go_on:
        undone = found.counts.get(ItemState.TRASHED, 0) > 0 and before.state in _CAN_GO_ON
        why = "its undo has begun; undo it again to finish that" if undone else "nothing is left to go on with"
        raise BadInput("run", f"{before.id} is {before.state}, and {why}")
    account = _target(tx, before.order)
    require_permission(account)
    _require_alone(tx, account)
    again = (_ITEMS.run_id == before.id, _ITEMS.state == ItemState.FAILED, _ITEMS.target_id.is_(None))
    values = {"state": ItemState.PLANNED, "detail": None, "updated_at": queue.clock.now()}
    tx.execute(update(restore_items).where(*again).values(values))
    changes = {"state": RunState.RUNNING, "reason": None, "finished_at": None, "certificate": None}
    run = _change(tx, queue, before, who, "restore.resume", **changes)
    queue.add(tx, job_of(run))
    return run


def undo(tx: Tx, queue: JobQueue, run_id: str, who: Actor) -> RestoreRun:
    """Move what the run added to the target's trash, and nothing else."""
    before = _locked(tx, run_id)
    _require(before, _CAN_BE_UNDONE, "there is nothing to undo")
    account = _target(tx, before.order)
    if before.state is not RunState.RUNNING:
        _require_alone(tx, account)
    run = _change(
        tx, queue, before, who, "restore.undo", state=RunState.UNDOING, reason=f"undone by {who.name}", finished_at=None
    )
    queue.add(tx, job_of(run))
    return run


def _locked(tx: Tx, run_id: str) -> RestoreRun:
    """For a change by a person. The job first, then the run, as its worker does: otherwise each could wait for the
    other."""
    key = _key(parse_id(run_id, "run"))
    tx.execute(tx.locking(select(jobs.c.id).where(jobs.c.idempotency_key == key)))
    return get_run(tx, run_id, lock=True)


def _require(run: RestoreRun, states: Sequence[RunState], otherwise: str) -> None:
    if run.state not in states:
        raise BadInput("run", f"{run.id} is {run.state}; {otherwise}")


def job_of(run: RestoreRun) -> NewJob:
    payload = {"account_id": run.target_account_id, "run_id": run.id}
    return NewJob(RESTORE.name, payload, QueueName.HISTORY, key=_key(run.id))


def _key(run_id: str) -> str:
    return f"{RESTORE.name}:{run_id}"


def _change(tx: Tx, queue: JobQueue, before: RestoreRun, who: Actor, what: str, **changes: Any) -> RestoreRun:
    now = queue.clock.now()
    _set(tx, before.id, now, **changes)
    after = {"state": str(changes["state"])}
    audit.record(tx, who, what, ("restore", before.id), now, before={"state": str(before.state)}, after=after)
    return get_run(tx, before.id)


def revive(tx: Tx, queue: JobQueue) -> int:
    """Runs at work whose job is over get it again: workers died over it too often. One whose job a person cancelled is
    stopped. How many were found."""
    over = 0
    for row in tx.execute(select(restore_runs).where(_RUNS.state.in_(AT_WORK)).order_by(_RUNS.id)).all():
        run = _run(row)
        job = tx.execute(select(jobs.c.state).where(jobs.c.idempotency_key == _key(run.id))).scalar()
        if job in (JobState.QUEUED, JobState.RUNNING):
            continue
        over += 1
        if job == JobState.CANCELED:
            changes = {"state": RunState.STOPPED, "reason": "its job was cancelled"}
            _change(tx, queue, _locked(tx, run.id), audit.SYSTEM, "restore.stop", **changes)
        else:
            queue.add(tx, job_of(run))
    return over


# What its job writes


def finish(tx: Tx, run: RestoreRun, state: RunState, now: datetime, reason: str | None = None) -> None:
    """The end of its work, with the certificate of what was read back, and an entry in the audit log."""
    found = progress_of(tx, run)
    certificate = certificate_of(all_items(tx, run.id), now) if state is RunState.COMPLETED else run.certificate
    _set(tx, run.id, now, state=state, reason=reason, certificate=certificate, finished_at=now)
    counts = {str(kind): number for kind, number in sorted(found.counts.items())}
    after = {"state": str(state), **counts} | ({"digest": certificate["digest"]} if certificate else {})
    audit.record(tx, audit.SYSTEM, "restore.end", ("restore", run.id), now, after=after)


def settle(
    tx: Tx,
    item: RestoreItem,
    state: ItemState,
    now: datetime,
    *,
    target_id: str | None = None,
    **values: Any,
) -> None:
    """Write the next state of a message; refused if another process has moved it on."""
    require_step(item.state, state, target_id=target_id)
    mine = (_ITEMS.run_id == item.run_id, _ITEMS.position == item.position, _ITEMS.state == item.state)
    changed = update(restore_items).where(*mine)
    written = tx.execute(changed.values(state=state, target_id=target_id, updated_at=now, **values))
    if written.rowcount != 1:
        raise Fatal(f"Message {item.key} of the restore {item.run_id} was changed by another process.")


def touch(tx: Tx, run_id: str, now: datetime) -> None:
    """Something has changed in its journal: open pages look again."""
    _set(tx, run_id, now)


# Reading


def get_run(tx: Tx, run_id: str, *, lock: bool = False) -> RestoreRun:
    query = select(restore_runs).where(_RUNS.id == parse_id(run_id, "run"))
    row = tx.execute(tx.locking(query) if lock else query).one_or_none()
    if row is None:
        raise NotFound("run", f"there is no restore {run_id}; `postroom restore status` lists them")
    return _run(row)


def list_runs(tx: Tx, limit: int = 20) -> list[RestoreProgress]:
    """Newest first."""
    rows = tx.execute(select(restore_runs).order_by(_RUNS.id.desc()).limit(limit)).all()
    return [progress_of(tx, _run(row)) for row in rows]


def progress_of(tx: Tx, run: RestoreRun) -> RestoreProgress:
    query = select(_ITEMS.state, func.count(), func.sum(_ITEMS.size)).where(_ITEMS.run_id == run.id)
    rows = tx.execute(query.group_by(_ITEMS.state)).all()
    return RestoreProgress(
        run, {ItemState(state): number for state, number, _ in rows}, sum(int(size) for _, _, size in rows)
    )


def items_in(tx: Tx, run_id: str, states: Sequence[ItemState], limit: int) -> list[RestoreItem]:
    """The oldest messages first."""
    query = select(restore_items).where(_ITEMS.run_id == run_id, _ITEMS.state.in_(states))
    return [_item(row) for row in tx.execute(query.order_by(_ITEMS.position.desc()).limit(limit))]


def items_added(tx: Tx, run_id: str, limit: int) -> list[RestoreItem]:
    """What an undo has to move to the trash."""
    with_id = (_ITEMS.state == ItemState.FAILED) & _ITEMS.target_id.is_not(None)
    states = _ITEMS.state.in_(ADDED)
    query = select(restore_items).where(_ITEMS.run_id == run_id, states | with_id)
    return [_item(row) for row in tx.execute(query.order_by(_ITEMS.position).limit(limit))]


def all_items(tx: Tx, run_id: str) -> Iterator[RestoreItem]:
    query = select(restore_items).where(_ITEMS.run_id == run_id).order_by(_ITEMS.position)
    return (_item(row) for row in tx.execute(query))


def items_page(
    tx: Tx, run_id: str, *, state: ItemState | None = None, differing: bool = False, after: int = -1, limit: int = 50
) -> list[RestoreItem]:
    """By position, the newest messages first."""
    query = select(restore_items).where(_ITEMS.run_id == run_id, _ITEMS.position > after)
    query = query if state is None else query.where(_ITEMS.state == state)
    query = query.where(_ITEMS.differences.is_not(None)) if differing else query
    return [_item(row) for row in tx.execute(query.order_by(_ITEMS.position).limit(limit))]


def target_threads(tx: Tx, run_id: str, threads: Sequence[str]) -> dict[str, str]:
    """Where messages of these conversations lie in the target, as far as the run has put them there."""
    query = select(_ITEMS.thread_id, _ITEMS.target_thread).where(
        _ITEMS.run_id == run_id, _ITEMS.thread_id.in_(sorted(set(threads))), _ITEMS.target_thread.is_not(None)
    )
    return {thread_id: target for thread_id, target in tx.execute(query.order_by(_ITEMS.position))}


def may_work(tx: Tx) -> str | None:
    """Why no mail is put back now, in words for a person; None: it is."""
    switch = kill_switch.restore_switch(tx)
    return None if switch.on else f"putting mail back is {switch.reason}; turn it on with `postroom restore switch on`"


def _set(tx: Tx, run_id: str, now: datetime, **values: Any) -> None:
    tx.execute(update(restore_runs).where(_RUNS.id == run_id).values(updated_at=now, **values))


def _run(row: Any) -> RestoreRun:
    values = {name: getattr(row, name) for name in RestoreRun.__slots__}
    return RestoreRun(**values | {"state": RunState(row.state)})


def _item(row: Any) -> RestoreItem:
    values = {name: getattr(row, name) for name in RestoreItem.__slots__}
    return RestoreItem(**values | {"state": ItemState(row.state), "labels": tuple(row.labels)})
