"""The file of heads: the end of the chain once an hour, one line of JSON each, beside the archive.

It tells when entries and their seals were removed from the end together. A copy of it that is kept elsewhere also
tells when the file itself was cut.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy.engine import URL

from postroom.audit.chain import Head
from postroom.domain.clock import utc_text
from postroom.domain.errors import BadInput, Fatal, Retryable

FILE_NAME = "audit-heads.jsonl"
_TAIL_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class RecordedHead:
    head: Head
    moment: datetime
    """When it was written down."""
    source: str
    """Where it was found, in words for a person."""


class HeadsFile:
    def __init__(self, archive: Path) -> None:
        self.path = archive / FILE_NAME

    def append(self, head: Head, now: datetime) -> RecordedHead:
        """On disk when this returns."""
        line = json.dumps(head_line(head, now)).encode() + b"\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                if not _ends_a_line(descriptor):
                    line = b"\n" + line
                file.write(line)
                os.fsync(descriptor)
        except OSError as error:
            raise Fatal(f"{self.path} cannot be written: {error.strerror}. Check the folder and its disk.") from error
        return RecordedHead(head, now, FILE_NAME)

    def last(self) -> RecordedHead | None:
        """The latest that can be read; a line that a crash cut short is passed over."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Fatal(f"{self.path} cannot be read: {error.strerror}.") from error
        return next((found for line in reversed(lines) if (found := _read_line(line, FILE_NAME))), None)

    def read(self) -> Iterator[RecordedHead]:
        return read_heads(self.path) if self.path.exists() else iter(())


def read_heads(path: Path) -> Iterator[RecordedHead]:
    """Of a file of heads, of a copy of one, or of a backup's manifest; lines that are none are passed over."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput("--heads", f"{path} cannot be read: {error.strerror}") from error
    lines = [_head_in_manifest(content)] if b'"audit_head"' in content else content.splitlines()
    return filter(None, (_read_line(line, path.name) for line in lines))


def head_line(head: Head, now: datetime) -> dict[str, object]:
    """A head as it is written down, here and in the manifest of a backup."""
    line = {"position": head.position, "mac": head.mac, "key": head.key_id, "sealed_at": head.at}
    return {**line, "entries": head.entries, "recorded_at": utc_text(now)}


# The end of the chain in a database that is not opened as ours: one that is being backed up, or its copy.

_END = "SELECT position, mac, key_id, sealed_at, (SELECT count(*) FROM audit_log) FROM audit_chain WHERE position > 0"


def head_in_sqlite(path: Path) -> Head | None:
    """None where nothing was sealed, or the schema is from before seals."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'audit_chain'").fetchone():
            return None
        row = connection.execute(_END).fetchone()
    return None if row is None else Head(*row)


def head_in_postgres(url: URL) -> Head | None:
    import psycopg  # only where there is a PostgreSQL

    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(address, autocommit=True) as connection:
            if connection.execute("SELECT to_regclass('audit_chain')").fetchone() == (None,):
                return None
            row = connection.execute(_END).fetchone()
    except psycopg.Error as error:
        raise Retryable(f"The database could not be asked for the end of the audit log: {error}".rstrip()) from error
    return None if row is None else Head(row[0], row[1], row[2], utc_text(row[3]), row[4])


def _head_in_manifest(content: bytes) -> bytes:
    try:
        return json.dumps(json.loads(content)["audit_head"]).encode()
    except (ValueError, KeyError, TypeError):
        return b""


def _read_line(line: bytes, source: str) -> RecordedHead | None:
    try:
        found = json.loads(line)
        end = (int(found["position"]), str(found["mac"]), str(found["key"]), str(found["sealed_at"]))
        moment = datetime.fromisoformat(found["recorded_at"])
        entries = None if found.get("entries") is None else int(found["entries"])
    except (ValueError, KeyError, TypeError):
        return None
    return None if moment.tzinfo is None else RecordedHead(Head(*end, entries), moment, source)


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
