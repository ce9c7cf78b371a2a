"""Imports of the archive's benchmark: each a process of its own, from mail files to an index that can be searched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.archive_mail import OWNER, MailFiles
from benchmarks.archive_queries import LABELS, LEFT_OUT
from benchmarks.libnotmuch import Notmuch

_SAMPLED_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Import:
    contender: str
    messages_per_second: float
    cpu_seconds: float
    peak_mb: float
    """Of all its processes together."""
    disk_mb: float
    """Mail included: notmuch needs the Maildir, we do not need the mail's files any more."""


def postroom(files: MailFiles, count: int, format: str, home: Path) -> Import:
    mail = files.maildir if format == "maildir" else files.mbox
    command = [sys.executable, "-m", "postroom", "import", format, str(mail), "--account", OWNER, "--json"]
    done = _measured(command, {"POSTROOM_HOME": str(home)}, home)
    return Import(f"postroom, {format}", count / done.seconds, done.cpu_seconds, done.peak_mb, _megabytes(home))


def notmuch(files: MailFiles, count: int, home: Path) -> Import:
    (home / "config").write_text(
        f"[database]\npath={home / 'index'}\nmail_root={files.maildir}\n[user]\nname=Owner\nprimary_email={OWNER}\n"
        "[new]\ntags=\n[maildir]\nsynchronize_flags=false\n"
    )
    (home / "index").mkdir()
    done = _measured(["notmuch", "new", "--quiet"], {"NOTMUCH_CONFIG": str(home / "config")}, home)
    disk = _megabytes(home) + _megabytes(files.maildir)
    return Import("notmuch, maildir", count / done.seconds, done.cpu_seconds, done.peak_mb, disk)


def tag_in_notmuch(files: MailFiles, home: Path) -> None:
    """The labels that the queries name, which we have from the Takeout; not part of what is measured."""
    wanted = {*LABELS, *LEFT_OUT}
    tags = {name: wanted.intersection(labels) for name, labels in files.labels().items()}
    database = Notmuch(home / "config", writable=True)
    database.tag((str(files.maildir / name), sorted(some)) for name, some in tags.items() if some)
    database.close()


@dataclass(frozen=True, slots=True)
class _Measured:
    seconds: float
    cpu_seconds: float
    peak_mb: float


def _measured(command: list[str], environment: dict[str, str], home: Path) -> _Measured:
    """Until the command has ended and the disk has what it wrote."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=complaints)
        memory = _Memory(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        _sync(home)
        seconds = time.perf_counter() - started
        if process.returncode:
            complaints.seek(0)
            raise SystemExit(f"{' '.join(command)} failed: {complaints.read()[-2_000:].decode('utf-8', 'replace')}")
    peak_mb = max(memory.stop(), usage.ru_maxrss / 1_024)
    return _Measured(seconds, usage.ru_utime + usage.ru_stime, peak_mb)


class _Memory:
    """Watches a process and its children; what they share counts once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_kb = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """The highest sum that was seen, in MB."""
        self._ended.set()
        self._thread.join()
        return self._peak_kb / 1_024

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY_S):
            self._peak_kb = max(self._peak_kb, sum(map(_share_kb, self._processes())))

    def _processes(self) -> list[int]:
        children = []
        with suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{self._pid}/task").iterdir():
                children += [int(child) for child in (task / "children").read_text().split()]
        return [self._pid, *children]


def _share_kb(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _sync(folder: Path) -> None:
    """Wait for the disk, for what is in this folder alone: the machine may be writing other things."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened)


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
