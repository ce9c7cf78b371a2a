"""Vectors of mail: how many a second one core makes, and how long a query takes over 250,000 of them.

    python -m benchmarks.meaning [--vectors 250000]

Processor time, so that it may run beside other work. Mail is that of the generated mailbox; the vectors of the large
file are drawn by chance, because their number is what counts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is loaded: one core is measured

import numpy as np
from tests.support.archives import generated_mail

from postroom.archive.meaning.vectors import (
    DIMENSIONS,
    VectorFolder,
    make_vectors,
    text_embedder,
    vectors_path,
    writing_vectors,
)
from postroom.archive.messages import TextRow
from postroom.archive.search import Sort
from postroom.archive.shards.file_archive import FileArchive

ACCOUNT = "owner@example.org"
MESSAGES = 5_000
LEAST_A_SECOND = 500
MOST_MS = 50
_RUNS = 60
_QUERIES = ("when is the meeting with the architect", "invoice for the flight", "holiday photos", "password changed")


def embedding_rate(place: FileArchive) -> float:
    text_embedder()
    with place.reader() as reader:
        began = time.process_time()
        made = make_vectors(reader, place.root, ACCOUNT)
        return made / (time.process_time() - began)


def fill(root: Path, count: int) -> None:
    chance = np.random.default_rng(23)
    with writing_vectors(root, ACCOUNT) as writer:
        for start in range(0, count, 10_000):
            rows = [TextRow(2024, 1, number << 16, number) for number in range(start, min(start + 10_000, count))]
            writer.write(rows, chance.standard_normal((len(rows), DIMENSIONS), dtype=np.float32))


def p95_ms(work: Callable[[str], object]) -> float:
    for query in _QUERIES:
        work(query)
    times = []
    for run in range(_RUNS):
        began = time.process_time()
        work(_QUERIES[run % len(_QUERIES)])
        times.append((time.process_time() - began) * 1_000)
    return quantiles(times, n=20)[-1]


def query(vectors: VectorFolder, words: str) -> object:
    """As a search does: the words become a vector, and the nearest thousand are found."""
    [vector] = text_embedder().embed([words])
    return vectors.of(ACCOUNT).nearest(vector, 1_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vectors", type=int, default=250_000)
    count = parser.parse_args().vectors
    with TemporaryDirectory() as folder:
        place = FileArchive(Path(folder) / "archive")
        with place.writer("a benchmark") as archive:
            archive.store(ACCOUNT, generated_mail(MESSAGES))
        rate = embedding_rate(place)
        print(f"{rate:,.0f} messages a second on one core (goal: at least {LEAST_A_SECOND})")
        with place.search() as search:
            best = p95_ms(lambda words: search.search(words, sort=Sort.BEST))
            print(f"a whole search with --sort best over {MESSAGES:,} messages: p95 {best:.1f} ms")
        large = Path(folder) / "large"
        fill(large, count)
        size = vectors_path(large, ACCOUNT).stat().st_size / 1e6
        vectors = VectorFolder(large)
        nearest = p95_ms(lambda words: query(vectors, words))
        print(
            f"the nearest of {count:,} vectors: p95 {nearest:.1f} ms (goal: at most {MOST_MS}), {size:.0f} MB on disk"
        )


if __name__ == "__main__":
    main()
