"""The configuration by which an assistant on this computer starts `postroom mcp`, ready to paste into its file.

It has no token: `postroom mcp` keeps its own in the vault of the home folder. Programs with windows do not have the
`PATH` and the variables of a terminal, so the command and the home folder are written out in full.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class AssistantClient(StrEnum):
    CLAUDE_DESKTOP = "claude-desktop"
    CLAUDE_CODE = "claude-code"
    CURSOR = "cursor"
    VSCODE = "vscode"
    WINDSURF = "windsurf"
    ZED = "zed"


@dataclass(frozen=True)
class ClientConfig:
    name: str
    """As its makers write it."""
    file: str
    """The file to put it into, and how to find that."""
    key: str
    """The entry of the file that holds the servers, by name."""
    text: str


_PLACES = {
    AssistantClient.CLAUDE_DESKTOP: (
        "Claude Desktop",
        "claude_desktop_config.json (Settings, Developer, Edit Config)",
        "mcpServers",
    ),
    AssistantClient.CLAUDE_CODE: ("Claude Code", ".mcp.json of a project", "mcpServers"),
    AssistantClient.CURSOR: ("Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json of a project", "mcpServers"),
    AssistantClient.VSCODE: (
        "VS Code",
        "mcp.json (command “MCP: Open User Configuration”), or .vscode/mcp.json of a folder",
        "servers",
    ),
    AssistantClient.WINDSURF: ("Windsurf", "~/.codeium/windsurf/mcp_config.json", "mcpServers"),
    AssistantClient.ZED: ("Zed", "settings.json (command “zed: open settings file”)", "context_servers"),
}


def client_config(client: AssistantClient, home: Path) -> ClientConfig:
    name, file, key = _PLACES[client]
    command, *arguments = [*_this_program(), "mcp"]
    server = {"command": command, "args": arguments, "env": {"POSTROOM_HOME": str(home)}}
    if client is AssistantClient.VSCODE:
        server = {"type": "stdio", **server}
    return ClientConfig(name, file, key, json.dumps({key: {"postroom": server}}, ensure_ascii=False, indent=2))


def _this_program() -> list[str]:
    """The command that started this process, by its full path; through Python where it was started otherwise."""
    started = Path(sys.argv[0]).absolute()
    if started.stem == "postroom" and started.is_file():
        return [str(started)]
    return [sys.executable, "-m", "postroom"]
