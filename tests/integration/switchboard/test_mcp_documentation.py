"""What docs/mcp.md says of the tools is what the code does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.domain.envelope import parse_envelope
from postroom.domain.roles import Role
from postroom.settings import SwitchboardSettings
from postroom.switchboard.toolbox import Toolbox
from tests.support.switchboards import Bench

PAGE = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text("utf-8")


def tool_table(toolbox: Toolbox) -> Iterator[str]:
    """The lines of the table in docs/mcp.md."""
    yield f"| tool | also | {' | '.join(Role)} | permission | takes |"
    yield "|---|---|" + "---|" * (len(Role) + 2)
    for tool in sorted(toolbox, key=lambda tool: (list(Role).index(tool.role), tool.name)):
        name, *also = (f"`{name}`" for name in tool.names)
        marks = " | ".join("yes" if tool.role is role else "" for role in Role)
        required = tool.schema.get("required", [])
        taken = [f"{one}" if one in required else f"{one}?" for one in tool.schema.get("properties", {})]
        yield f"| {name} | {', '.join(also)} | {marks} | {tool.permission} | {', '.join(taken)} |"


@pytest.mark.req("BF-2")
async def test_the_table_of_tool_by_role_is_that_of_the_code(bench: Bench) -> None:
    for line in tool_table(bench.toolbox):
        assert f"{line}\n" in PAGE, line
    documented = {name for line in PAGE.splitlines() if " yes " in line for name in re.findall(r"`([\w.]+)`", line)}
    assert documented == {name for tool in bench.toolbox for name in tool.names}


@pytest.mark.req("BF-2")
async def test_the_tools_of_the_specification_have_their_roles(bench: Bench) -> None:
    roles = {name: tool.role for tool in bench.toolbox for name in (tool.name, tool.alias)}
    for name in ("create_backfill_job", "backfill.pause", "backfill.cancel", "backfill.resume", "backfill.list"):
        assert roles[name] is roles[name.replace(".", "_")] is Role.DASHBOARD
    for name in ("backfill.poll", "backfill.progress", "ingest"):
        assert roles[name] is Role.CONNECTOR
    assert roles["email_search_and_ingest"] is Role.AGENT
    assert not [name for tool in bench.toolbox.of(Role.AGENT) for name in tool.names if "." in name]


def test_the_example_is_an_envelope_and_the_figures_are_right() -> None:
    [example] = [block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "ingest.v1" in block]
    parse_envelope(json.loads(example))
    settings = SwitchboardSettings()
    assert f"http://{settings.host}:{settings.port}/mcp" in PAGE
    assert f"{settings.request_bytes // 2**20} MiB" in PAGE
