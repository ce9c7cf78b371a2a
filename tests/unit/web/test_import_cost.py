"""What a command costs before it begins."""

from __future__ import annotations

import subprocess
import sys

_LOOK = """
import sys, postroom.app
readers = ("lxml", "trafilatura", "pypdf", "protego", "postroom.web.web_service")
print([name for name in readers if name in sys.modules])
"""


def test_a_command_that_has_nothing_to_do_with_the_web_loads_no_readers_of_pages() -> None:
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
