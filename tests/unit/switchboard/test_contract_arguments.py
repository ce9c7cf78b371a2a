"""What every tool's arguments refuse, also those of a tool that is written tomorrow."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.contract.tool import Arguments, Reply, ToolSignature
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.toolbox import Tool, Toolbox


class Part(Arguments):
    name: str


class Tomorrow(Arguments):
    text: str = "x"
    parts: list[Part] | None = None
    anything: dict[str, Any] | None = None


async def _unreachable(caller: Caller, arguments: Tomorrow) -> Reply:
    raise AssertionError("a database would have seen it")


@pytest.mark.req("PL-4")
@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
async def test_text_that_no_database_holds_reaches_no_tool(bad: str) -> None:
    signature = ToolSignature("tomorrow", Tomorrow, Reply)
    toolbox = Toolbox([Tool(signature, Role.DASHBOARD, Permission.READ, "A tool of tomorrow.", _unreachable)])
    givens: dict[str, dict[str, Any]] = {
        "text": {"text": bad},
        "parts[0].name": {"parts": [{"name": bad}]},
        "anything.deep[0]": {"anything": {"deep": [{bad: 1}]}},
        "anything.label": {"anything": {"label": bad}},
    }
    for field, given in givens.items():
        with pytest.raises(BadInput) as refused:
            await toolbox.call(Caller(Role.DASHBOARD, "test"), "tomorrow", given)
        assert refused.value.field.replace(".0", "[0]") == field
