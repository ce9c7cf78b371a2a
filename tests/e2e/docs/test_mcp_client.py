"""The client that docs/mcp.md prints: run as it stands, against a Switchboard with mail in it."""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.domain.roles import Role
from tests.support.archives import ME, generated_mail
from tests.support.databases import on_sqlite
from tests.support.handbook import ROOT, blocks
from tests.support.switchboards import open_bench, served

PAGE = ROOT / "docs" / "mcp.md"


def run(program: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102
    return out.getvalue()


@on_sqlite
async def test_the_client_of_the_handbook_finds_mail(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [program] = ["\n".join(block.lines) for block in blocks(PAGE) if block.language == "python"]
    async with open_bench(database, tmp_path) as bench, served(bench) as url:
        await bench.account()
        await bench.archive.of(ME).run(lambda archive: archive.store(ME, generated_mail(5)))
        monkeypatch.setenv("MY_POSTROOM_URL", url)
        monkeypatch.setenv("MY_POSTROOM_TOKEN", await bench.token(Role.AGENT))
        printed = await asyncio.to_thread(run, program)
    first, *found = printed.splitlines()
    assert first.startswith("tools: ")
    assert "search_archive" in first
    assert len(found) == 3
