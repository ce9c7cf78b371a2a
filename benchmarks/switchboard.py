"""Measures ingest over MCP: `python -m benchmarks.switchboard`.

A real `postroom switchboard` on loopback, every commit on disk, and the SDK's own client as a process beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.support.archives import ME, generated_mail
from tests.support.mail import envelope, inline
from tests.support.switchboards import Calls, SwitchboardProcess, stranger

from benchmarks import report
from benchmarks.databases import Kind, stores
from benchmarks.report import Verdict
from postroom.archive.messages import IncomingMail
from postroom.domain.roles import Role

RESULTS = Path(__file__).parent / "results" / "switchboard.json"
BATCH = 100
LEAST_IN_BATCHES = 2_000.0
LEAST_BY_REFERENCE = 3_000.0
LEAST_ONE_BY_ONE = 500.0
MANY_CLIENTS = 8
ONE_BY_ONE, IN_BATCHES, BY_REFERENCE = (
    "metadata, one by one",
    "metadata, batches of 100",
    "full by reference, batches of 100",
)
KINDS = (Kind.SQLITE_FULL, Kind.POSTGRESQL)

Load = Callable[[Calls, Sequence[IncomingMail]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Run:
    kind: Kind
    what: str
    clients: int
    per_second: float


def metadata(mail: IncomingMail) -> dict[str, Any]:
    return envelope(mail.gmail_id or "", text="An ordinary subject line of a message")


def portions(mails: Sequence[IncomingMail]) -> list[Sequence[IncomingMail]]:
    return [mails[start : start + BATCH] for start in range(0, len(mails), BATCH)]


async def one_by_one(call: Calls, mails: Sequence[IncomingMail]) -> None:
    for mail in mails:
        await call("ingest", metadata(mail))


async def in_batches(call: Calls, mails: Sequence[IncomingMail]) -> None:
    for some in portions(mails):
        await call("ingest", {"envelopes": [metadata(mail) for mail in some]})


async def with_raw(call: Calls, mails: Sequence[IncomingMail]) -> None:
    for some in portions(mails):
        sent = [envelope(mail.gmail_id or "", raw=inline(mail.raw), text="x" * 1_000) for mail in some]
        await call("ingest", {"envelopes": sent})


async def by_reference(call: Calls, mails: Sequence[IncomingMail]) -> None:
    """What is in the archive already, as a backfill that walks it brings it."""
    ids = [mail.gmail_id or "" for mail in mails]
    for start in range(0, len(ids), BATCH):
        known = (await call("archive.lookup", endpoint_identity=ME, gmail_ids=ids[start : start + BATCH]))["known"]
        sent = [envelope(key, raw=reference, text="x" * 1_000) for key, reference in known.items()]
        await call("ingest", {"envelopes": sent})


async def stored(call: Calls, mails: Sequence[IncomingMail]) -> None:
    for some in portions(mails):
        raws = [
            {"gmail_id": mail.gmail_id, "internal_date": 1_767_268_800_000, "raw": inline(mail.raw)["base64"]}
            for mail in some
        ]
        await call("archive.store", endpoint_identity=ME, messages=raws)


LOADS: dict[str, tuple[Load, int]] = {
    ONE_BY_ONE: (one_by_one, 4),
    IN_BATCHES: (in_batches, 1),
    "full with raw inside, batches of 100": (with_raw, 2),
    "archive.store, batches of 100": (stored, 2),
    BY_REFERENCE: (by_reference, 1),
}


@asynccontextmanager
async def switchboard(url: str | None) -> AsyncIterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        process = SwitchboardProcess(Path(folder), url)
        await process.start()
        try:
            yield process.url, await process.token(Role.CONNECTOR)
        finally:
            await process.end()


async def measure(kind: Kind, url: str | None, mails: Sequence[IncomingMail], clients: int) -> list[Run]:
    runs = []
    for what, (load, slower) in LOADS.items():
        if clients == MANY_CLIENTS and load is not one_by_one:
            continue
        share = max(len(mails) // slower // clients // BATCH, 1) * BATCH
        async with switchboard(url if kind is Kind.POSTGRESQL else None) as (address, token):
            parts = [_renamed(mails[n * share : (n + 1) * share], what) for n in range(clients)]
            async with asyncio.TaskGroup() as group:
                if load is by_reference:
                    for part in parts:
                        group.create_task(_drive(address, token, stored, part))
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(_drive(address, token, load, part))
            took = time.perf_counter() - began
        runs.append(Run(kind, what, clients, share * clients / took))
    return runs


def _renamed(mails: Sequence[IncomingMail], what: str) -> list[IncomingMail]:
    """Runs on one PostgreSQL database must not find each other's mail."""
    mark = list(LOADS).index(what)
    return [
        IncomingMail(mail.raw, mail.provenance, f"{mark}{mail.gmail_id}", mail.thread_id, mail.labels, mail.received)
        for mail in mails
    ]


async def _drive(address: str, token: str, load: Load, mails: Sequence[IncomingMail]) -> None:
    async with stranger(address, token) as call:
        await load(call, mails)


def shown(runs: Sequence[Run]) -> Table:
    columns = list(dict.fromkeys((run.kind, run.clients) for run in runs))
    made = Table("envelopes a second", *(f"{kind}, clients: {clients}" for kind, clients in columns))
    for what in LOADS:
        made.add_row(what, *(_cell(runs, what, *column) for column in columns))
    return made


def _cell(runs: Sequence[Run], what: str, kind: Kind, clients: int) -> str:
    found = [run.per_second for run in runs if (run.what, run.kind, run.clients) == (what, kind, clients)]
    return f"{median(found):,.0f}" if found else "-"


def judge(runs: Sequence[Run]) -> list[Verdict]:
    verdicts = []
    for what, clients, least in (
        (IN_BATCHES, None, LEAST_IN_BATCHES),
        (BY_REFERENCE, None, LEAST_BY_REFERENCE),
        (ONE_BY_ONE, MANY_CLIENTS, LEAST_ONE_BY_ONE),
    ):
        here = [run for run in runs if run.kind is Kind.SQLITE_FULL and run.what == what]
        best = max((run.per_second for run in here if clients in (None, run.clients)), default=None)
        met = None if best is None else best >= least
        shown = what if clients is None else f"{what}, {clients} clients"
        verdicts.append(Verdict(f"ingest over MCP into SQLite, {shown}", best, f"at least {least:,.0f}/s", met, "/s"))
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=8_000)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 2, MANY_CLIENTS])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    mails = generated_mail(options.messages)
    runs: list[Run] = []
    with stores() as databases:
        for kind in KINDS:
            for clients in options.clients:
                with databases.fresh(kind) as store:
                    runs += asyncio.run(measure(kind, store.url, mails, clients))
        facts = report.machine_facts(databases.postgresql_version)
    verdicts = judge(runs)
    console = Console(width=max(Console().width, 120))
    console.print(shown(runs))
    console.print(report.verdict_table(verdicts))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": facts, "messages": options.messages, "runs": [asdict(run) for run in runs]}
    options.out.write_text(
        json.dumps(figures | {"goals": list(map(asdict, verdicts))}, indent=2, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
