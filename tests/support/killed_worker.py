"""A worker that dies at its n-th step on command, started many times quickly.

One process imports everything and then forks for each order it reads, a line of JSON: the home folder, how far the
clock is ahead, and the step after which to die by SIGKILL. A step is a committed write, an answered HTTP request or an
answered IMAP command, so the steps of a run are all the places where something has just become true that nothing else
knows yet.

What a life that came to its end has imported is imported here too, so that the next ones need not.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pydantic_ai.models.openai
import pydantic_ai.providers.openai_compatible  # noqa: F401 (imported when first needed, which is in every life)

from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.db import Database
from postroom.domain.clock import SystemClock
from postroom.mailboxes.imap.connection import ImapConnection
from postroom.settings import load
from postroom.tls import trusted
from postroom.triage import model_client  # noqa: F401 (the same)
from tests.support.commands import only_given

_IMPORTED = "imported "


class AheadClock(SystemClock):
    """Some time later: leases have ended, and what was put off is due."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def now(self) -> datetime:
        return super().now() + self._ahead


class Steps:
    """Counts, says what was done, and ends the process when its time has come."""

    def __init__(self, die_at: int | None, trail: int) -> None:
        self._left = die_at
        self._trail = trail

    def done(self, what: str) -> None:
        os.write(self._trail, f"{what}\n".encode())
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        write, send, command = Database.write, httpx2.AsyncClient.send, ImapConnection.command

        async def watched_write(database: Database, transaction: Any, **options: Any) -> Any:
            value = await write(database, transaction, **options)
            self.done("commit")
            return value

        async def watched_send(client: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> Any:
            response = await send(client, request, **options)
            self.done(f"{request.method} {request.url.path} {response.status_code}")
            return response

        async def watched_command(connection: ImapConnection, *parts: Any, **options: Any) -> Any:
            answer = await command(connection, *parts, **options)
            self.done(f"IMAP {bytes(parts[0]).split()[0].decode()}")
            return answer

        ImapConnection.command = watched_command  # type: ignore[method-assign, assignment]
        Database.write = watched_write  # type: ignore[method-assign, assignment]
        httpx2.AsyncClient.send = watched_send  # type: ignore[method-assign, assignment]


async def work(ahead_s: float, steps: Steps) -> None:
    """Until nothing is left that could be done now. Nothing recurs: every step belongs to what the test enqueued."""

    async def nothing(app: App) -> None:
        return None

    App.declare_schedules = nothing  # type: ignore[method-assign, assignment]
    async with open_app(load(), AheadClock(timedelta(seconds=ahead_s))) as app:
        steps.watch()
        async with open_worker(app, until_idle=True) as worker:
            await worker.run()


def run_child(order: dict[str, Any], trail: int) -> int:
    only_given(order["variables"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    try:
        asyncio.run(work(order["ahead_s"], Steps(order["die_at"], trail)))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        return 1
    os.write(trail, f"{_IMPORTED}{' '.join(sys.modules)}\n".encode())
    return 0


def obey(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(run_child(order, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as trail:
        steps = trail.read().decode().splitlines()
    _, status = os.waitpid(child, 0)
    if steps and steps[-1].startswith(_IMPORTED):
        import_all(steps.pop().removeprefix(_IMPORTED).split())
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return {"killed": killed, "failed": not killed and status != 0, "steps": steps}


def import_all(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with suppress(ImportError):  # made by another module, not found by its name
                importlib.import_module(name)
    gc.freeze()


def main() -> None:
    trusted()  # read before the first fork, so that no life has to
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
