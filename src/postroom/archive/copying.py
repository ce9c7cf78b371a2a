"""The files of an archive, copied while its owner goes on writing.

Whatever speaks of shards is copied before them: the catalogue, certificates and positions of imports never claim more
than the shards that are copied after them hold. Shards in quarantine are left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from postroom.archive.certificates import FILE_NAME as CERTIFICATES
from postroom.archive.layout import path_of
from postroom.archive.reading import shards_on_disk
from postroom.archive.sync_mark import FILE_NAME as SYNC_MARK
from postroom.db.snapshot import Copied, copy_sqlite

_CLAIMS = ("imports.db", "catalogue.db")


def archive_size(root: Path) -> int:
    """About how many bytes a copy takes."""
    return sum((root / path).stat().st_size for path in _databases(root) if (root / path).exists())


def read_marks(root: Path) -> dict[str, bytes]:
    """Which sync each account's part belongs to, as files by their place below the root."""
    marks = sorted(root.glob(f"*/{SYNC_MARK}"))
    return {str(path.relative_to(root)): path.read_bytes() for path in marks}


def unchanged_marks(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes]:
    """The marks that a copy may bear: those that stood before the control database was copied and still do.

    A mark that was taken away or renewed meanwhile may tell of a loss. Without it the next sync lists everything again.
    """
    return {path: content for path, content in before.items() if after.get(path) == content}


def copy_archive(
    root: Path, target: Path, copied: Copied, *, before_each: Callable[[str], None] = lambda path: None
) -> list[str]:
    """Copy every database of the archive below `root`; returns their places below `target`, which must not exist."""
    done = []
    for path in _databases(root):
        before_each(path)
        (target / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy_sqlite(root / path, target / path, copied)
        done.append(path)
    return done


def _databases(root: Path) -> Iterator[str]:
    """In the order in which they are to be copied; shards are looked for when all before them were taken."""
    yield from (name for name in _CLAIMS if (root / name).exists())
    yield from (str(path.relative_to(root)) for path in sorted(root.glob(f"*/{CERTIFICATES}")))
    yield from (str(path_of(root, name).relative_to(root)) for name in shards_on_disk(root))
