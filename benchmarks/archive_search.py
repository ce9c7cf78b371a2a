"""Asks one contender the queries, in this process, and prints how long each first page took, as JSON.

`python -m benchmarks.archive_search postroom|notmuch HOME QUERIES_JSON ROUNDS`. A page has what a list of mail shows:
from us with a snippet of the text around the words too, which notmuch leaves to its front ends.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.archive_queries import LEFT_OUT
from benchmarks.libnotmuch import Notmuch
from postroom.archive.search import Search

PAGE = 20

Ask = Callable[[str], list[str]]
"""Gives the Message-IDs of the first page."""


def postroom(home: Path) -> Ask:
    search = Search(home / "archive")

    def ask(query: str) -> list[str]:
        page = search.search(query, limit=PAGE)
        assert not page.problems
        return [(hit.message.message_id or "").strip("<>") for hit in page.hits]

    return ask


def notmuch(home: Path) -> Ask:
    database = Notmuch(home / "config")
    return lambda query: [row.message_id for row in database.search(query, PAGE, LEFT_OUT)]


def measure(ask: Ask, queries: Sequence[str], rounds: int) -> dict[str, object]:
    pages = [ask(query) for query in queries]
    milliseconds: list[list[float]] = [[] for _ in queries]
    cpu_milliseconds: list[list[float]] = [[] for _ in queries]
    for _ in range(rounds):
        for number, query in enumerate(queries):
            started, cpu_before = time.perf_counter(), time.process_time()
            ask(query)
            milliseconds[number].append((time.perf_counter() - started) * 1_000)
            cpu_milliseconds[number].append((time.process_time() - cpu_before) * 1_000)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    times = {"milliseconds": milliseconds, "cpu_milliseconds": cpu_milliseconds}
    return {**times, "pages": pages, "peak_mb": peak_mb}


def main(contender: str, home: str, queries: str, rounds: str) -> None:
    ask = {"postroom": postroom, "notmuch": notmuch}[contender](Path(home))
    print(json.dumps(measure(ask, json.loads(Path(queries).read_text()), int(rounds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
