"""A process that stores generated mail and says so: `python -m tests.support.archive_writer WHERE COUNT [SEED]`.

WHERE is a folder, or the address of a database. With a seed, the mail comes in an order of its own. It prints `ready`,
then the key and the outcome of every message once the archive has reported it as stored.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from postroom.archive.files import FilesPlace
from postroom.archive.place import ArchivePlace
from tests.support.archives import ME, generated


def place_at(where: str) -> ArchivePlace:
    if not where.startswith("postgresql"):
        return FilesPlace(Path(where))
    from postroom.archive.postgres.place import DatabasePlace  # as slow to load as all the rest, and started often

    return DatabasePlace(where)


def main(where: str, count: str, seed: str = "") -> None:
    mails = generated(int(count))
    if seed:
        Random(seed).shuffle(mails)
    with place_at(where) as place, place.writer("a test's writer") as archive:
        print("ready", flush=True)
        for start in range(0, len(mails), 20):
            for stored in archive.store(ME, mails[start : start + 20]):
                print(stored.key, stored.outcome, flush=True)
        print("done", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
