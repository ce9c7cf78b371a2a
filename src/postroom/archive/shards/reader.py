"""Reads stored messages: by key, their exact bytes, their attachments. Needs no owner and never waits for the
writer.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from postroom.archive.layout import ShardName, account_name, folder_of, parse_filename, parse_name, path_of
from postroom.archive.messages import ArchivedAttachment, ArchivedMessage, Provenance
from postroom.archive.preparing import Cut, Packed, join, unpack
from postroom.archive.shards.shard_file import open_for_reading, storage_error
from postroom.domain.errors import Fatal

MESSAGE_COLUMNS = (
    "id, key, gmail_id, thread_id, message_id, date_ms, sender, subject, size, sha256, provenance, has_attachment, "
    "deleted_at_source, (SELECT json_group_array(l.name) FROM message_labels ml JOIN labels l USING (label) "
    "WHERE ml.id = messages.id) AS labels"
)


def shards_on_disk(root: Path, account: str | None = None) -> list[ShardName]:
    """Every shard file below the archive, by account and date."""
    folders = [account] if account else [unquote(name) for name in _names(root)]
    found = [parse_filename(folder, name) for folder in folders for name in _names(folder_of(root, folder))]
    return sorted(name for name in found if name is not None)


def _names(folder: Path) -> list[str]:
    """What is in a folder; nothing if it is none."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


class ShardReader:
    """One shard, read-only. Not for several threads at once."""

    def __init__(self, root: Path, name: ShardName, path: Path | None = None) -> None:
        """`path` is for a file that lies elsewhere than its name says, such as one in quarantine."""
        self.name = name
        self._path = path or path_of(root, name)
        self._connection = open_for_reading(self._path)

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise storage_error(error, str(self._path)) from error

    def message(self, key: str) -> ArchivedMessage | None:
        rows = self.query(f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE key = ?", (key,))
        return self.read_row(rows[0]) if rows else None

    def read_row(self, row: Sequence[Any]) -> ArchivedMessage:
        """A row of MESSAGE_COLUMNS as a message."""
        (row_id, key, gmail_id, thread_id, message_id, date_ms, sender, subject, size, sha256, provenance) = row[:11]
        has_attachment, deleted, labels = row[11:]
        return ArchivedMessage(
            account=self.name.account,
            key=key,
            shard=str(self.name),
            row_id=row_id,
            date=datetime.fromtimestamp(date_ms / 1_000, UTC),
            gmail_id=gmail_id,
            thread_id=thread_id,
            message_id=None if message_id.startswith("sha256:") else message_id,
            sender=sender,
            subject=subject,
            size=size,
            sha256=sha256.hex(),
            provenance=Provenance(provenance),
            has_attachment=bool(has_attachment),
            labels=tuple(sorted(json.loads(labels))),
            deleted_at_source=None if deleted is None else datetime.fromisoformat(deleted),
        )

    def raw(self, row_id: int) -> bytes:
        """The exact bytes, checked against the hash that was taken when they were stored."""
        rows = self.query(
            "SELECT raw.codec, raw.data, messages.sha256 FROM raw JOIN messages USING (id) WHERE id = ?", (row_id,)
        )
        if not rows:
            raise Fatal(f"{self.name} holds no bytes for message {row_id}; run `postroom verify`.")
        codec, data, sha256 = rows[0]
        pieces = self.query(
            "SELECT position, codec, data FROM raw_pieces JOIN pieces USING (piece) WHERE id = ? ORDER BY number",
            (row_id,),
        )
        cuts = [Cut(position, unpack(Packed(kind, piece))) for position, kind, piece in pieces]
        whole = join(unpack(Packed(codec, data)), cuts)
        if hashlib.sha256(whole).digest() != sha256:
            raise Fatal(f"message {row_id} in {self.name} is not what was stored; run `postroom verify`.")
        return whole

    def attachments(self, row_id: int) -> Iterator[ArchivedAttachment]:
        for row in self.query(
            "SELECT number, filename, content_type, size, sha256 FROM attachments WHERE id = ? ORDER BY number",
            (row_id,),
        ):
            yield ArchivedAttachment(*row)


class ArchiveReader:
    """The whole archive, read-only. Not for several threads at once; each opens its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shards: dict[ShardName, ShardReader] = {}
        self._by_text: dict[str, ShardReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for shard in self._shards.values():
            shard.close()

    def shard(self, name: ShardName) -> ShardReader:
        if name not in self._shards:
            self._shards[name] = ShardReader(self.root, name)
        return self._shards[name]

    def shard_of(self, message: ArchivedMessage) -> ShardReader:
        if message.shard not in self._by_text:
            self._by_text[message.shard] = self.shard(parse_name(message.shard))
        return self._by_text[message.shard]

    def shards(self, email: str | None = None) -> Iterator[ShardReader]:
        """Every shard, newest first within an account."""
        account = None if email is None else account_name(email)
        return (self.shard(name) for name in reversed(shards_on_disk(self.root, account)))

    def message(self, email: str, key: str) -> ArchivedMessage | None:
        return next((found for shard in self.shards(email) if (found := shard.message(key))), None)

    def raw(self, email: str, key: str) -> bytes | None:
        """The exact bytes of a message; None if the archive does not have it."""
        for shard in self.shards(email):
            if found := shard.message(key):
                return shard.raw(found.row_id)
        return None

    def count(self, email: str | None = None) -> int:
        return sum(shard.query("SELECT count(*) FROM messages")[0][0] for shard in self.shards(email))
