"""A process that stores generated mail and says so: `python -m tests.support.archive_writer ROOT COUNT`.

It prints `ready`, then the key of every message once the archive has reported it as stored.
"""

from __future__ import annotations

import sys
from pathlib import Path

from postroom.archive.store import Archive
from tests.support.archives import ME, generated


def main(root: str, count: str) -> None:
    with Archive(Path(root), purpose="a test's writer") as archive:
        print("ready", flush=True)
        mails = generated(int(count))
        for start in range(0, len(mails), 20):
            for stored in archive.store(ME, mails[start : start + 20]):
                print(stored.key, flush=True)
        print("done", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
