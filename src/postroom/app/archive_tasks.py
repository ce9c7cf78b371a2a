"""Work that is handed to the process that owns the archive, as rows: imports of files, repairs, syncs, and indexing
attachments. Also the order of an import, what is kept of its progress and its end, and the folder of uploaded files, of
which alone anything is ever removed.

A command that finds the archive owned by `postroom up` or `postroom switchboard` adds a row and shows its progress; the
owner does the work (`archive_runner.py`). A task that was interrupted is queued again, and goes on where it was. Rows
are made by commands on this machine and by pages of a person who is logged in; no token can name a path.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, select, update

from postroom import audit
from postroom.accounts.account import mailbox_id
from postroom.accounts.troubled import ArrivalLane, MessageTrouble, TroubleKind, record_trouble
from postroom.archive.importing.sources import MailFormat, open_source
from postroom.archive.importing.state import ImportProgress, ImportReport, ImportSource, Unreadable
from postroom.archive.messages import account_name
from postroom.archive.status import ArchiveFinding, ArchiveFlaw, Repair, Salvaged, VerifyReport
from postroom.audit import Actor
from postroom.db import Database, Prepared, Tx
from postroom.db.tables.queue import archive_tasks
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, NotFound
from postroom.domain.ids import is_id, new_id

_TABLE = archive_tasks.c
_KEPT = 200
_MOST_FINDINGS = 200
_HOME_FILE = "home.id"


class TaskKind(StrEnum):
    IMPORT = "import"
    REPAIR = "repair"
    SYNC = "sync"
    """By a Switchboard without a worker; with one, a job does it."""
    INDEX = "index"
    """Attachments; by a job, where the worker can own the archive."""


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    """By a person; it can go on from there."""


UNDER_WAY = (TaskState.QUEUED, TaskState.RUNNING)
CAN_GO_ON = (TaskState.FAILED, TaskState.STOPPED)


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    id: str
    kind: TaskKind
    state: TaskState
    arguments: dict[str, Any]
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    error: str | None
    requested_by: str
    stop_requested: bool
    created_at: datetime
    updated_at: datetime

    @property
    def is_over(self) -> bool:
        return self.state not in UNDER_WAY


def home_id(home: Path) -> str:
    """The name of a home folder that lasts, whatever the host is called; made when it is first asked for."""
    path = home / _HOME_FILE
    if not path.exists():
        _make_home_id(home, path)
    name = path.read_text("ascii", "replace").strip()
    if not is_id(name):
        raise Fatal(f"{path} is damaged. Delete it while Postroom is stopped; a new one is made.")
    return name


def has_home_id(home: Path) -> bool:
    """Whether a Switchboard ran here, or work was handed to one."""
    return (home / _HOME_FILE).exists()


def _make_home_id(home: Path, path: Path) -> None:
    """Whole or not at all; where two make one at the same time, the first counts."""
    name = new_id()
    fresh = path.with_name(f".{path.name}.{name}")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(name, "ascii")
        with suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    except OSError as error:
        raise Fatal(f"{path} cannot be written: {error.strerror}. Check the home folder.") from error


def add_task(
    tx: Tx, home: str, kind: TaskKind, arguments: Mapping[str, Any], who: Actor, now: datetime
) -> tuple[ArchiveTask, bool]:
    """Hand work to the owner of this home's archive; False if the same is under way already, which is returned."""
    tx.lock_table(archive_tasks)
    same = next((each for each in _listed(tx, _of(home, kind, *UNDER_WAY)) if each.arguments == arguments), None)
    if same is not None:
        return same, False
    row = {
        "id": new_id(),
        "home": home,
        "kind": kind,
        "state": TaskState.QUEUED,
        "arguments": dict(arguments),
        "requested_by": f"{who.role} {who.name}",
        "created_at": now,
        "updated_at": now,
    }
    tx.execute(archive_tasks.insert().values(row))
    audit.record(tx, who, f"archive.{kind}", ("archive_task", str(row["id"])), now, after=dict(arguments))
    _forget_old(tx, home)
    return get_task(tx, str(row["id"])), True


def get_task(tx: Tx, task_id: str, field: str = "task") -> ArchiveTask:
    """`field` is what a refusal names."""
    found = _listed(tx, [_TABLE.id == task_id])
    if not found:
        raise NotFound(field, f"there is no import or repair {task_id}")
    return found[0]


def list_tasks(tx: Tx, kind: TaskKind, limit: int = 20) -> list[ArchiveTask]:
    """The newest first."""
    return _listed(tx, [_TABLE.kind == kind], limit)[:limit]


# Made once: the owner of an archive asks every second, and to build a statement takes longer than to run it.
_WAITING = Prepared(
    select(_TABLE.id)
    .where(_TABLE.home == bindparam("the_home"), _TABLE.kind == bindparam("the_kind"), _TABLE.state == TaskState.QUEUED)
    .limit(1)
)


def is_waiting(tx: Tx, home: str, kind: TaskKind) -> bool:
    return bool(tx.run(_WAITING, {"the_home": home, "the_kind": kind}))


def claim_next(tx: Tx, home: str, kind: TaskKind, now: datetime) -> ArchiveTask | None:
    """The oldest task that waits; it runs from now on. Only the one owner of a home's archive calls this."""
    waiting = select(_TABLE.id).where(*_of(home, kind, TaskState.QUEUED)).order_by(_TABLE.id).limit(1)
    task_id = tx.execute(tx.locking(waiting)).scalar()
    if task_id is None:
        return None
    _set(tx, task_id, now, state=TaskState.RUNNING, error=None)
    return get_task(tx, task_id)


def queue_interrupted(tx: Tx, home: str, now: datetime) -> list[ArchiveTask]:
    """What ran when the owner ended or was killed goes on. Returns all tasks of this home that may still be done."""
    running = (_TABLE.home == home, _TABLE.state == TaskState.RUNNING)
    tx.execute(update(archive_tasks).where(*running).values(state=TaskState.QUEUED, updated_at=now))
    return _listed(tx, [_TABLE.home == home, _TABLE.state != TaskState.COMPLETED])


def report_progress(tx: Tx, task_id: str, progress: Mapping[str, Any] | None, now: datetime) -> bool:
    """Record how far it is, if it says so; True if it shall stop."""
    _set(tx, task_id, now, **({} if progress is None else {"progress": dict(progress)}))
    return bool(tx.execute(select(_TABLE.stop_requested).where(_TABLE.id == task_id)).scalar())


def settle(
    tx: Tx,
    task_id: str,
    state: TaskState,
    now: datetime,
    *,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
) -> None:
    _set(tx, task_id, now, state=state, result=None if result is None else dict(result), error=error)


def settle_same(tx: Tx, home: str, arguments: Mapping[str, Any], now: datetime) -> None:
    """An import was done by a command while no owner ran: what waited to do the same has nothing left to do."""
    for each in _listed(tx, _of(home, TaskKind.IMPORT, TaskState.QUEUED, *CAN_GO_ON)):
        if each.arguments == arguments:
            settle(tx, each.id, TaskState.COMPLETED, now)


def stop_task(tx: Tx, task_id: str, who: Actor, now: datetime) -> ArchiveTask:
    """One that runs stores what it has read first; it can go on later."""
    task = get_task(tx, task_id)
    if task.is_over:
        raise BadInput("task", f"it is over ({task.state}); there is nothing to stop")
    state = TaskState.STOPPED if task.state is TaskState.QUEUED else task.state
    _set(tx, task_id, now, state=state, stop_requested=True)
    audit.record(tx, who, "archive.stop", ("archive_task", task_id), now)
    return get_task(tx, task_id)


def resume_task(tx: Tx, task_id: str, who: Actor, now: datetime) -> ArchiveTask:
    task = get_task(tx, task_id)
    if task.state not in CAN_GO_ON:
        raise BadInput("task", f"it is {task.state}; only one that was stopped or has failed can go on")
    _set(tx, task_id, now, state=TaskState.QUEUED, stop_requested=False, error=None)
    audit.record(tx, who, "archive.resume", ("archive_task", task_id), now)
    return get_task(tx, task_id)


def forget_task(tx: Tx, task_id: str, who: Actor, now: datetime) -> ArchiveTask:
    """Remove one that is over from the list; what it stored stays."""
    task = get_task(tx, task_id)
    if not task.is_over:
        raise BadInput("task", f"it is {task.state}; stop it first")
    tx.execute(delete(archive_tasks).where(_TABLE.id == task_id))
    audit.record(tx, who, "archive.forget", ("archive_task", task_id), now)
    return task


def repair_written(report: VerifyReport, done: Repair) -> dict[str, Any]:
    """What was found last, and what was done before."""
    counts = {"shards": report.shards, "messages": report.messages, "bytes": report.bytes, "notes": report.notes}
    findings = [asdict(each) for each in report.findings[:_MOST_FINDINGS]]
    return {**counts, "findings": findings, "rebuilt": [asdict(each) for each in done.rebuilt], "to_sync": done.to_sync}


def repair_read(written: Mapping[str, Any]) -> tuple[VerifyReport, Repair]:
    findings = [
        ArchiveFinding(ArchiveFlaw(each["flaw"]), each["shard"], each["detail"], each["key"])
        for each in written.get("findings", ())
    ]
    counts = {name: written[name] for name in ("shards", "messages", "bytes", "notes") if name in written}
    rebuilt = [Salvaged(**each) for each in written.get("rebuilt", ())]
    return VerifyReport(findings=findings, **counts), Repair(rebuilt, list(written.get("to_sync", ())))


def absolute(path: Path) -> str:
    """As the owner finds it, whatever its own folder is."""
    return os.path.abspath(path)


def _set(tx: Tx, task_id: str, now: datetime, **values: Any) -> None:
    tx.execute(update(archive_tasks).where(_TABLE.id == task_id).values(updated_at=now, **values))


def _of(home: str, kind: TaskKind, *states: TaskState) -> list[ColumnElement[bool]]:
    return [_TABLE.home == home, _TABLE.kind == kind, _TABLE.state.in_(states)]


def _listed(tx: Tx, conditions: Sequence[ColumnElement[bool]], limit: int = _KEPT) -> list[ArchiveTask]:
    query = select(archive_tasks).where(*conditions).order_by(_TABLE.id.desc()).limit(limit)
    return [_task(row) for row in tx.execute(query)]


def _task(row: Any) -> ArchiveTask:
    return ArchiveTask(
        row.id,
        TaskKind(row.kind),
        TaskState(row.state),
        row.arguments,
        row.progress,
        row.result,
        row.error,
        row.requested_by,
        row.stop_requested,
        row.created_at,
        row.updated_at,
    )


def _forget_old(tx: Tx, home: str) -> None:
    """Keeps the newest, and whatever is not done."""
    newest = select(_TABLE.id).where(_TABLE.home == home).order_by(_TABLE.id.desc()).limit(_KEPT)
    done = (_TABLE.home == home, _TABLE.state == TaskState.COMPLETED, _TABLE.id.not_in(newest))
    tx.execute(delete(archive_tasks).where(*done))


UNFINISHED = ".part"
"""The ending of a file that is not an import yet."""
_FORGOTTEN = timedelta(days=1)


def uploads_folder(home: Path) -> Path:
    return home / "uploads"


def remove_upload(home: Path, path: Path) -> None:
    if path.parent != uploads_folder(home):
        raise Fatal(f"{path} is not an uploaded file; it was not removed.")
    path.unlink(missing_ok=True)


def remove_forgotten(home: Path, needed: Collection[Path], now: datetime) -> None:
    """Files of uploads that broke off long ago because the process was killed: no import needs them."""
    folder = uploads_folder(home)
    before = (now - _FORGOTTEN).timestamp()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path not in needed and path.stat().st_mtime < before:
            remove_upload(home, path)


_KEPT_UNREADABLE = 100
_COUNTS = (
    "found",
    "stored",
    "duplicates",
    "with_problems",
    "bytes",
    "seconds",
    "unreadable_count",
    "not_mail",
    "resumed_from",
)


@dataclass(frozen=True, slots=True)
class ImportOrder:
    format: MailFormat
    path: Path
    """Absolute: the process that does it may have another working folder."""
    account: str
    keep_quotes: bool = False
    uploaded_as: str | None = None
    """The name that the file had where it came from; it is removed when it has been imported."""

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> ImportOrder:
        """As it was written down; what is not an order is refused."""
        given = dict(arguments)
        if unknown := given.keys() - {field.name for field in fields(cls)}:
            raise BadInput(min(unknown), "is not a part of an import")
        path, account, name = given.get("path"), given.get("account"), given.get("uploaded_as")
        if not isinstance(path, str) or not Path(path).is_absolute():
            raise BadInput("path", "is not an absolute path")
        if not isinstance(account, str) or not isinstance(name, str | None):
            raise BadInput("account", "is not an address")
        try:
            format = MailFormat(given.get("format", ""))
        except ValueError:
            raise BadInput("format", f"is none of {', '.join(MailFormat)}") from None
        return cls(format, Path(path), account_name(account), given.get("keep_quotes") is True, name)

    def written(self) -> dict[str, Any]:
        return {**asdict(self), "format": str(self.format), "path": str(self.path)}

    def source(self) -> ImportSource:
        return open_source(self.format, self.path, self.account, keep_quotes=self.keep_quotes)


def progress_written(progress: ImportProgress) -> dict[str, Any]:
    counts = {name: getattr(progress.report, name) for name in _COUNTS}
    return {"bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total, **counts}


def progress_read(written: Mapping[str, Any]) -> ImportProgress:
    report = ImportReport(**{name: written[name] for name in _COUNTS if name in written})
    return ImportProgress(int(written.get("bytes_done", 0)), written.get("bytes_total"), report)


def report_written(report: ImportReport) -> dict[str, Any]:
    unreadable = [asdict(each) for each in report.unreadable[:_KEPT_UNREADABLE]]
    counts = {name: getattr(report, name) for name in _COUNTS}
    return {**counts, "stopped": report.stopped, "unreadable": unreadable}


def report_read(written: Mapping[str, Any]) -> ImportReport:
    report = ImportReport(**{name: written[name] for name in _COUNTS if name in written})
    report.stopped = bool(written.get("stopped"))
    report.unreadable = [Unreadable(**each) for each in written.get("unreadable", ())]
    return report


async def list_troubled(database: Database, clock: Clock, owner: str, troubled: Mapping[str, str]) -> None:
    """So that they are tried again, also where the address is no account here."""
    troubles = [MessageTrouble(key, TroubleKind.READ, reason) for key, reason in troubled.items()]

    def record(tx: Tx) -> None:
        now = clock.now()
        record_trouble(tx, mailbox_id(tx, owner, now), ArrivalLane.IMPORT, troubles, now)

    await database.write(record)
