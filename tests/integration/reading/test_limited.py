"""What reads foreign bytes can do nothing but answer, and whatever becomes of it, the next request is read."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.doctor import judge_reader
from postroom.domain.checkups import CheckVerdict
from postroom.reading.limited import (
    CHILD,
    Failure,
    LimitedReader,
    ReadingFailed,
    ReadingLimits,
    close_shared_readers,
    shared_reader,
)
from postroom.telemetry import logs
from tests.support import reading_tasks as tasks
from tests.support.reading_tasks import task

pytestmark = pytest.mark.req("HW-2")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def log() -> io.StringIO:
    written = io.StringIO()
    logs.configure(stream=written)
    return written


def events_of(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.fixture
def reader() -> Iterator[LimitedReader]:
    opened = LimitedReader(ReadingLimits(cpu_seconds=20), program=tasks.PROGRAM)
    yield opened
    opened.close()


def _failure(reader: LimitedReader, name: str, limits: ReadingLimits | None = None, **header: object) -> ReadingFailed:
    with pytest.raises(ReadingFailed) as caught:
        reader.run(name, header, b"the text", limits)
    return caught.value


def _pid(reader: LimitedReader) -> int:
    pid: int = reader.run(task(tasks.facts), {})[0]["pid"]
    return pid


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_task_gets_header_and_body_and_gives_both_back(reader: LimitedReader) -> None:
    body = os.urandom(3_000_000)
    assert reader.run(task(tasks.echo), {"a": ["ö", 1]}, body) == ({"a": ["ö", 1]}, body)


@pytest.mark.parametrize("without", ["", "_landlock,_drop_privileges"])
def test_the_child_can_neither_reach_files_nor_network_nor_processes(tmp_path: Path, without: str) -> None:
    """Neither with everything, nor as root on a kernel without Landlock."""
    assert _deeds(tmp_path, without) == set()


def test_landlock_alone_keeps_files_and_network_from_root(tmp_path: Path) -> None:
    done = _deeds(tmp_path, "_seccomp,_drop_privileges")
    assert not done & {"read", "list", "write", "create", "delete", "rename", "connect", "environment of the parent"}


def _deeds(tmp_path: Path, without: str) -> set[str]:
    """What the child managed to do."""
    key = tmp_path / "home" / "vault.key"
    key.parent.mkdir()
    key.write_text("secret")
    for readable in (key, key.parent, tmp_path, *list(tmp_path.parents)[:2]):
        readable.chmod(0o777)  # so that only the confinement is in the way
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = LimitedReader(program=tasks.program(without))
        outcome, _ = reader.run(task(tasks.attempt), {"path": str(key), "port": server.getsockname()[1]})
        reader.close()
    assert key.read_text() == "secret"
    assert [path.name for path in key.parent.iterdir()] == ["vault.key"]
    return {name for name, what in outcome.items() if what == "done"}


def test_each_confinement_of_this_system_is_in_force_and_reported(reader: LimitedReader) -> None:
    reader.run(task(tasks.echo), {})
    assert reader.confinement is not None
    assert {name: why for name, why in reader.confinement.items() if why} == {}
    assert {"limits", "privileges", "landlock", "seccomp"} <= set(reader.confinement)


def test_the_child_sees_no_environment_and_no_file_of_its_parent(
    reader: LimitedReader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTROOM_SECRET", "secret")
    with open(tmp_path / "open", "wb") as file:
        os.set_inheritable(file.fileno(), True)
        found, _ = reader.run(task(tasks.facts), {})
    assert "secret" not in str(found["environment"])
    assert not any(name.startswith("POSTROOM") for name in found["environment"])
    assert found["descriptors"] == []
    assert found["uid"] != 0


def test_a_request_that_takes_too_much_memory_ends_its_child_and_the_next_is_read(reader: LimitedReader) -> None:
    limits = ReadingLimits(memory_bytes=100 << 20)
    before = _pid(reader)
    error = _failure(reader, task(tasks.take_memory), limits, megabytes=120)
    assert error.kind is Failure.MEMORY
    assert reader.run(task(tasks.take_memory), {"megabytes": 80}, limits=limits) == ({"taken": 80}, b"")
    assert _pid(reader) != before


def test_a_request_may_use_more_memory_than_the_reader_usually_gives(reader: LimitedReader) -> None:
    small = LimitedReader(ReadingLimits(memory_bytes=20 << 20), program=tasks.PROGRAM)
    assert _failure(small, task(tasks.take_memory), megabytes=60).kind is Failure.MEMORY
    found, _ = small.run(task(tasks.take_memory), {"megabytes": 60}, limits=ReadingLimits(memory_bytes=100 << 20))
    small.close()
    assert found == {"taken": 60}


def test_a_request_that_takes_too_long_is_ended_and_the_next_is_read(reader: LimitedReader) -> None:
    busy = _failure(reader, task(tasks.run_on), ReadingLimits(cpu_seconds=0.2))
    assert (busy.kind, busy.reason) == (Failure.TIMEOUT, "it takes more than 0.2 s of processor time to read")
    idle = _failure(reader, task(tasks.wait), ReadingLimits(wall_seconds=0.2))
    assert (idle.kind, idle.reason) == (Failure.TIMEOUT, "it takes longer than 0.2 s to read")
    assert reader.run(task(tasks.echo), {}) == ({}, b"")


def test_a_task_that_raises_says_where_but_not_what_it_read(reader: LimitedReader) -> None:
    error = _failure(reader, task(tasks.fail))
    assert error.kind is Failure.ERROR
    assert error.reason.startswith("ValueError in reading_tasks.py:")
    assert "the text" not in error.reason


def test_a_crash_is_held_to_its_request_and_told_in_the_log_without_content(
    reader: LimitedReader, log: io.StringIO
) -> None:
    error = _failure(reader, task(tasks.crash))
    assert (error.kind, error.reason[-17:]) == (Failure.CRASH, "ended by SIGSEGV)")
    [event] = [event for event in events_of(log) if event["event"] == "reading.child_stderr"]
    assert "Fatal Python error: Segmentation fault" in event["lines"]
    assert "text of the document" not in str(event)
    assert reader.run(task(tasks.echo), {}) == ({}, b"")


def test_what_a_spoiled_child_cannot_read_is_given_to_a_fresh_one(reader: LimitedReader) -> None:
    """The first request leaves a child behind that breaks on the next, innocent one."""
    for _ in range(3):
        assert reader.run(task(tasks.crash_if_used), {}) == ({}, b"")


def test_a_child_that_was_killed_while_idle_costs_no_request(reader: LimitedReader) -> None:
    first = _pid(reader)
    os.kill(first, signal.SIGKILL)
    assert _pid(reader) != first


def test_a_child_that_writes_nonsense_to_its_standard_error_holds_up_nothing(
    reader: LimitedReader, log: io.StringIO
) -> None:
    assert reader.run(task(tasks.babble), {}) == ({}, b"")
    [event] = [event for event in events_of(log) if event["event"] == "reading.child_stderr"]
    assert event["bytes"] <= 64 * 1024
    assert event["lines"] == []


@pytest.mark.parametrize(
    "lie",
    [
        struct.pack(">IQ", 1 << 31, 0),
        struct.pack(">IQ", 10, 1 << 62),
        struct.pack(">IQ", 4, 0) + b"nope",
        struct.pack(">IQ", 2, 0) + b"[]",
        struct.pack(">IQ", 14, 0) + b'{"header": []}',
        struct.pack(">IQ", 20, 0) + b'{"failed": "unknown"',
        struct.pack(">IQ", 200_000, 0) + b"[" * 200_000,
        b"\x00",
    ],
)
def test_a_child_that_lies_is_not_believed(reader: LimitedReader, lie: bytes) -> None:
    with pytest.raises(ReadingFailed) as caught:
        reader.run(task(tasks.lie), {}, lie)
    assert caught.value.kind is Failure.CRASH


def test_a_child_is_replaced_after_its_share_of_requests() -> None:
    reader = LimitedReader(ReadingLimits(requests=2), program=tasks.PROGRAM)
    pids = [_pid(reader) for _ in range(4)]
    reader.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_a_child_that_does_not_start_says_why() -> None:
    reader = LimitedReader(program=CHILD)
    error = _failure(reader, "postroom.no_such_module:read")
    reader.close()
    assert error.kind is Failure.START
    assert "ModuleNotFoundError: No module named 'postroom.no_such_module'" in error.reason


def test_threads_share_a_reader_without_waiting_for_each_other_for_ever() -> None:
    reader = LimitedReader(size=2, program=tasks.PROGRAM)
    answers: list[int] = []

    def ask(number: int) -> None:
        answers.append(reader.run(task(tasks.echo), {"n": number})[0]["n"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    reader.close()
    assert sorted(answers) == list(range(8))


def test_a_child_outlives_the_thread_that_first_needed_it(reader: LimitedReader) -> None:
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(_pid(reader)))
    thread.start()
    thread.join()
    assert _pid(reader) == pids[0]


async def test_a_cancelled_call_ends_its_child_at_once(reader: LimitedReader) -> None:
    pid = (await reader.run_async(task(tasks.facts), {}))[0]["pid"]
    reading = asyncio.create_task(reader.run_async(task(tasks.wait), {}, limits=ReadingLimits(wall_seconds=3600)))
    waiting = asyncio.create_task(reader.run_async(task(tasks.echo), {"n": 1}))
    while reader._busy == 0 or reader._idle:
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await waiting == ({"n": 1}, b"")
    assert _is_gone(pid)


def test_closing_ends_a_reading_at_once() -> None:
    reader = LimitedReader(program=tasks.PROGRAM)
    pid = _pid(reader)
    failures: list[ReadingFailed] = []
    thread = threading.Thread(target=lambda: failures.append(_failure(reader, task(tasks.wait))))
    thread.start()
    while reader._busy == 0:
        pass
    reader.close()
    thread.join(30)
    assert [error.kind for error in failures] in ([Failure.CRASH], [Failure.START])
    assert _is_gone(pid)
    assert _failure(reader, task(tasks.echo)).reason == "the reader is being closed"


_PARENT = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from postroom.reading.limited import LimitedReader
from postroom.telemetry import logs
from postroom.telemetry import logs
from tests.support import reading_tasks as tasks
logs.configure()
reader = LimitedReader(program=tasks.PROGRAM)
print(reader.run(tasks.task(tasks.facts), {})[0]["pid"], flush=True)
if sys.argv[2] == "busy":
    reader.run(tasks.task(tasks.run_on), {})
thread = threading.Thread(target=reader.run, args=(tasks.task(tasks.wait), {}))
thread.start()
"""


def test_killing_the_parent_ends_a_busy_child() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(ROOT), "busy"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    watch = os.pidfd_open(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)


def test_a_reading_does_not_keep_its_process_from_exiting() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, str(ROOT), "idle"], capture_output=True, text=True, timeout=50, check=False
    )
    assert _is_gone(int(done.stdout.splitlines()[0]))


def test_all_of_a_process_shares_one_reader_until_it_is_closed() -> None:
    first = shared_reader()
    assert shared_reader() is first
    close_shared_readers()
    second = shared_reader()
    assert second is not first
    close_shared_readers()


def test_the_doctor_says_how_the_reader_is_confined_or_why_it_does_not_start() -> None:
    assert judge_reader().verdict is CheckVerdict.OK
    partly = judge_reader(lambda: {"limits": "", "landlock": "Function not implemented", "seccomp": ""})
    assert partly.verdict is CheckVerdict.OK
    assert partly.message.endswith("not fully confined: landlock (Function not implemented).")
    open_to_all = judge_reader(lambda: {"limits": "", "landlock": "only on Linux", "seccomp": "only on Linux"})
    assert open_to_all.verdict is CheckVerdict.WARNING

    def broken() -> dict[str, str]:
        raise ReadingFailed(Failure.START, "ModuleNotFoundError: No module named 'lxml_html_clean'")

    assert judge_reader(broken).verdict is CheckVerdict.FAILED
    assert "lxml_html_clean" in judge_reader(broken).message
