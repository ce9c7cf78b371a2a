"""The small files of a home folder: settings, sealed secrets, and what connectors remember."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from postroom.audit.heads import FILE_NAME as HEADS
from postroom.connectors.files import FOLDER as CONNECTORS
from postroom.connectors.gmail.parking import FILE as PARKED
from postroom.settings import FILE_NAME as SETTINGS
from postroom.vault import FOLDER as VAULT
from postroom.vault import KEY_FILE
from postroom.websources.config import FILE_NAME as SOURCES

Files = dict[str, bytes]
"""Contents by their place below the home folder."""


def settings_and_secrets(home: Path, *, with_key: bool) -> Files:
    """Each is replaced as a whole by whoever writes it, and so is never half written here."""
    names = [SETTINGS, SOURCES, *([KEY_FILE] if with_key else [])]
    return _contents(home, [*(home / name for name in names), *sorted((home / VAULT).glob("*.sealed"))])


def audit_heads(home: Path) -> Files:
    """To be read before the control database is copied: a head must not be ahead of the seals in the copy."""
    return _contents(home, [home / "archive" / HEADS])


def connector_notes(home: Path) -> Files:
    return _contents(home, sorted((home / CONNECTORS).glob("*/*.json")))


def joined_notes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Files:
    """What connectors remember, to go with a control database that was copied between the two looks.

    Positions must not be ahead of the database, so the earlier look counts. A message that was parked, or a gap that
    was found, is added from the later one: the database may have moved on without it. What is done twice does no harm.
    """
    joined = {**after, **before}
    for path in before:
        if path.endswith(f"/{PARKED}") and path in after:
            joined[path] = _joined_objects(before[path], after[path])
    return joined


def _joined_objects(before: bytes, after: bytes) -> bytes:
    try:
        return json.dumps({**json.loads(after), **json.loads(before)}, separators=(",", ":")).encode()
    except (ValueError, TypeError):
        return after


def _contents(home: Path, paths: list[Path]) -> Files:
    found = {}
    for path in paths:
        try:
            found[str(path.relative_to(home))] = path.read_bytes()
        except FileNotFoundError:  # never there, or replaced or removed in this instant
            continue
    return found
