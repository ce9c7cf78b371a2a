"""Everything in one process and one event loop: the Switchboard with its front, and a worker beside it.

On a stop signal the worker finishes or hands back its jobs, the server ends, and the archive is checkpointed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from postroom.app.auditing import sealing
from postroom.app.installation import App
from postroom.app.live_settings import watching_settings
from postroom.app.series import recording
from postroom.app.serving import Front, RunningSwitchboard, SharedServices, open_switchboard, running_address
from postroom.app.worker import open_worker
from postroom.archive.status import UP
from postroom.domain.errors import Fatal
from postroom.queue.worker import Worker

_LOCK = "up.lock"
_DRAIN_S = 3.0
"""A person is waiting at the terminal. Jobs that take longer are handed back and resume next time."""


async def run_everything(
    app: App,
    front_of: Callable[[SharedServices], Front],
    stop: asyncio.Event,
    ready: Callable[[RunningSwitchboard], Awaitable[None]],
) -> None:
    """Serve and work until `stop` is set; `ready` is called once pages are answered."""
    with _alone(app.settings.home):
        async with (
            sealing(app),
            recording(app),
            watching_settings(app),
            open_switchboard(app, front_of, command=UP) as running,
            open_worker(app, drain_s=_DRAIN_S) as worker,
        ):
            await ready(running)
            stopping = asyncio.create_task(_stop_on(worker, stop))
            try:
                await worker.run()
            finally:
                stopping.cancel()


async def _stop_on(worker: Worker, stop: asyncio.Event) -> None:
    await stop.wait()
    worker.stop()


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Allow one process for each home folder. The kernel releases the lock however its owner dies."""
    handle = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    except BlockingIOError:
        raise Fatal(_already(home, os.pread(handle, 20, 0).decode("ascii", "replace"))) from None
    finally:
        os.close(handle)


def _already(home: Path, process: str) -> str:
    address = running_address(home)
    where = f" at {address.removesuffix('/mcp')}" if address else ""
    which = f" (process {process})" if process else ""
    return (
        f"Postroom is already running{where} for {home}{which}. Stop that one first, or set POSTROOM_HOME to another "
        "folder."
    )
