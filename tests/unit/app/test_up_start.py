"""What `postroom up` does not do before it serves."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
import postroom.app.up, postroom.dashboard.server as server
kept_out = ("mcp", "mcp_types", "pydantic_ai", "numpy", "sqlalchemy.dialects.postgresql", "psycopg")
print(*(name for name in kept_out if name in sys.modules))
routes = [route for router in server.ROUTERS for route in router.routes]
print(len(routes), *(route.path for route in routes if "dependant" in vars(route)))
"""


def test_a_start_loads_no_mcp_no_models_and_no_other_database_and_reads_no_signature_of_a_route() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    loaded, routes = done.stdout.splitlines()
    assert loaded == ""
    assert int(routes) > 300
