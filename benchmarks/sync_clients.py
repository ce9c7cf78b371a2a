"""The ways to bring a mailbox to disk that are compared; each is a process of its own and prints one line of JSON.

`sync` is the product's own: it lists, fetches, stores, indexes, checkpoints and moves the watermark. `google` is
Google's client in batches of 50 that fetches and keeps nothing; `google+archive` hands each batch to our archive.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.archives import opened_store

from benchmarks.gmail_clients import FixedToken
from postroom.accounts.account import NewAccount, add_account
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.eventloop import run
from postroom.mailboxes.gmail.client import connected
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.mailboxes.pace import TunerLimits
from postroom.settings import SyncSettings
from postroom.sync.engine import SyncEngine, build_engine
from postroom.sync.status import SyncPhase
from postroom.telemetry import logs

_PEER_BATCH = 50
_EMAIL = "owner@example.com"
_NO_LIMIT = TunerLimits(start_workers=32, start_rps=1e6, max_rps=1e6, p95_limit_s=3_600)


@dataclass(frozen=True, slots=True)
class Brought:
    messages: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


def _measured(messages: int, seconds: float) -> Brought:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Brought(messages, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1_024)


async def sync(url: str, token: str, folder: Path, batch_size: int | None) -> Brought:
    """Until the walk is over; the comparison of labels after it is not part of bringing mail."""
    clock = SystemClock()
    database = await connect(f"sqlite:///{folder / 'postroom.db'}")
    account = await database.write(lambda tx: add_account(tx, NewAccount(_EMAIL, url), clock.now()))
    limiter = limiter_for(None, clock, tuning=_NO_LIMIT)
    config = TransportConfig(api_base=url)
    async with (
        connected(FixedToken(token), limiter, clock, config=config, batch_size=batch_size) as client,
        opened_store(folder / "archive", _EMAIL) as store,
    ):
        engine = build_engine(database, account, GmailMailbox(client), store, SyncSettings(), clock)
        started = time.perf_counter()
        running = asyncio.create_task(engine.run(once=True))
        await _walked(engine, running)
        brought = _measured(engine.progress().stored, time.perf_counter() - started)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await database.close()
    return brought


async def _walked(engine: SyncEngine, running: asyncio.Task[None]) -> None:
    while engine.progress().phase is not SyncPhase.FOLLOWING:
        if running.done():
            running.result()
        await asyncio.sleep(0.02)


def google(url: str, token: str, ids: list[str], keep: Callable[[list[dict[str, Any]]], None]) -> Brought:
    from tests.support.google_client import plain_google_service

    service = plain_google_service(url, token)
    messages = service.users().messages()
    answers: list[dict[str, Any]] = []

    def take(request_id: str, answer: Any, error: Any) -> None:
        assert error is None, error
        answers.append(answer)

    started, count = time.perf_counter(), 0
    for start in range(0, len(ids), _PEER_BATCH):
        batch = service.new_batch_http_request(callback=take)
        for message_id in ids[start : start + _PEER_BATCH]:
            batch.add(messages.get(userId="me", id=message_id, format="raw"))
        batch.execute()
        count += len(answers)
        keep(answers)
        answers.clear()
    return _measured(count, time.perf_counter() - started)


def _mail(answer: dict[str, Any]) -> IncomingMail:
    return IncomingMail(
        raw=urlsafe_b64decode(answer["raw"]),
        provenance=Provenance.API,
        gmail_id=answer["id"],
        thread_id=answer["threadId"],
        labels=frozenset(answer.get("labelIds", ())),
        received=datetime.fromtimestamp(int(answer["internalDate"]) / 1_000, UTC),
    )


def _decode(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        urlsafe_b64decode(answer["raw"])


def _google_into_archive(url: str, token: str, ids: list[str], folder: Path) -> Brought:
    with FileArchiveWriter(folder / "archive") as archive:

        def store(answers: list[dict[str, Any]]) -> None:
            archive.store(_EMAIL, [_mail(answer) for answer in answers])

        return google(url, token, ids, store)


def main(task_json: str) -> None:
    logs.configure(level="error")
    task = json.loads(task_json)
    url, token = task["url"], task["token"]
    with tempfile.TemporaryDirectory() as folder:
        match task["client"]:
            case "sync":
                brought = run(sync(url, token, Path(folder), task.get("batch_size")))
            case "google":
                brought = google(url, token, task["ids"], _decode)
            case _:
                brought = _google_into_archive(url, token, task["ids"], Path(folder))
    print(json.dumps(asdict(brought)))


if __name__ == "__main__":
    main(sys.argv[1])
