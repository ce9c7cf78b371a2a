"""A set of very many ids that takes little memory: what does not fit into a few megabytes is on disk, until closed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

_PORTION = 1_000


class IdSet:
    """Of use within one thread."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # no name: a temporary file that nobody else sees
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -4096"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def __enter__(self) -> IdSet:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM ids").fetchone()[0])

    def add(self, ids: Iterable[str]) -> None:
        self._db.execute("INSERT OR IGNORE INTO ids SELECT value FROM json_each(?)", (json.dumps(list(ids)),))

    def lacking(self, ids: Sequence[str]) -> list[str]:
        """Those of the ids that are not in the set, in their order."""
        query = "SELECT value FROM json_each(?) WHERE value NOT IN ids ORDER BY key"
        return [value for (value,) in self._db.execute(query, (json.dumps(ids),))]

    def portions(self) -> Iterator[list[str]]:
        """All of them, some at a time."""
        last = ""
        query = "SELECT id FROM ids WHERE id > ? ORDER BY id LIMIT ?"
        while portion := [value for (value,) in self._db.execute(query, (last, _PORTION))]:
            yield portion
            last = portion[-1]
