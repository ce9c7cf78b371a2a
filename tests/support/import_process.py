"""A process that imports and may be killed: `python -m tests.support.import_process ROOT FORMAT PATH`.

It prints `ready`, a line after every batch that is on disk, and finally the report's counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from postroom.archive.importing import run as import_run
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.sources import open_maildir, open_mbox, open_takeout
from postroom.archive.importing.state import ImportProgress
from postroom.archive.shards.writer import FileArchiveWriter
from tests.support.archives import ME

OPENERS = {"mbox": open_mbox, "takeout": open_takeout, "maildir": open_maildir}


def main(root: str, format: str, path: str, batch: str) -> None:
    import_run.BATCH_MESSAGES = int(batch)  # many small batches: many points to be killed at

    def show(progress: ImportProgress) -> None:
        print(progress.report.found, flush=True)

    with FileArchiveWriter(Path(root), purpose="a test's import") as archive:
        print("ready", flush=True)
        report = import_mail(archive, ME, OPENERS[format](Path(path)), progress=show)
    print("done", report.found, report.stored, report.duplicates, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
