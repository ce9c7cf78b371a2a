"""Files for people: written whole or not at all, under names that are never paths, and never over what is there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from postroom.domain.errors import BadInput, Fatal


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete. Raises FileExistsError if the name is taken by then."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(partial, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise Fatal(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_under_free_name(folder: Path, name: str, content: bytes) -> tuple[Path, bool]:
    """Write a file and say where; a name that is taken by other content gets a number. False: it was there already."""
    for candidate in _candidates(folder / name):
        if _holds(candidate, content):
            return candidate, False
        with suppress(FileExistsError):
            with whole_file(candidate) as file:
                file.write(content)
            return candidate, True
    raise Fatal(f"{folder} has no free name for {name}")


def output_folder(path: Path) -> Path:
    """The folder to write to, made if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput("out", f"{path} cannot be made a folder: {error.strerror}") from error
    return path


def _give_name(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)  # unlike a rename it fails where the name is taken
    except FileExistsError:
        raise
    except OSError:
        if path.exists():  # a file system without links
            raise FileExistsError(path) from None
        partial.rename(path)


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    for number in range(2, 10_000):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
