"""The configuration that is printed for assistants: each in the form of its client, with a command that exists."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from postroom.app.assistants import AssistantClient, client_config
from tests.support.commands import in_this_process


def server_for(client: AssistantClient, home: Path) -> dict[str, Any]:
    found = client_config(client, home)
    server: dict[str, Any] = json.loads(found.text)[found.key]["postroom"]
    return server


@pytest.mark.parametrize("client", AssistantClient)
def test_each_client_gets_its_own_form_and_the_home_in_full(client: AssistantClient, tmp_path: Path) -> None:
    found = client_config(client, tmp_path)
    is_vscode = client is AssistantClient.VSCODE
    keys = {AssistantClient.VSCODE: "servers", AssistantClient.ZED: "context_servers"}
    assert found.key == keys.get(client, "mcpServers")
    server = server_for(client, tmp_path)
    assert server.get("type") == ("stdio" if is_vscode else None)
    assert server["env"] == {"POSTROOM_HOME": str(tmp_path)}
    assert server["args"][-1] == "mcp"
    assert Path(server["command"]).is_absolute()


def test_the_command_is_the_one_that_runs_or_python_with_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "postroom"
    installed.touch()
    monkeypatch.setattr(sys, "argv", [str(installed), "up"])
    server = server_for(AssistantClient.CURSOR, tmp_path)
    assert (server["command"], server["args"]) == (str(installed), ["mcp"])
    monkeypatch.setattr(sys, "argv", ["-m", "up"])
    server = server_for(AssistantClient.CURSOR, tmp_path)
    assert (server["command"], server["args"]) == (sys.executable, ["-m", "postroom", "mcp"])


def test_the_command_prints_json_alone_and_says_beside_it_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_HOME", str(tmp_path))
    done = in_this_process("mcp", "config", "claude-desktop")
    assert done.code == 0
    assert done.json["mcpServers"]["postroom"]["env"] == {"POSTROOM_HOME": str(tmp_path)}
    assert "claude_desktop_config.json" in done.stderr
    assert not (tmp_path / "postroom.db").exists()
