"""The table that stands for the commands until one of them runs: it tells the truth, and spares the imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.cli.main import COMMANDS, command


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    own = command(name).help or ""
    assert " ".join(own.split("\n\n")[0].split()) == COMMANDS[name].help


def loaded_by(home: Path, *arguments: str) -> set[str]:
    """The modules that a command imports, our own by their full name and others by that of their package."""
    code = f"""
import sys
sys.argv = ["postroom", *{arguments!r}]
from postroom.cli.main import run
try:
    run()
except SystemExit as ended:
    assert not ended.code
print(*sys.modules, sep="\\n", file=sys.stderr)
"""
    environment = {**os.environ, "POSTROOM_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    names = done.stderr.split()
    return {name if name.startswith("postroom.") else name.partition(".")[0] for name in names}


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("postroom.")}


def test_help_loads_the_table_and_no_room(tmp_path: Path) -> None:
    modules = loaded_by(tmp_path, "--help")
    assert rooms(modules) == {"cli", "domain", "telemetry"}
    assert modules.isdisjoint({"asyncio", "pydantic", "sqlalchemy", "structlog"})


_HEAVY = {"alembic", "cryptography", "httpx2", "opentelemetry", "psycopg", "re2", "sqlalchemy", "structlog", "uvloop"}


def test_the_list_of_jobs_loads_no_service_and_no_library_that_only_services_need(tmp_path: Path) -> None:
    loaded_by(tmp_path, "jobs", "list")  # the first command makes the schema, which takes SQLAlchemy and Alembic
    modules = loaded_by(tmp_path, "jobs", "list")
    assert rooms(modules) == {"cli", "db", "domain", "queue", "settings", "telemetry"}
    assert modules.isdisjoint(_HEAVY)
    assert {"postroom.queue.worker", "postroom.domain.actions", "postroom.db.postgres"}.isdisjoint(modules)


def test_a_search_loads_the_archive_and_no_database_library(tmp_path: Path) -> None:
    modules = loaded_by(tmp_path, "search", "invoice")
    assert rooms(modules) == {"archive", "cli", "db", "domain", "mail", "reading", "settings", "telemetry"}
    assert modules.isdisjoint(_HEAVY)
