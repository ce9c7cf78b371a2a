"""Work that a command hands to the running Postroom that owns the archive, and how it is shown until it ends.

Ctrl-C ends the command and not the work; the same command shows it again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer
from rich.live import Live
from rich.text import Text

from postroom.accounts.account import Account
from postroom.accounts.account_jobs import job_of
from postroom.app import App
from postroom.app.archive_tasks import ArchiveTask, TaskKind, TaskState, add_task, get_task, home_id
from postroom.archive.shards.ownership import owner_of
from postroom.archive.status import SERVING, UP, OwnedElsewhere, Owner
from postroom.audit import Actor
from postroom.cli.session import me, stopped_by_signals
from postroom.cli.terminal import errors, printable
from postroom.db import Tx
from postroom.domain.errors import Fatal, Retryable
from postroom.domain.jobs import SYNC, JobState
from postroom.queue.inspection import JobRecord, show_job
from postroom.sync.status import SyncStatus, status_of

_LOOK_EVERY_S = 0.5
_LINE_EVERY_S = 10.0
_OVER = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)


def server_in(error: OwnedElsewhere) -> Owner:
    """The running Postroom that takes the work; the refusal as it is where the owner is another one."""
    owner = error.owner
    if owner is None or owner.purpose not in SERVING or owner.host != socket.gethostname():
        raise error
    return owner


async def do_elsewhere(
    app: App, owner: Owner, kind: TaskKind, arguments: Mapping[str, Any], show: Callable[[ArchiveTask], None]
) -> ArchiveTask:
    """Hand work to the owner of the archive, and show it until it ends."""
    home, who = home_id(app.settings.home), Actor.of(me())
    task, is_new = await app.database.write(lambda tx: add_task(tx, home, kind, arguments, who, app.clock.now()))
    errors.print(_said(kind, owner, is_new=is_new), markup=False, soft_wrap=True)
    read = partial(get_task, task_id=task.id)
    async with _until_interrupted(f"The {kind} goes on in `{owner.purpose}`; the same command shows it.") as pause:
        while not task.is_over:
            _require_running(app, owner, f"The {kind} goes on when it starts again.")
            await pause()
            task = await app.database.read(read)
            show(task)
    if task.state is TaskState.FAILED:
        raise Fatal(task.error)
    return task


def _said(kind: TaskKind, owner: Owner, *, is_new: bool) -> str:
    if is_new:
        return f"{owner} is running and owns the archive: the {kind} is done there."
    return f"{owner} is at work on this {kind} already."


def _require_running(app: App, owner: Owner, otherwise: str) -> None:
    now = owner_of(app.settings.home / "archive")
    if now is None or (now.pid, now.since) != (owner.pid, owner.since):
        raise Retryable(f"{owner} has ended. {otherwise} To go on without it, run the same command again.")


@asynccontextmanager
async def _until_interrupted(saying: str) -> AsyncIterator[Callable[[], Any]]:
    """A pause between two looks; an interrupt ends the command there."""
    with stopped_by_signals(saying) as stop:

        async def pause() -> None:
            try:
                await asyncio.wait_for(stop.wait(), _LOOK_EVERY_S)
            except TimeoutError:
                return
            raise typer.Exit(130)

        yield pause


@dataclass(frozen=True, slots=True)
class SyncedThere:
    """How an account's sync ended that the owner of the archive did."""

    account: str
    error: str | None
    result: Mapping[str, Any]


async def sync_elsewhere(app: App, owner: Owner, accounts: list[Account]) -> list[SyncedThere]:
    """Let the owner of the archive sync these accounts now: a job does it in `postroom up`, a task in a Switchboard,
    which runs no jobs."""
    if owner.purpose == UP:
        jobs = await _sync_by_jobs(app, owner, accounts)
        return [_of_job(account, job) for account, job in zip(accounts, jobs, strict=True)]
    with _StatusDisplay() as display:
        wanted = {"accounts": sorted(account.id for account in accounts)}
        task = await do_elsewhere(app, owner, TaskKind.SYNC, wanted, lambda task: display.show(_lines(task)))
    found = (task.result or {}).get("accounts", {})
    return [_of_task(account, found.get(account.email)) for account in accounts]


def _of_job(account: Account, job: JobRecord) -> SyncedThere:
    result = job.result if isinstance(job.result, dict) else {}
    error = result.get("skipped") if job.state is JobState.COMPLETED else job.last_error or f"the job is {job.state}"
    return SyncedThere(account.email, error, result)


def _of_task(account: Account, result: Mapping[str, Any] | None) -> SyncedThere:
    if result is None:
        return SyncedThere(account.email, "it is no longer connected", {})
    return SyncedThere(account.email, result.get("error"), result)


async def _sync_by_jobs(app: App, owner: Owner, accounts: list[Account]) -> list[JobRecord]:
    added = await app.database.write(lambda tx: _sync_now(tx, app, accounts))
    errors.print(f"{owner} is running and owns the archive: the sync is done there.", markup=False, soft_wrap=True)
    with _StatusDisplay() as display:
        async with _until_interrupted("The sync goes on in `postroom up`; `postroom sync status` shows it.") as pause:
            while True:
                found, statuses = await app.database.read(partial(_looked_at, jobs=added, accounts=accounts, app=app))
                display.show([_line(each) for each in statuses])
                if all(job.state in _OVER for job in found):
                    return found
                _require_running(app, owner, "The sync goes on when it starts again.")
                await pause()


def _looked_at(tx: Tx, jobs: list[str], accounts: list[Account], app: App) -> tuple[list[JobRecord], list[SyncStatus]]:
    now = app.clock.now()
    return [show_job(tx, job)[0] for job in jobs], [status_of(tx, account, now) for account in accounts]


def _sync_now(tx: Tx, app: App, accounts: list[Account]) -> list[str]:
    """A job that waits for its next try is tried now."""
    ids = [each.job_id for each in app.queue.add(tx, *(job_of(SYNC.name, account) for account in accounts))]
    app.queue.release_within(tx, ids)
    return ids


class _StatusDisplay:
    """How far syncs in another process are: lines that renew themselves on a terminal, a line now and then
    elsewhere."""

    def __init__(self) -> None:
        self._live = Live(console=errors, auto_refresh=False, transient=True) if errors.is_terminal else None
        self._next = 0.0

    def __enter__(self) -> _StatusDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        if self._live is not None:
            self._live.update(Text(text), refresh=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_S
            errors.print(text, markup=False, soft_wrap=True)


def _lines(task: ArchiveTask) -> list[str]:
    shown = (task.progress or {}).get("accounts", {})
    return [printable(f"{email}: {words}") for email, words in shown.items()]


def _line(status: SyncStatus) -> str:
    words = f", {status.progress.words}" if status.progress else ""
    return printable(f"{status.account}: {status.phase}{words}")
