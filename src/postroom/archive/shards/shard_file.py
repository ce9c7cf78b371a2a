"""One shard: its tables, and opening it for reading or for writing. A shard of an unknown version is refused.

A shard is a plain SQLite file that makes sense by itself:

    sqlite3 2024.db "SELECT m.subject FROM search JOIN messages m ON m.id = search.rowid
                     WHERE search MATCH 'invoice' ORDER BY search.rowid DESC LIMIT 10"

Version 1 has no texts of attachments; before version 3 the index has no words of languages without spaces; a shard of
any version may lack indexes by size. Such a shard is read and written as it is; `upgrade` changes it in the background,
or when the first text of an attachment is to be indexed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from postroom.archive.messages import ShardName
from postroom.domain.errors import Fatal, NewerSchema, Retryable
from postroom.mail.query.segmenting import for_index

APPLICATION_ID = 0x506F7374  # "Post"
VERSION = 3
ATTACHMENT_TEXTS_SINCE = 2
SEGMENTED_SINCE = 3
SIZE_INDEXES = {(10 << 10) + 1: "messages_10k", 64 << 10: "messages_large", (1 << 20) + 1: "messages_1m"}
"""Each has the messages of this size and more; two are what `larger:10K` and `larger:1M` ask for. Old shards have only
the middle one until `upgrade`."""

_SEGMENTED = "segmented"
"""A function of our connections, which the index is made with; searching takes no function."""
_COLUMNS = ("subject", "sender", "recipients", "cc", "bcc", "body", "filenames", "list", "attachments")
_SEARCH = f"""
CREATE VIEW search_texts AS                 -- what the index was made from
    SELECT id, {", ".join(f"{_SEGMENTED}({column}) AS {column}" for column in _COLUMNS)} FROM texts;
CREATE VIRTUAL TABLE search USING fts5 (
    {", ".join(_COLUMNS)},
    content = 'search_texts', content_rowid = 'id', tokenize = "unicode61 remove_diacritics 2"
);"""
_SIZE_INDEXES = "\n".join(
    f"CREATE INDEX IF NOT EXISTS {name} ON messages (id, size) WHERE size >= {least};"
    for least, name in SIZE_INDEXES.items()
)
BLANK_BODY = "trim(body, char(9, 10, 13, 32)) = ''"
_READINGS = f"""
CREATE TABLE readings (                     -- what became of each attachment that was read
    id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,                    -- indexed, or why not
    version INTEGER NOT NULL,               -- of what read it
    note TEXT NOT NULL,
    length INTEGER NOT NULL,                -- of its text, in characters of texts.attachments
    PRIMARY KEY (id, number)
) WITHOUT ROWID;
CREATE INDEX texts_blank ON texts (id) WHERE {BLANK_BODY};"""

TABLES = f"""
CREATE TABLE shard (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE messages (
    id INTEGER PRIMARY KEY,                 -- follows the date: milliseconds << 16 | slot
    key TEXT NOT NULL UNIQUE,               -- the Gmail id, or i + the first 15 hex digits of the hash
    gmail_id TEXT,
    thread_id TEXT NOT NULL,
    message_id TEXT NOT NULL,               -- the Message-ID header, or sha256:<hash> where there is none
    date_ms INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    size INTEGER NOT NULL,
    provenance TEXT NOT NULL,
    sender TEXT NOT NULL,
    subject TEXT NOT NULL,
    has_attachment INTEGER NOT NULL,
    problems TEXT,                          -- what could not be read, one a line
    stored_at TEXT NOT NULL,
    deleted_at_source TEXT
);
CREATE INDEX messages_message_id ON messages (message_id);
CREATE INDEX messages_thread ON messages (thread_id, id);
CREATE INDEX messages_facts ON messages (id, size, has_attachment);  -- what a search asks of many, in few pages
{_SIZE_INDEXES}

CREATE TABLE raw (                          -- the exact bytes: unpack data, then insert the pieces at their positions
    id INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    codec TEXT NOT NULL,                    -- plain or zstd
    data BLOB NOT NULL
);
CREATE TABLE raw_pieces (                   -- large attachments as they stand in the message, each stored once
    id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,              -- in the unpacked data, before anything is inserted
    number INTEGER NOT NULL,                -- order among pieces of the same position
    piece INTEGER NOT NULL REFERENCES pieces (piece),
    PRIMARY KEY (id, position, number)
) WITHOUT ROWID;
CREATE TABLE pieces (
    piece INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,
    codec TEXT NOT NULL,
    data BLOB NOT NULL
);

CREATE TABLE labels (label INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE message_labels (
    label INTEGER NOT NULL REFERENCES labels (label),
    id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    PRIMARY KEY (label, id)
) WITHOUT ROWID;
CREATE INDEX message_labels_id ON message_labels (id);

CREATE TABLE recipients (
    id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,                     -- from, to, cc, bcc
    address TEXT NOT NULL,                  -- in its compared form
    name TEXT NOT NULL,
    PRIMARY KEY (address, id, kind)
) WITHOUT ROWID;
CREATE INDEX recipients_id ON recipients (id);

CREATE TABLE attachments (
    id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    filename TEXT NOT NULL,
    content_type TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (id, number)
) WITHOUT ROWID;

CREATE TABLE texts (                        -- as they are shown
    id INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    subject TEXT, sender TEXT, recipients TEXT, cc TEXT, bcc TEXT, body TEXT, filenames TEXT, list TEXT,
    attachments TEXT                        -- the texts of all attachments, in their order; null where there is none
);{_SEARCH}{_READINGS}
"""


_BUSY_TIMEOUT_S = 30.0
_PAGE_BYTES = 8 << 10
"""Of new shards: a commit writes half as many pages as with 4 KiB, and about as many bytes."""
_LOG_BYTES = 16 << 20
"""Much mail changes the same pages of an index again before they are moved from the log into the shard."""
_LEAST_MERGED_PAGES = 64
_SEGMENTS_OF_IMPORT = 128
_FOR_WRITING = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    "temp_store = MEMORY",
    "cache_size = -4096",  # KiB, for each shard that is being written: a long import has one for every year
)


def open_for_writing(path: Path, name: ShardName) -> sqlite3.Connection:
    """The shard, made if it is missing. FULL: every commit is on disk when it returns."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _make(path, name)
    connection = _connect(path, f"file:{uri_path(path)}?mode=rw")
    try:
        for pragma in _FOR_WRITING:
            connection.execute(f"PRAGMA {pragma}")
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_bytes}")
    except sqlite3.Error as error:
        connection.close()
        raise storage_error(error, str(path)) from error
    _check(connection, path)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A reader of its own: it never waits for the writer, and can change nothing."""
    immutable = "&immutable=1" if _cannot_change(path) else ""
    connection = _connect(path, f"file:{uri_path(path)}?mode=ro{immutable}")
    connection.execute("PRAGMA query_only = ON")
    _check(connection, path)
    return connection


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database, or a broken one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def storage_error(error: sqlite3.Error, what: str) -> Retryable | Fatal:
    """The one place where SQLite's complaints about a shard become ours."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return Retryable(f"The disk that holds {what} is full. Nothing is half stored; free some space and go on.")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Retryable(f"{what} is locked by another process.")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Fatal(f"{what} cannot be used ({error}): check that it is there, and who owns it and its folder.")
        case _:
            return Fatal(
                f"{what} is damaged ({error}). Run `postroom verify`: it tells what is lost and rebuilds the rest."
            )


def _connect(path: Path, uri: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    teach_segmenting(connection)
    return connection


def teach_segmenting(connection: sqlite3.Connection) -> None:
    """What a connection must know to write to the index or to check it."""
    connection.create_function(_SEGMENTED, 1, _segmented, deterministic=True)


def _segmented(text: str | None) -> str | None:
    return text and for_index(text)


def _cannot_change(path: Path) -> bool:
    """On a medium that takes no writing SQLite cannot make the files that readers share with a writer; if nothing
    waits in a log there, it need not."""
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False
    return bool(is_read_only) and not path.with_name(f"{path.name}-wal").exists()


def uri_path(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _make(path: Path, name: ShardName) -> None:
    """A new shard gets its name when it is complete: neither a reader nor a kill finds one that is half made."""
    unborn = path.with_name(f".{path.name}.new")
    for leftover in (unborn, unborn.with_name(f"{unborn.name}-journal")):
        leftover.unlink(missing_ok=True)
    connection = _connect(unborn, f"file:{uri_path(unborn)}?mode=rwc")
    try:
        _create(connection, name)
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    finally:
        connection.close()
    rename_durably(unborn, path)


def rename_durably(file: Path, path: Path) -> None:
    """Rename a file within its folder; when this returns, the new name is on disk."""
    file.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _create(connection: sqlite3.Connection, name: ShardName) -> None:
    made = datetime.now(UTC).isoformat(timespec="seconds")
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _statements(TABLES):
        connection.execute(statement)
    facts = {"account": name.account, "period": str(name.year), "part": str(name.part), "created_at": made}
    connection.executemany("INSERT INTO shard (key, value) VALUES (?, ?)", facts.items())
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def has_attachment_texts(connection: sqlite3.Connection) -> bool:
    """Whether the shard can hold texts of attachments. Another connection may change that at any time."""
    return version_of(connection) >= ATTACHMENT_TEXTS_SINCE


def is_segmented(connection: sqlite3.Connection) -> bool:
    """Whether the index has words of languages without spaces. Another connection may change that at any time."""
    return version_of(connection) >= SEGMENTED_SINCE


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def upgrade(connection: sqlite3.Connection) -> None:
    """To the current version, with all indexes, within a transaction. The full-text index of an older version is made
    anew from the texts, which takes about 20 s of processor time for 100,000 messages of 200 words; an index by size
    takes a tenth of a second."""
    for statement in _statements(_SIZE_INDEXES):
        connection.execute(statement)
    version = version_of(connection)
    if version >= VERSION:
        return
    connection.execute("DROP TABLE search")
    new = _SEARCH
    if version < ATTACHMENT_TEXTS_SINCE:
        connection.execute("ALTER TABLE texts ADD COLUMN attachments TEXT")
        new += _READINGS
    for statement in _statements(new):
        connection.execute(statement)
    connection.execute("INSERT INTO search (search) VALUES ('rebuild')")
    connection.execute(f"PRAGMA user_version = {VERSION}")


SEGMENT_SIZES = "SELECT count(*) FROM search_idx GROUP BY segid"
"""Of the index: it gets a segment with every commit, and a search looks into all of them. In pages, about."""


def is_scattered(segments: Sequence[int]) -> bool:
    """Whether it is time to merge: not before what came since the last time is a quarter of the index, so that a
    message is written to it only a few times."""
    largest = max(segments, default=0)
    return sum(segments) - largest >= max(_LEAST_MERGED_PAGES, largest // 4)


def merge_segments(connection: sqlite3.Connection) -> None:
    """Into one, within a transaction; about 15 ms of processor time for 1,000 messages of 100 words."""
    connection.execute("INSERT INTO search (search) VALUES ('optimize')")


def merges_late(connection: sqlite3.Connection) -> bool:
    """Whether new mail leaves the index in segments, up to a limit, for `merge_segments` to merge."""
    row = connection.execute("SELECT v FROM search_config WHERE k = 'automerge'").fetchone()
    return bool(row == (0,))


def merge_late(connection: sqlite3.Connection, late: bool) -> None:
    """Within a transaction. Merging bit by bit, as SQLite does by itself, writes an import's index three times."""
    settings = {"automerge": 0, "crisismerge": _SEGMENTS_OF_IMPORT} if late else {"automerge": 4, "crisismerge": 16}
    connection.executemany("INSERT INTO search (search, rank) VALUES (?, ?)", settings.items())


def _statements(script: str) -> list[str]:
    """One by one: `executescript` would commit by itself between them."""
    found, text = [], ""
    for line in script.splitlines():
        text += line + "\n"
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


def _check(connection: sqlite3.Connection, path: Path) -> None:
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        connection.close()
        raise storage_error(error, str(path)) from error
    if application != APPLICATION_ID:
        connection.close()
        raise Fatal(f"{path} is not a shard of a Postroom archive; move it elsewhere.")
    if version > VERSION:
        connection.close()
        raise NewerSchema(f"{path} was written by a newer Postroom (shard version {version}). Upgrade Postroom.")
