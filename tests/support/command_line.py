"""The whole command line inside a test's own process, without the second that a process takes to start."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from postroom.cli.main import run
from postroom.cli.output import console


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def in_this_process(*arguments: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["postroom", *arguments])
        patch.setenv("COLUMNS", "200")
        patch.setattr(console, "width", 200)  # it was made when it was imported, by a runner with a width of its own
        try:
            run()
        except SystemExit as ended:
            return Done(int(ended.code or 0), out.getvalue(), err.getvalue())
    return Done(0, out.getvalue(), err.getvalue())


async def postroom(*arguments: str) -> Done:
    """In a thread, so that a stand-in can answer meanwhile."""
    return await asyncio.to_thread(in_this_process, *arguments)
