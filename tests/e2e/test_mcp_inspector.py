"""`postroom mcp` driven by the MCP Inspector's command line, a client that was not written for us.

It comes from npm by its name and is run only where it is asked for (`POSTROOM_TEST_INSPECTOR=1`); where it cannot be
installed, the test is skipped with a sentence.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import command, environment
from tests.support.mail import letter

PACKAGE = "@modelcontextprotocol/inspector"
_ASKED_FOR = "POSTROOM_TEST_INSPECTOR"
OWNER = "me@example.org"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get(_ASKED_FOR), reason=f"set {_ASKED_FOR}=1 to run the MCP Inspector"),
]


async def run(program: str, *arguments: str, home: Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(program, *arguments),
        env=environment(home, {}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture(scope="module")
def inspector(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command, installed into a folder of its own."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("npm")
    if npm is None:
        pytest.skip("The MCP Inspector needs npm, which is not installed here.")
    code, _, said = asyncio.run(
        run(npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE, home=folder)
    )
    if code:
        pytest.skip(f"The MCP Inspector could not be installed: {said.strip().splitlines()[-1:]}")
    return str(folder / "node_modules" / ".bin" / "mcp-inspector")


async def test_the_inspector_lists_and_calls(inspector: str, tmp_path: Path) -> None:
    home, mail = tmp_path / "home", tmp_path / "mail"
    mail.mkdir()
    (mail / "1.eml").write_bytes(letter("Lunch?", to=OWNER, headers={"Message-ID": "<1@x.example>"}))
    assert (await command(home, "import", "eml", str(mail), "--account", OWNER)).code == 0
    starter = tmp_path / "postroom-mcp"
    starter.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m postroom mcp\n")
    starter.chmod(0o700)

    async def asked(method: str, *more: str) -> dict[str, Any]:
        code, out, err = await run(inspector, "--cli", str(starter), "--method", method, *more, home=home)
        assert code == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    tools = {each["name"] for each in (await asked("tools/list"))["tools"]}
    assert {"search_archive", "read_conversation", "read_attachment", "archive_stats", "propose_action"} <= tools
    found = await asked("tools/call", "--tool-name", "search_archive", "--tool-arg", "query=lunch")
    assert [each["subject"] for each in found["structuredContent"]["messages"]] == ["Lunch?"]
    assert "postroom://attention" in {each["uri"] for each in (await asked("resources/list"))["resources"]}
    read = await asked("resources/read", "--uri", "postroom://message/%3C1%40x.example%3E")
    assert "<data>" in read["contents"][0]["text"]
    assert "needs_me" in {each["name"] for each in (await asked("prompts/list"))["prompts"]}
    prompt = await asked("prompts/get", "--prompt-name", "find", "--prompt-args", "what=lunch")
    assert "Find this in my mail: lunch" in prompt["messages"][0]["content"]["text"]
