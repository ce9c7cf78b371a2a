"""Tasks for the limited child in tests: what hostile code would try there. Run as a program it is that child."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

Answer = tuple[dict[str, Any], bytes]
_HERE = "tests.support.reading_tasks"


def program(without: str = "") -> tuple[str, ...]:
    """The child with these tasks; `without` names confinements that it leaves out."""
    return (sys.executable, "-I", str(Path(__file__).resolve()), without)


PROGRAM = program()


def task(function: Callable[..., Answer]) -> str:
    return f"{_HERE}:{function.__name__}"


def echo(header: dict[str, Any], body: bytes) -> Answer:
    return header, body


def facts(header: dict[str, Any], body: bytes) -> Answer:
    found = {"pid": os.getpid(), "uid": os.geteuid(), "environment": dict(os.environ)}
    return {**found, "descriptors": [number for number in range(3, 20) if _is_open(number)]}, b""


def attempt(header: dict[str, Any], body: bytes) -> Answer:
    """What comes of each deed: "done", or the error."""
    path = header["path"]
    deeds: dict[str, Callable[[], object]] = {
        "read": lambda: Path(path).read_bytes(),
        "list": lambda: os.listdir(os.path.dirname(path)),
        "write": lambda: Path(path).write_bytes(b"changed"),
        "create": lambda: Path(path + ".new").write_bytes(b""),
        "delete": lambda: os.unlink(path),
        "rename": lambda: os.rename(path, path + ".moved"),
        "mode": lambda: os.chmod(path, 0o600),
        "connect": lambda: _connect(header["port"]),
        "unix socket": lambda: closing(socket.socket(socket.AF_UNIX)),
        "start": lambda: subprocess.run(["/bin/true"], check=True),
        "fork": _fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606
        "signal": lambda: os.kill(os.getppid(), 0),
        "environment of the parent": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "root again": lambda: os.setuid(0),
        "trace": lambda: _system_call(101, 16, os.getppid()),
    }
    return {name: _outcome(deed) for name, deed in deeds.items()}, b""


def take_memory(header: dict[str, Any], body: bytes) -> Answer:
    taken = [bytearray(1 << 20) for _ in range(header["megabytes"])]
    return {"taken": len(taken)}, b""


def run_on(header: dict[str, Any], body: bytes) -> Answer:
    while True:
        pass


def wait(header: dict[str, Any], body: bytes) -> Answer:
    time.sleep(3600)
    return {}, b""


def fail(header: dict[str, Any], body: bytes) -> Answer:
    raise ValueError(f"a secret of the document: {body.decode()}")


def crash(header: dict[str, Any], body: bytes) -> Answer:
    print("text of the document", file=sys.stderr, flush=True)
    ctypes.string_at(0)
    return {}, b""


def crash_if_used(header: dict[str, Any], body: bytes) -> Answer:
    """Spoils the child for the next request, or is that next request."""
    if getattr(sys, "spoiled", False):
        os._exit(3)
    sys.spoiled = True  # type: ignore[attr-defined]
    return {}, b""


def babble(header: dict[str, Any], body: bytes) -> Answer:
    """More on standard error than a pipe holds, and a wrong answer on standard output."""
    sys.stderr.write("nonsense\n" * 100_000)
    return {}, b""


def lie(header: dict[str, Any], body: bytes) -> Answer:
    os.write(1, body)
    os._exit(0)


def read_picture(header: dict[str, Any], body: bytes) -> Answer:
    """In place of what recognises words, which is not installed for tests: the words after the mark `words:`."""
    words = body.partition(b"words:")[2].split(b"%")[0].strip()
    return {"kind": header["kind"], "unread": None, "note": "by its looks"}, words


def _outcome(deed: Callable[[], object]) -> str:
    try:
        deed()
    except OSError as error:
        return type(error).__name__
    return "done"


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _system_call(number: int, *arguments: int) -> None:
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _main(without: str, memory_bytes: str, *modules: str) -> None:
    from postroom.reading import child, confinement

    def refuse(**_: object) -> None:
        raise OSError("left out for a test")

    for name in filter(None, without.split(",")):
        setattr(confinement, name, refuse)
    child.main(list(modules), int(memory_bytes))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    _main(*sys.argv[1:])
