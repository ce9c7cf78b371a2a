"""TOML from people and programs, in linear time: the standard reader takes the square of a key's parts."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_DOTS = 100
"""On one line, outside of quotes; no key of ours has more than three parts."""
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*+"|\'[^\'\n]*+\'')


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, and nothing else, for what is not TOML."""
    if any(line.count(".") > MOST_DOTS for line in _QUOTED.sub("", text).splitlines()):
        raise ValueError(f"a line holds more than {MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
