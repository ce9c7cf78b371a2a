"""Postroom's commands: inside the test's own process, or as processes that a test starts, reads and kills."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.cli.main import run
from postroom.cli.terminal import console


@dataclass(frozen=True)
class CommandResult:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def in_this_process(*arguments: str) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["postroom", *arguments])
        patch.setenv("COLUMNS", "200")
        patch.setattr(console, "width", 200)  # it was made when it was imported, by a runner with a width of its own
        try:
            run()
        except SystemExit as ended:
            return CommandResult(int(ended.code or 0), out.getvalue(), err.getvalue())
    return CommandResult(0, out.getvalue(), err.getvalue())


async def postroom(*arguments: str) -> CommandResult:
    """In a thread, so that a stand-in can answer meanwhile."""
    return await asyncio.to_thread(in_this_process, *arguments)


_OURS = ("POSTROOM_", "CONNECTOR_", "BACKFILL_")


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Nothing of ours but what is given."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**others, "POSTROOM_HOME": str(home), **variables}


def only_given(variables: Mapping[str, str]) -> None:
    """The same for this process itself."""
    for name in [name for name in os.environ if name.startswith(_OURS)]:
        del os.environ[name]
    os.environ.update(variables)


class PostroomProcess:
    """`postroom ...` until it is ended. Its log goes to a file, so that a full pipe never blocks it."""

    def __init__(self, *arguments: str, home: Path, variables: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.arguments = arguments
        self.variables = dict(variables or {})
        self.process: asyncio.subprocess.Process | None = None
        self._log = home / f"{'-'.join(arguments[:2])}.{id(self):x}.log"
        self._lives_since = 0

    async def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._lives_since = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "postroom",
                *self.arguments,
                env=environment(self.home, self.variables),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def ready(self) -> dict[str, Any]:
        """The line of JSON by which it says that it serves; what it logged where it ends instead."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
            raise AssertionError(self.log)
        ready: dict[str, Any] = json.loads(line)
        return ready

    async def logged(self, event: str) -> None:
        """For one that says nothing but in its log: until this life of it has said so, or is over."""
        while event.encode() not in self._log.read_bytes()[self._lives_since :] and self.is_running:
            await asyncio.sleep(0.05)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def kill(self) -> None:
        """SIGKILL, however it stands; one that has ended already is left alone."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()

    async def end(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it logged."""
        assert self.process is not None
        self.process.terminate()
        return await self.over()

    async def over(self) -> tuple[int, str]:
        """The exit code of one that ends by itself, and what it logged."""
        assert self.process is not None
        await self.process.communicate()
        return self.process.returncode or 0, self.log


async def command(home: Path, *arguments: str, **variables: str) -> CommandResult:
    """A command that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "postroom",
        *arguments,
        env=environment(home, variables),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return CommandResult(process.returncode or 0, out.decode(), errors.decode())
