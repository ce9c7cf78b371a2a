"""Imports in a real process, killed at random points again and again: in the end everything is there, once."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from postroom.archive.importing import run as import_run
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.sources import open_maildir, open_mbox, open_takeout
from postroom.archive.importing.state import ImportProgress
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from tests.support.archives import ME
from tests.support.mail import generated_mailbox, takeout_form, write_maildir, write_takeout

OPENERS = {"mbox": open_mbox, "takeout": open_takeout, "maildir": open_maildir}


def import_in_batches(root: str, format: str, path: str, batch: str) -> None:
    """In a process to be killed: prints `ready`, a line after every batch that is on disk, and the report's counts."""
    import_run.BATCH_MESSAGES = int(batch)  # many small batches: many points to be killed at

    def show(progress: ImportProgress) -> None:
        print(progress.report.found, flush=True)

    with FileArchiveWriter(Path(root), purpose="a test's import") as archive:
        print("ready", flush=True)
        report = import_mail(archive, ME, OPENERS[format](Path(path)), progress=show)
    print("done", report.found, report.stored, report.duplicates, flush=True)


def start(root: Path, format: str, path: Path, batch: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, str(root), format, str(path), str(batch)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def kill_after(process: subprocess.Popen[str], lines: int, pause: float) -> str:
    """Kill the process and nothing else once it has said so many lines; the last line that it said."""
    assert process.stdout is not None
    last = ""
    for _ in range(lines):
        line = process.stdout.readline()
        if not line:
            break
        last = line
    time.sleep(pause)  # the point within a batch is left to chance, from a seed
    process.kill()
    rest = process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    return rest[-1] if rest else last


def children_of(group: int) -> list[int]:
    """Processes that are still in a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def import_through_kills(root: Path, format: str, path: Path, batch: int, kills: int, dice: random.Random) -> list[str]:
    for _ in range(kills):
        process = start(root, format, path, batch)
        if kill_after(process, dice.randint(1, 6), dice.random() * 0.05).startswith("done"):
            break
    process = start(root, format, path, batch)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return out.splitlines()[-1].split()


def stored(root: Path) -> dict[str, str]:
    """Key and hash of every message, as it is read back; every message is searchable."""
    found: dict[str, str] = {}
    with FileArchiveReader(root) as archive:
        for shard in archive.shards(ME):
            for row_id, key in shard.query("SELECT id, key FROM messages"):
                assert key not in found
                found[key] = hashlib.sha256(shard.raw(row_id)).hexdigest()
            [(indexed,)] = shard.query("SELECT count(*) FROM search")
            [(rows,)] = shard.query("SELECT count(*) FROM messages")
            assert indexed == rows
    return found


def check_takeout(tmp_path: Path, count: int, batch: int, kills: int, *, packed: bool = False) -> None:
    box = generated_mailbox(count)
    path = tmp_path / "mail.mbox"
    write_takeout(path, box)
    if packed:
        with tarfile.open(tmp_path / "takeout.tgz", "w:gz") as package:
            package.add(path, "Takeout/Mail/mail.mbox")
        path = tmp_path / "takeout.tgz"
    final = import_through_kills(tmp_path / "archive", "takeout", path, batch, kills, random.Random(count))
    names = dict(box.user_labels())
    expected = {}
    for index in range(count):
        summary = box.summary(index)
        raw = takeout_form(summary, box.raw(index), names)
        raw = raw if raw.endswith(b"\n") else raw + b"\n"  # an mbox cannot tell
        expected[f"{int(summary.id, 16):x}"] = hashlib.sha256(raw).hexdigest()
    assert stored(tmp_path / "archive") == expected
    assert final[0] == "done"
    assert int(final[1]) == count  # over all runs; what was stored right before a kill is found again as a duplicate
    assert int(final[2]) + int(final[3]) == count


@pytest.mark.req("SY-16", "SY-7")
def test_a_takeout_import_killed_at_random_points_ends_complete_and_without_doubles(tmp_path: Path) -> None:
    check_takeout(tmp_path, count=600, batch=20, kills=3)


@pytest.mark.req("SY-16", "SY-7")
def test_a_tgz_import_killed_at_random_points_ends_complete_and_without_doubles(tmp_path: Path) -> None:
    check_takeout(tmp_path, count=500, batch=20, kills=3, packed=True)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.req("SY-16", "SY-7")
def test_an_import_of_50_000_messages_killed_again_and_again_ends_complete(tmp_path: Path) -> None:
    check_takeout(tmp_path, count=50_000, batch=500, kills=25)


@pytest.mark.req("SY-16")
def test_a_maildir_import_killed_at_random_points_ends_complete_and_without_doubles(tmp_path: Path) -> None:
    box = generated_mailbox(200)
    raws = [box.raw(index) for index in range(box.count())]
    write_maildir(tmp_path / "Maildir", raws)
    import_through_kills(tmp_path / "archive", "maildir", tmp_path / "Maildir", 10, 2, random.Random(3))
    assert sorted(stored(tmp_path / "archive").values()) == sorted(hashlib.sha256(raw).hexdigest() for raw in raws)


def test_a_killed_import_leaves_no_process_behind(tmp_path: Path) -> None:
    write_takeout(tmp_path / "mail.mbox", generated_mailbox(1_200))
    process = start(tmp_path / "archive", "takeout", tmp_path / "mail.mbox", 100)
    assert process.stdout is not None
    while len(children_of(process.pid)) < 2:  # it, and one that prepares
        assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 30
    while children_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    import_in_batches(*sys.argv[1:])
