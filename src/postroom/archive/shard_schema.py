"""The tables of a shard. A shard is a plain SQLite file that makes sense alone:

sqlite3 2024.db "SELECT m.subject FROM search JOIN messages m ON m.id = search.rowid
                 WHERE search MATCH 'invoice' ORDER BY search.rowid DESC LIMIT 10"
"""

from __future__ import annotations

APPLICATION_ID = 0x506F7374  # "Post"
VERSION = 1
LARGE_MESSAGE_BYTES = 64 << 10
"""Messages of this size and more have an index of their own."""

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
CREATE INDEX messages_large ON messages (id, size) WHERE size >= {LARGE_MESSAGE_BYTES};

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

CREATE TABLE texts (                        -- what the index was made from
    id INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    subject TEXT, sender TEXT, recipients TEXT, cc TEXT, bcc TEXT, body TEXT, filenames TEXT, list TEXT
);
CREATE VIRTUAL TABLE search USING fts5 (
    subject, sender, recipients, cc, bcc, body, filenames, list,
    content = 'texts', content_rowid = 'id', tokenize = "unicode61 remove_diacritics 2"
);
"""
