"""A connector has no database, not even by accident: nothing below it loads one."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import postroom.connectors.process
import postroom.connectors.passes
from postroom.cli.main import command
command("connector")
forbidden = ("postroom.db", "postroom.queue", "postroom.archive", "postroom.accounts", "postroom.app", "sqlalchemy",
             "sqlite3", "psycopg")
print(sorted(name for name in sys.modules if name.startswith(forbidden)))
"""


@pytest.mark.req("BF-3")
def test_no_database_is_loaded_anywhere_below_a_connector() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
