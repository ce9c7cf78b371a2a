"""The command line as a person meets it. What a process of its own adds (signals, logs, exit codes) has one; the rest
spares itself the second that one takes to start."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import redirect_stdout
from functools import reduce
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from postroom.cli.main import command as imported
from postroom.cli.main import tree
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import CATALOGUE
from postroom.queue import JobQueue, JobState, NewJob
from tests.support.commands import in_this_process as postroom
from tests.support.queues import claim, fail

MISSING = "01990000-0000-7000-8000-000000000000"


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroom", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def printed(*arguments: str) -> Any:
    done = postroom(*arguments, "--json")
    assert done.code == 0, done.stderr
    return done.json


@pytest.fixture
def job_ids(home: Path) -> list[str]:
    """A home with three jobs: one queued, two failed."""

    async def fill() -> list[str]:
        home.mkdir(exist_ok=True)
        database = await connect(f"sqlite:///{home / 'postroom.db'}")
        queue = JobQueue(database, CATALOGUE, SystemClock())
        answers = await queue.enqueue(*(NewJob("queue.prune", {"n": n}) for n in range(3)))
        for job in await claim(queue, 2):
            await fail(queue, job, f"no network for {job.payload['n']}")
        await database.close()
        return [answer.job_id for answer in answers]

    return asyncio.run(fill())


def test_jobs_are_listed_for_people_and_for_programs(job_ids: list[str]) -> None:
    table = postroom("jobs", "list").stdout
    assert "no network for 0" in table
    assert all(job_id in table for job_id in job_ids)
    listed = printed("jobs", "list", "--state", "failed")
    assert [job["id"] for job in listed] == [job_ids[1], job_ids[0]]
    assert listed[0]["payload"] == {"n": 1}


def test_jobs_are_listed_alike_wherever_the_database_is(
    job_ids: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file in its usual place is read through its driver alone, any other database as by every command."""
    commands = (["jobs", "list"], ["jobs", "show", job_ids[0]], ["jobs", "stats"])
    here = [printed(*command) for command in commands]
    monkeypatch.setenv("POSTROOM_DATABASE__URL", f"sqlite:///{home / 'postroom.db'}")
    assert [printed(*command) for command in commands] == here


def test_a_job_is_shown_with_everything_about_it(job_ids: list[str]) -> None:
    shown = postroom("jobs", "show", job_ids[0])
    assert "last error" in shown.stdout
    assert "no network for 0" in shown.stdout
    assert "No steps were recorded." in shown.stdout
    assert printed("jobs", "show", job_ids[0])["job"]["state"] == "failed"


@pytest.mark.req("JB-4")
def test_failed_jobs_are_retried_by_id_type_or_window(job_ids: list[str]) -> None:
    preview = postroom("jobs", "retry", "--type", "queue.prune", "--dry-run")
    assert "Would queue 2 jobs again." in preview.stdout
    assert postroom("jobs", "retry", job_ids[0]).stdout == "Queued 1 job again.\n"
    window = ["--since", "2020-01-01T00:00+00:00", "--until", "2120-01-01T00:00+00:00"]
    assert printed("jobs", "retry", *window)["retried"] == [job_ids[1]]
    assert printed("jobs", "list", "--state", "failed") == []


@pytest.mark.req("JB-6")
def test_a_job_is_cancelled_and_the_three_outcomes_are_told_apart(job_ids: list[str]) -> None:
    assert postroom("jobs", "cancel", job_ids[2], "--dry-run").stdout == "Would be canceled.\n"
    assert postroom("jobs", "cancel", job_ids[2]).stdout == "Canceled.\n"
    assert "already finished" in postroom("jobs", "cancel", job_ids[2]).stdout
    missing = postroom("jobs", "cancel", MISSING)
    assert (missing.code, missing.stderr.startswith("error: There is no job")) == (1, True)


def test_stats_count_by_queue_tier_and_state(job_ids: list[str]) -> None:
    lines = printed("jobs", "stats")
    counts = {(line["queue"], line["tier"], line["state"]): line["jobs"] for line in lines}
    assert counts == {("work", "default", "queued"): 1, ("work", "default", "failed"): 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs", "list", "--state", "done"], "error: --state: 'done' is not one of queued, running"),
        (["jobs", "list", "--queue", "fast"], "error: --queue: 'fast' is not one of live"),
        (["jobs", "list", "--limit", "0"], "error: --limit: 0 is not within 1 to 1000"),
        (["jobs", "show", "17"], "error: job: '17' is not an id"),
        (["jobs", "show", MISSING], f"error: job: there is no job {MISSING}"),
        (["jobs", "retry"], "error: --type: name a job, a type, or a time window"),
        (["jobs", "retry", MISSING, "--type", "x"], "error: job: name either one job, or a type"),
        (["jobs", "retry", "--since", "yesterday"], "error: --since: 'yesterday' is not a time"),
        (["jobs", "retry", "--since", "2026-01-01"], "error: --since: 2026-01-01T00:00:00 has no time zone"),
    ],
)
def test_bad_usage_names_the_field_and_exits_with_2(home: Path, arguments: list[str], message: str) -> None:
    done = postroom(*arguments)
    assert done.code == 2
    assert done.stderr.startswith(message)
    assert done.stdout == ""


def test_a_mistake_in_the_settings_stops_every_command_with_the_keys_name(home: Path) -> None:
    done = process("jobs", "stats", POSTROOM_WORKER__CONCURENCY="5")
    assert (done.returncode, "POSTROOM_WORKER__CONCURENCY: no such setting" in done.stderr) == (2, True)


@pytest.mark.req("PL-6")
def test_what_a_command_writes_is_for_its_owner_alone(home: Path) -> None:
    (home / "postroom.db").unlink()
    before = os.umask(0o022)
    try:
        assert process("jobs", "stats").returncode == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_file()}
    assert "postroom.db" in modes
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.req("PL-6")
def test_a_password_in_the_database_address_is_never_printed(home: Path) -> None:
    url = "postgresql://me:hunter2hunter2@127.0.0.1:1/postroom"
    done = process("jobs", "stats", POSTROOM_DATABASE__URL=url)
    assert done.returncode == 1
    assert done.stderr.startswith("error: The database cannot be used now")
    assert "hunter2" not in done.stdout + done.stderr


def test_metrics_without_a_token_are_refused(home: Path) -> None:
    done = process("worker", "--once", POSTROOM_TELEMETRY__METRICS_PORT="0")
    assert (done.returncode, "telemetry.metrics_token: is needed" in done.stderr) == (2, True)


def test_a_worker_runs_what_waits_logs_one_json_line_an_event_and_ends(job_ids: list[str]) -> None:
    done = process("worker", "--once")
    assert done.returncode == 0
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["worker.started", "worker.stopped"]
    assert printed("jobs", "show", job_ids[2])["job"]["result"] == {"pruned": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_cleanly_on_a_signal(home: Path, number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-m", "postroom", "worker"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process, process.stderr:
        assert json.loads(process.stderr.readline())["event"] == "worker.started"
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(30) == 0
    assert json.loads(rest.splitlines()[-1])["event"] == "worker.stopped"


def said(command: Any, *arguments: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        command(list(arguments), prog_name="postroom")
    assert ended.value.code == 0, arguments
    return printed.getvalue()


def test_every_command_explains_itself() -> None:
    """All of them, in one process: the tree is walked as a person would walk it."""
    waiting: list[tuple[str, ...]] = [()]
    root = typer.main.get_command(tree())
    while waiting:
        path = waiting.pop()
        if path:
            command = reduce(lambda group, name: group.commands[name], path[1:], cast("Any", imported(path[0])))
        else:
            command = root
        assert command.help or command.short_help, path
        assert "Usage:" in (explained := said(root, *path, "--help")), path
        assert said(root, *path, "-h") == explained, path
        waiting += [(*path, name) for name in getattr(command, "commands", ())]


def test_the_first_commands_that_a_person_tries() -> None:
    assert "jobs" in process("--help").stdout
    assert process("--version").stdout.strip().count(".") == 2
    assert JobState.CANCELED in process("jobs", "list", "--help").stdout
