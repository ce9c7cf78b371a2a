"""The data set of the dashboard's benchmark: a home folder with an archive and a database of each kind, with the rows
that an installation has after eleven years.

It is made once in a folder, part by part, and reused while its size is the one asked for. Every number is derived from
a row's place, so that both databases and every run have the same.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from sqlalchemy import Table
from sqlalchemy.engine import make_url

from benchmarks.dashboard_archive import NOW, OWNER, Mail, archived_mail, write_archive, write_certificates
from benchmarks.databases import start_server
from postroom.db import Dialect, connect
from postroom.db.tables.access import audit_log, connectors
from postroom.db.tables.accounts import accounts, sync_slices, sync_states, sync_windows, troubled_messages
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_rate, backfill_spend, contact_exports, contacts, messages
from postroom.db.tables.queue import job_steps, jobs
from postroom.db.tables.restores import restore_items, restore_runs
from postroom.db.tables.triage import (
    actions,
    decisions,
    directions,
    model_calls,
    model_rules,
    rule_applications,
    rules,
)
from postroom.db.tables.web import backfill_runs, discovered_items, evidence, evidence_texts, web_endpoints
from postroom.domain.clock import utc_text
from postroom.domain.jobs import CATALOGUE, JobState
from postroom.domain.terms import TIERS
from postroom.queue.job import QueueName

Row = dict[str, Any]
Rows = tuple[Table, Iterable[Row]]

_KINDS = {name: number for number, name in enumerate(
    ("account", "message", "decision", "action", "call", "audit", "job", "step", "backfill", "rate", "rule", "endpoint",
     "run", "item", "evidence", "direction", "guidance", "application", "restore")
)}  # fmt: skip
_STATUSES = ("completed",) * 90 + ("failed",) * 4 + ("rejected", "expired", "canceled", "queued", "executing")
_PENDING = 400
"""One action in so many waits for an answer."""
_LEAST_BACKFILLS = 50
"""Messages and audit entries name these."""
_BACKFILLS = ("completed",) * 6 + ("cancelled", "paused", "error", "active")


def identity(kind: str, number: int, at: datetime = NOW) -> str:
    """An id as Postroom makes them: it sorts by time."""
    text = f"{int(at.timestamp() * 1_000):012x}7{_KINDS[kind]:03x}8{number:015x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


ACCOUNT = identity("account", 0)


def all_rows(archive: Path, mail: int, job_count: int, dialect: str) -> Iterator[Rows]:
    """Table by table, in an order in which nothing points ahead."""
    yield accounts, [_account()]
    yield messages, (_message(number, each) for number, each in enumerate(archived_mail(archive)))
    yield decisions, (_decision(number, each) for number, each in _each(archive, 5))
    yield actions, (_action(number, each) for number, each in _each(archive, 10))
    yield model_calls, (_call(number, each) for number, each in _each(archive, 10))
    yield audit_log, (_entry(number, each) for number, each in _each(archive, 5))
    yield jobs, (_job(number, job_count) for number in range(job_count))
    yield job_steps, (_step(number, job_count) for number in range(job_count))
    yield BACKFILL_JOBS[dialect], (_backfill(number) for number in range(max(_LEAST_BACKFILLS, mail // 2_000)))
    yield backfill_spend, (_spend(number, day) for number in range(mail // 2_000 + 1) for day in range(3))
    yield backfill_rate, (_rate(number) for number in range(50))
    yield contacts, (_contact(number) for number in range(mail // 200))
    yield contact_exports, [{"version": 1, "generated_at": NOW, "addresses": mail // 200, "sha256": "0" * 64}]
    yield connectors, (_connector(number) for number in range(3))
    yield rules, (_rule(number) for number in range(200))
    yield rule_applications, (_application(number) for number in range(200))
    yield restore_runs, (_restore(number) for number in range(20))
    yield restore_items, (_restored(number, each) for number, each in _each(archive, 100))
    yield directions, (_direction(number) for number in range(20))
    yield model_rules, (_guidance(number) for number in range(50))
    yield from _sync(mail)
    yield from _web(mail)


def _each(archive: Path, every: int) -> Iterator[tuple[int, Mail]]:
    return ((number, each) for number, each in enumerate(archived_mail(archive)) if number % every == 0)


def _account() -> Row:
    return {"id": ACCOUNT, "provider": "gmail", "email": OWNER, "api_base": "https://example.org", "scopes": "",
            "status": "active", "created_at": NOW, "updated_at": NOW}  # fmt: skip


def _message(number: int, mail: Mail) -> Row:
    is_full = number % 4 == 0
    return {
        "id": identity("message", number, mail.date),
        "account_id": ACCOUNT,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": OWNER,
        "external_event_id": mail.key,
        "external_thread_id": mail.thread_id,
        "idempotency_key": f"gmail:{OWNER}:{mail.key}",
        "sender_identity": mail.sender,
        "subject": mail.subject,
        "normalized_text": f"{mail.subject} {number}" if is_full else None,
        "has_attachment": number % 9 == 0,
        "size_bytes": mail.size,
        "ingestion_tier": "full" if is_full else "metadata",
        "policy_tier": TIERS[number % 3],
        "assignment_rule": "fallback_default",
        "backfill_job_id": identity("backfill", number % _LEAST_BACKFILLS) if number % 3 == 0 else None,
        "observed_at": mail.date,
        "received_at": mail.date,
        "accepted_at": mail.date,
    }


def _decision(number: int, mail: Mail) -> Row:
    return {
        "id": identity("decision", number, mail.date),
        "message_id": identity("message", number, mail.date),
        "account_id": ACCOUNT,
        "backfill_job_id": identity("backfill", number % _LEAST_BACKFILLS) if number % 3 == 0 else None,
        "source": ("deterministic", "llm", "none")[number % 3],
        "action": "archive",
        "reason": "It is a newsletter that is never answered.",
        "rule_id": identity("rule", number % 200),
        "rule_name": f"rule {number % 200}",
        "created_at": mail.date,
    }


def _action(number: int, mail: Mail) -> Row:
    is_pending = number // 10 % _PENDING == 0
    status = "approved_pending" if is_pending else _STATUSES[number // 10 % len(_STATUSES)]
    is_over = status not in ("approved_pending", "queued", "executing")
    return {
        "id": identity("action", number, mail.date),
        "account_id": ACCOUNT,
        "message_id": identity("message", number, mail.date),
        "gmail_id": mail.key,
        "thread_id": mail.thread_id,
        "decision_id": identity("decision", number, mail.date),
        "origin": ("rule", "model")[number // 10 % 2],
        "rule_id": identity("rule", number % 200),
        "rule_name": f"rule {number % 200}",
        "type": ("archive", "trash", "mark_read", "star")[number // 10 % 4],
        "status": status,
        "reasons": ["trash: it is hard to take back"] if is_pending else [],
        "pre_image": {"labels": ["INBOX"]},
        "error": "Gmail did not answer." if status == "failed" else None,
        "wanted_by": f"rule {number % 200}",
        "created_at": mail.date,
        "updated_at": mail.date,
        "finished_at": mail.date if is_over else None,
    }


def _call(number: int, mail: Mail) -> Row:
    return {
        "id": identity("call", number, mail.date),
        "message_id": identity("message", number, mail.date),
        "provider": "compatible",
        "model": "a-model",
        "input_tokens": 900,
        "output_tokens": 60,
        "cost_microdollars": 420,
        "latency_ms": 800,
        "outcome": "ok",
        "created_at": mail.date,
    }


def _entry(number: int, mail: Mail) -> Row:
    return {
        "id": identity("audit", number, mail.date),
        "at": mail.date,
        "actor_role": "system",
        "actor_name": "postroom",
        "action": ("ingest.accepted", "action.completed", "backfill.paused")[number % 3],
        "subject_type": ("message", "action", "backfill_job")[number % 3],
        "subject_id": identity("backfill", number % _LEAST_BACKFILLS)
        if number % 3 == 2
        else identity("message", number, mail.date),
        "after": {"status": "completed"},
    }


def _job(number: int, count: int) -> Row:
    """The first ones are over; of the last tenth half waits, half is due later, and a few run."""
    at = NOW - timedelta(seconds=30 * (count - number))
    place = number * 100 // count
    row = {
        "id": identity("job", number, at),
        "type": _type(number),
        "queue_name": list(QueueName)[number % 3],
        "policy_tier": TIERS[number // 3 % 3],
        "seq": number + 1,
        "payload_json": f'{{"n":{number}}}',
        "state": JobState.COMPLETED,
        "ready": False,
        "repeatable": False,
        "idempotency_key": f"bench:{number}",
        "created_at": at,
        "queued_at": at,
        "started_at": at + timedelta(seconds=2),
        "finished_at": at + timedelta(seconds=3),
        "updated_at": at,
    }
    if place >= 90:
        state = JobState.RUNNING if number % 2_500 == 0 else JobState.QUEUED
        is_later = state is JobState.QUEUED and number % 2 == 0
        row |= {"state": state, "ready": state is JobState.QUEUED and not is_later, "finished_at": None,
                "worker_id": f"w{number}" if state is JobState.RUNNING else None,
                "not_before": NOW + timedelta(seconds=number) if is_later else None}  # fmt: skip
    elif number % 20 == 0:
        row |= {"state": JobState.FAILED, "last_error": "The model did not answer within 60 seconds."}
    elif number % 33 == 0:
        row |= {"state": JobState.CANCELED}
    return row


def _type(number: int) -> str:
    """Mostly two types, sometimes one of others, and of some there is none: a list of those has to look at all."""
    if number % 500:
        return "classify" if number % 3 else "action.gmail"
    some = sorted(job_type.name for job_type in CATALOGUE)[::2]
    return some[number // 500 % len(some)]


def _step(number: int, count: int) -> Row:
    at = NOW - timedelta(seconds=30 * (count - number))
    return {"id": identity("step", number), "job_id": identity("job", number, at), "name": "decide", "attempt": 1,
            "started_at": at, "finished_at": at}  # fmt: skip


def _backfill(number: int) -> Row:
    status = _BACKFILLS[number % len(_BACKFILLS)]
    return {
        "id": identity("backfill", number),
        "connector_type": "gmail",
        "endpoint_identity": OWNER,
        "target_categories": ["finance"],
        "date_from": (NOW - timedelta(days=400)).date(),
        "date_to": NOW.date(),
        "status": status,
        "rows_processed": number,
        "error": "Gmail refuses the login." if status == "error" else None,
        "created_at": NOW,
        "updated_at": NOW,
    }


def _spend(number: int, day: int) -> Row:
    return {"job_id": identity("backfill", number), "day": (NOW - timedelta(days=day)).date(),
            "reserved_microdollars": 100, "settled_microdollars": 5_000}  # fmt: skip


def _rate(number: int) -> Row:
    at = NOW - timedelta(minutes=number)
    return {"id": identity("rate", number), "job_id": identity("backfill", number), "at": at, "count": 10}


def _contact(number: int) -> Row:
    return {"address": f"person{number}@example.org", "source": ("vcard", "sent")[number % 2], "added_at": NOW}


def _connector(number: int) -> Row:
    return {"connector_type": "gmail", "endpoint_identity": OWNER if number == 0 else f"other{number}@example.com",
            "instance": "worker", "version": "1", "status": "running", "counters": {"ingested": 5},
            "checkpoint": {"contacts": "fresh"}, "first_seen_at": NOW, "last_heartbeat_at": NOW}  # fmt: skip


def _rule(number: int) -> Row:
    return {"id": identity("rule", number), "name": f"rule {number}", "scope_ref": "", "priority": number,
            "condition": {"sender": f"person{number}@example.org"}, "actions": ["archive"], "created_at": NOW,
            "updated_at": NOW}  # fmt: skip


def _application(number: int) -> Row:
    return {"id": identity("application", number), "rule_id": identity("rule", number), "rule_name": f"rule {number}",
            "rule": {"condition": {"sender": f"person{number}@example.org"}, "actions": ["archive"]},
            "query": "older_than:1y", "cap": 1_000, "state": "completed", "total": 5_000, "looked_at": 5_000,
            "acted_on": 40, "requested_by": "owner", "created_at": NOW, "updated_at": NOW,
            "finished_at": NOW}  # fmt: skip


def _restore(number: int) -> Row:
    return {"id": identity("restore", number), "source": OWNER, "target_account_id": ACCOUNT, "target": OWNER,
            "query": "", "state": "completed", "is_planned": True,
            "requested_by": "owner", "created_at": NOW, "updated_at": NOW, "finished_at": NOW}  # fmt: skip


def _restored(number: int, mail: Mail) -> Row:
    return {"run_id": identity("restore", 0), "position": number, "key": mail.key, "sha256": f"{number:064x}",
            "size": mail.size, "date": mail.date, "labels": ["INBOX"], "thread_id": mail.thread_id,
            "state": ("verified", "verified", "failed")[number // 100 % 3], "updated_at": NOW,
            "detail": "The mailbox refused it." if number // 100 % 3 == 2 else None}  # fmt: skip


def _direction(number: int) -> Row:
    return {"id": identity("direction", number), "position": number, "text": "Be brief.", "updated_at": NOW}


def _guidance(number: int) -> Row:
    return {"id": identity("guidance", number), "name": f"guidance {number}", "scope_ref": "", "text": "Be kind.",
            "created_at": NOW, "updated_at": NOW}  # fmt: skip


def _sync(mail: int) -> Iterator[Rows]:
    until = int(NOW.timestamp()) - 86_400 * 60
    yield sync_states, [{"account_id": ACCOUNT, "walk": 1, "walk_started_at": NOW, "compared_walk": 0,
                         "granularity": "day", "until": until, "frontier": until, "watermark": until, "counters": "{}",
                         "updated_at": NOW}]  # fmt: skip
    yield sync_slices, (
        {"account_id": ACCOUNT, "start_s": until + 86_400 * day, "end_s": until + 86_400 * (day + 1),
         "state": "done" if day % 3 else "open", "messages": 250}
        for day in range(60)
    )  # fmt: skip
    yield sync_windows, [{"account_id": ACCOUNT, "outcomes": "[[500, 1], [500, 0]]", "updated_at": NOW}]
    yield troubled_messages, (
        {"account_id": ACCOUNT, "message_key": f"bad{number:013x}", "lane": "sync", "kind": "fetch",
         "archived": False, "reason": "Gmail has no content for it.",
         "first_seen": NOW, "last_tried": NOW, "tries": 3, "reader_version": 1}
        for number in range(mail // 1_000 + 1)
    )  # fmt: skip


def _page(number: int) -> bytes:
    return f"<h1>Page {number}</h1>".encode() + b"<p>A page.</p>" * 20


def _web(mail: int) -> Iterator[Rows]:
    pages, run_count = mail // 50, max(mail // 2_000, 1)
    yield web_endpoints, (
        {"id": identity("endpoint", number), "source_slug": f"site{number}", "name": "news", "mode": "SITEMAP",
         "url": f"https://site{number}.example/sitemap.xml", "created_at": NOW}
        for number in range(20)
    )  # fmt: skip
    yield evidence, (
        {"id": identity("evidence", number), "url": f"https://site{number // 2 % 20}.example/{number // 2}",
         "content_type": "text/html", "content_hash": sha256(_page(number)).hexdigest(),
         "fetched_at": NOW + timedelta(seconds=number), "source_slug": f"site{number // 2 % 20}",
         "last_verified_at": NOW, "raw_content": _page(number)}
        for number in range(pages)
    )  # fmt: skip
    yield evidence_texts, (
        {"evidence_id": identity("evidence", number), "title": f"Page {number}", "extractor": "bench",
         "extracted_at": NOW, "title_words": f"page {number}", "url_words": "site", "text": "A page. " * 20,
         "text_words": "a page"}
        for number in range(pages)
    )  # fmt: skip
    yield backfill_runs, (
        {"id": identity("run", number, NOW - timedelta(hours=number)), "created_at": NOW - timedelta(hours=number),
         "updated_at": NOW, "status": ("COMPLETED", "FAILED", "CANCELLED")[number % 3], "sources": ["site1"],
         "mode": "SITEMAP", "max_urls": 1_000, "max_urls_per_source": 500, "concurrency": 2, "delay_ms": 1_000}
        for number in range(run_count)
    )  # fmt: skip
    yield discovered_items, (
        {"id": identity("item", number), "endpoint_id": identity("endpoint", number % 20),
         "url": f"https://site{number % 20}.example/{number}", "fetch_url": f"https://example.org/{number}",
         "status": ("FETCHED", "PENDING", "FAILED", "SKIPPED")[number % 4], "discovery_method": "BACKFILL",
         "run_id": identity("run", number % run_count, NOW - timedelta(hours=number % run_count)),
         "job_key": f"fetch:{number}", "discovered_at": NOW, "updated_at": NOW}
        for number in range(pages * 2)
    )  # fmt: skip


_PORTION = 5_000


@dataclass(frozen=True, slots=True)
class Size:
    messages: int
    jobs: int


class DataSet:
    """`home` has the archive, which both databases speak of."""

    def __init__(self, folder: Path, size: Size, console: Console) -> None:
        self._folder = folder
        self._size = size
        self._console = console
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def database(self, dialect: Dialect) -> Iterator[str]:
        """The address of a filled database; a server runs for as long as the block lasts."""
        self._made("archive", self._make_archive)
        if dialect is Dialect.SQLITE:
            file = self._folder / "postroom.db"
            self._made("sqlite", lambda: self._fill_sqlite(file))
            yield f"sqlite:///{file}"
            return
        server = start_server(self._folder / "postgresql")
        try:
            url = make_url(server.get_uri()).set(database="postroom").render_as_string(hide_password=False)
            self._made("postgresql", lambda: self._fill_postgresql(server.get_uri(), url))
            yield url
        finally:
            server.cleanup()

    def _made(self, part: str, make: Any) -> None:
        mark, wanted = self._folder / f"{part}.made.json", asdict(self._size)
        if mark.exists():
            found = json.loads(mark.read_text())
            if found != wanted:
                raise SystemExit(f"{self._folder} has a data set of another size ({found}); name another folder")
            return
        self._console.print(f"making {part}")
        make()
        mark.write_text(json.dumps(wanted))

    def _make_archive(self) -> None:
        write_archive(self.home / "archive", self._size.messages, self._console)
        write_certificates(self.home / "archive", every=10)

    def _fill_sqlite(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        _migrate(f"sqlite:///{file}")
        database = sqlite3.connect(file, isolation_level=None)
        for pragma in ("synchronous = OFF", "foreign_keys = OFF", "cache_size = -400000", "temp_store = MEMORY"):
            database.execute(f"PRAGMA {pragma}")
        for table, rows in all_rows(self.home / "archive", self._size.messages, self._size.jobs, Dialect.SQLITE):
            self._console.print(f"sqlite: {table.name}")
            database.execute("BEGIN")
            for columns, portion in _portions(rows):
                marks = ", ".join("?" * len(columns))
                statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
                database.executemany(statement, [[_for_sqlite(value) for value in row.values()] for row in portion])
            database.execute("COMMIT")
        database.close()

    def _fill_postgresql(self, server: str, url: str) -> None:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute("DROP DATABASE IF EXISTS postroom WITH (FORCE)")
            admin.execute("CREATE DATABASE postroom")
        _migrate(url)
        with psycopg.connect(url) as database:
            for table, rows in all_rows(self.home / "archive", self._size.messages, self._size.jobs, "postgresql"):
                self._console.print(f"postgresql: {table.name}")
                for columns, portion in _portions(rows):
                    _copy(database, table, columns, portion)
                database.commit()
            database.autocommit = True
            database.execute("VACUUM ANALYZE")  # as the server's own housekeeping does after a while


def _copy(database: psycopg.Connection, table: Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
    name = f"{table.schema}.{table.name}" if table.schema else table.name
    statement = f"COPY {name} ({', '.join(columns)}) FROM STDIN"
    with database.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for row in rows:
            copy.write_row([_as_json(value) for value in row.values()])


def _portions(rows: Iterable[Row]) -> Iterator[tuple[Sequence[str], Sequence[Row]]]:
    """With the columns that all rows of a portion have."""
    waiting = iter(rows)
    while portion := list(islice(waiting, _PORTION)):
        columns = list(dict.fromkeys(name for row in portion for name in row))
        yield columns, [{name: row.get(name) for name in columns} for row in portion]


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    return value.isoformat() if isinstance(value, date) else _as_json(value)


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _migrate(url: str) -> None:
    async def run() -> None:
        await (await connect(url)).close()

    asyncio.run(run())
