"""`postroom backfill` as a person meets it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom import audit
from postroom.accounts.account import NewAccount, add_account
from postroom.audit import AuditFilter
from postroom.cli.main import run
from postroom.db import Database, Tx, connect
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.domain.clock import SystemClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import CATALOGUE
from postroom.mail.categories import shipped
from postroom.queue import JobQueue
from postroom.settings import BackfillSettings, Settings
from postroom.switchboard.backfill.admission import open_gate
from postroom.switchboard.backfill.leases import ProgressReport
from postroom.switchboard.backfill.operations import Backfill
from postroom.switchboard.spending import ModelBudget
from tests.support.backfills import CHEAP_METER, CONNECTOR, EMAIL

WANTED = ("--account", EMAIL, "--category", "finance", "--from", "2024-01-01", "--to", "2024-12-31")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str, answer: str = "", enabled: str = "true") -> Done:
    """Run a command in this process: what it prints and how it exits is the same, and a start costs nothing."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["postroom", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(answer))
        patch.setenv("BACKFILL_ENABLED", enabled)
        patch.setenv("COLUMNS", "250")
        with pytest.raises(SystemExit) as end:
            run()
    return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())


def printed(*arguments: str) -> Any:
    done = command("backfill", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def within(home: Path, act: Callable[[Backfill], Coroutine[Any, Any, Any]]) -> Any:
    """Do something to the installation in that home folder, as its Switchboard would."""

    async def act_on() -> Any:
        database: Database = await connect(f"sqlite:///{home / 'postroom.db'}")
        try:
            queue = JobQueue(database, CATALOGUE, SystemClock())
            budget = ModelBudget(queue, Settings(backfill=BackfillSettings(enabled=True)))
            return await act(Backfill(budget, shipped().selectable, CHEAP_METER))
        finally:
            await database.close()

    return asyncio.run(act_on())


@pytest.fixture
def mailbox(home: Path) -> Path:
    async def add(service: Backfill) -> None:
        new = NewAccount(EMAIL, "http://127.0.0.1:9")
        await service.database.write(lambda tx: add_account(tx, new, service.clock.now()))

    within(home, add)
    return home


@pytest.mark.req("BF-22")
def test_a_job_is_created_steered_and_seen_and_all_of_it_is_audited_by_name(mailbox: Path) -> None:
    made = printed("create", *WANTED, "--rate", "30", "--cap-cents", "25", "--yes")
    job_id = made["job_id"]
    assert made["status"] == "pending"
    assert job_id in command("backfill", "list").stdout
    assert command("backfill", "pause", job_id, "--dry-run").stdout == "It would be paused now.\n"
    assert command("backfill", "pause", job_id).stdout == "It is paused now.\n"
    assert printed("resume", job_id)["status"] == "pending"
    shown = printed("show", job_id)["job"]
    assert (shown["rate_limit_per_hour"], shown["daily_cost_cap_cents"]) == (30, 25)
    assert "finance" in command("backfill", "show", job_id).stdout
    assert command("backfill", "cancel", job_id).stdout == "It is cancelled now.\n"
    refused = command("backfill", "resume", job_id)
    assert refused.returncode == 2
    assert "a job that is cancelled cannot be resumed" in refused.stderr

    async def read(service: Backfill) -> list[tuple[str, str]]:
        page = await service.database.read(lambda tx: audit.list_entries(tx, AuditFilter(subject_id=job_id)))
        return [(entry.action, entry.actor.name[:3]) for entry in page.entries[::-1]]

    steps = ("create", "pause", "resume", "cancel")
    assert within(mailbox, read) == [(f"backfill.{step}", "cli") for step in steps]


@pytest.mark.req("BF-19")
def test_nothing_begins_without_consent(mailbox: Path) -> None:
    for answer in ("n\n", ""):
        assert command("backfill", "create", *WANTED, answer=answer).returncode == 1
    assert "Would create it." in command("backfill", "create", *WANTED, "--dry-run").stdout
    assert printed("list") == []
    agreed = command("backfill", "create", *WANTED, answer="y\n")
    assert "Start this backfill?" in agreed.stderr
    assert len(printed("list")) == 1


MISTAKES = [
    (("--category", "gossip"), "--category: 'gossip' is not a category"),
    (("--from", "yesterday"), "from: 'yesterday' is not a day"),
    (("--rate", "0"), "--rate: 0 is not"),
    (("--account", "you@example.com"), "--account: no gmail connector or account"),
    (("--all-mail",), "all-mail: cannot be combined"),
]


@pytest.mark.req("BF-23")
def test_a_mistake_is_named_before_anybody_is_asked(mailbox: Path) -> None:
    for changes, message in MISTAKES:
        done = command("backfill", "create", *WANTED, *changes)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Begin" not in done.stderr


@pytest.mark.req("WB-6")
def test_while_backfill_is_switched_off_the_command_says_how_to_switch_it_on(mailbox: Path) -> None:
    done = command("backfill", "create", *WANTED, "--yes", enabled="false")
    assert done.returncode == 1
    assert "set BACKFILL_ENABLED=true" in done.stderr
    assert command("backfill", "switch", "off").stdout.startswith("Backfill is off: switched off by cli")
    assert command("backfill", "create", *WANTED, "--yes").returncode == 1
    assert printed("switch", "on")["in_force"] is True
    entries = json.loads(command("audit", "--json").stdout)["entries"]
    assert [(entry["action"], entry["after"]) for entry in entries] == [
        ("switch.change", {"value": True}),
        ("switch.change", {"value": False}),
    ]


def test_a_job_is_followed_until_it_ends(mailbox: Path) -> None:
    job_id = printed("create", *WANTED, "--yes")["job_id"]

    async def begin(service: Backfill) -> int:
        reply = await service.poll(CONNECTOR, "gmail", EMAIL)
        assert reply.job is not None
        now = service.clock.now()
        await service.database.write(lambda tx: open_gate(tx, service.settings, job_id, EMAIL, now).admit())
        await service.progress(CONNECTOR, ProgressReport(job_id, reply.job.fence, rows_processed=1))
        return reply.job.fence

    fence = within(mailbox, begin)
    line = [sys.executable, "-m", "postroom", "backfill", "show", job_id, "--follow"]
    environment = {**os.environ, "COLUMNS": "250", "BACKFILL_ENABLED": "true"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as follower:
        assert follower.stdout is not None
        first = follower.stdout.readline()
        assert first == "active: 1 taken in, 0 skipped, rules decide alone, at no cost\n"
        last = ProgressReport(job_id, fence, rows_processed=4, rows_skipped=2, status="completed")
        within(mailbox, lambda service: service.progress(CONNECTOR, last))
        rest = follower.stdout.read()
        assert rest.startswith("completed: 5 taken in, 2 skipped")
        assert follower.wait(30) == 0


@pytest.mark.req("BF-21")
def test_what_retention_would_remove_is_seen_before_it_goes(mailbox: Path) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    row = {"channel": "email", "provider": "gmail", "endpoint_identity": EMAIL, "sender_identity": "a@x.example"}
    times = {"observed_at": at, "received_at": at, "accepted_at": at}
    tiers = {"ingestion_tier": "metadata", "policy_tier": "default", "external_event_id": "1", "idempotency_key": "1"}

    async def put(service: Backfill) -> None:
        values = row | times | tiers | {"id": new_id()}
        decision = {"source": "none", "action": "none", "reason": "no rule", "created_at": at}

        def insert(tx: Tx) -> None:
            tx.execute(messages.insert().values(values))
            tx.execute(decisions.insert().values(**decision, id=new_id(), message_id=values["id"]))

        await service.database.write(insert)

    within(mailbox, put)
    assert "0 messages in full and 1 of metadata would go" in command("backfill", "retention", "--dry-run").stdout
    assert printed("retention", "--dry-run")["metadata"] == 1
    assert printed("retention")["metadata"] == 1
    assert printed("retention")["metadata"] == 0


@pytest.mark.req("BF-23")
@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("--to", "9999-12-31"), "--to:"),
        (("--from", "2025-01-01"), "--from:"),
        (("--rate", "-5"), "--rate:"),
        (("--cap-cents", "-1"), "--cap-cents:"),
    ],
)
def test_an_estimate_of_what_cannot_be_created_is_refused_like_it(
    mailbox: Path, given: tuple[str, str], field: str
) -> None:
    for act in ("estimate", "create"):
        refused = command("backfill", act, *WANTED, *given)
        assert refused.returncode == 2, refused.stderr
        assert field in refused.stderr


MODEL = {
    "PROVIDER": "compatible",
    "NAME": "m",
    "BASE_URL": "http://127.0.0.1:9",
    "INPUT_PRICE": "2",
    "OUTPUT_PRICE": "8",
}


@pytest.mark.req("BF-8", "BF-9")
def test_a_cap_that_lets_nothing_through_is_refused_with_the_least_that_works(
    mailbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in MODEL.items():
        monkeypatch.setenv(f"POSTROOM_MODEL__{name}", value)
    for act in ("estimate", "create"):
        refused = command("backfill", act, *WANTED, "--cap-cents", "5")
        assert refused.returncode == 2
        assert "one message can cost up to 10 cents" in refused.stderr
        assert "the least cap that works is 10 cents" in refused.stderr
    assert "Would create it" in command("backfill", "create", *WANTED, "--cap-cents", "10", "--dry-run").stdout
    alone = command("backfill", "create", *WANTED, "--cap-cents", "5", "--rules-only", "--yes")
    assert alone.returncode == 0, alone.stderr
    [job] = printed("list")
    assert job["uses_model"] is False
    assert "rules decide alone, at no cost" in command("backfill", "show", job["id"]).stdout
