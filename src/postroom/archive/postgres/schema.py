"""The tables of the archive in PostgreSQL, and the partitions that are made as mail comes in.

`messages` holds the mail, partitioned by account and below that by month: row ids follow the date, so that a month is a
range of ids. `entries` is what a search asks of them, by account: planning over every month of ten years would take
longer than the search. `register` knows every message apart from both: identity is unique there, and a partition that
goes missing is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from postroom.archive.messages import LARGEST_ID, date_of_id, first_id
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession
from postroom.domain.errors import Fatal, NewerSchema

VERSION = 3
_READINGS_SINCE = 2
_SEGMENTED_SINCE = 3
LOCK = 0x506F7374  # "Post": the class of our advisory locks; the second number is an account's, 0 for the tables
ARCHIVER_LOCK = 0x506F7341
LARGE_MESSAGE_BYTES = 64 << 10

_READINGS = """
CREATE TABLE archive.readings (             -- what became of each attachment that was read
    account integer NOT NULL REFERENCES archive.accounts,
    id bigint NOT NULL,
    number integer NOT NULL,
    state text NOT NULL,                    -- indexed, or why not
    version integer NOT NULL,               -- of what read it
    note text NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (account, id, number)
);
"""
_WAITING = """
-- So that what waits to be read is found without looking at all mail.
CREATE INDEX entries_attached ON archive.entries (id, account) WHERE has_attachment;
CREATE INDEX readings_again ON archive.readings (account, state, version, id)
    WHERE state IN ('unreadable', 'kind not supported');
"""
_REINDEXING = """
CREATE TABLE archive.reindexing (           -- accounts with messages that were indexed by an older version
    account integer PRIMARY KEY REFERENCES archive.accounts,
    below bigint NOT NULL                   -- from this row id on, all are indexed anew
);
"""
_TABLES = f"""
CREATE SCHEMA IF NOT EXISTS archive;
CREATE TABLE archive.facts (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE archive.accounts (
    account integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email text NOT NULL UNIQUE
);
CREATE TABLE archive.partitions (           -- those that should be there
    account integer NOT NULL REFERENCES archive.accounts,
    low bigint NOT NULL,                    -- the first row id of its month
    high bigint NOT NULL,
    name text NOT NULL,
    lost bigint NOT NULL DEFAULT 0,         -- known to have been in it, and not recovered
    PRIMARY KEY (account, low)
);
CREATE TABLE archive.register (
    account integer NOT NULL REFERENCES archive.accounts,
    key text COLLATE "C" NOT NULL,          -- the Gmail id, or i + the first 15 hex digits of the hash
    id bigint NOT NULL,                     -- follows the date: milliseconds << 16 | slot
    gmail_id text,
    thread_id text NOT NULL,
    message_hash bytea NOT NULL,            -- of the Message-ID, which may be too long for an index
    sha256 bytea NOT NULL,
    provenance text NOT NULL,
    PRIMARY KEY (account, key),
    UNIQUE (account, id)
);
CREATE INDEX register_message ON archive.register (account, message_hash);
CREATE INDEX register_thread ON archive.register (account, thread_id, id);

CREATE TABLE archive.messages (
    account integer NOT NULL,
    id bigint NOT NULL,
    key text NOT NULL,
    gmail_id text,
    thread_id text NOT NULL,
    message_id text NOT NULL,               -- the Message-ID header, or sha256:<hash> where there is none
    date_ms bigint NOT NULL,
    sha256 bytea NOT NULL,
    size bigint NOT NULL,
    provenance text NOT NULL,
    sender text NOT NULL,
    subject text NOT NULL,
    has_attachment boolean NOT NULL,
    problems text,
    stored_at timestamptz NOT NULL,
    deleted_at_source timestamptz,
    recipients jsonb NOT NULL,              -- kind, address, name
    attachments jsonb NOT NULL,             -- file name, type, size, hash
    codec text NOT NULL,                    -- plain or zstd
    data bytea NOT NULL,                    -- the exact bytes: unpack, then insert the pieces at their positions
    cuts jsonb NOT NULL,                    -- position and hash of each piece
    body text NOT NULL,                     -- what snippets are cut from
    PRIMARY KEY (id, account)               -- in the order of dates within each partition
) PARTITION BY LIST (account);
CREATE TABLE archive.entries (              -- the search index
    account integer NOT NULL,
    id bigint NOT NULL,
    size bigint NOT NULL,
    has_attachment boolean NOT NULL,
    tokens tsvector NOT NULL,
    folded text[],                          -- see words.py
    PRIMARY KEY (id, account)
) PARTITION BY LIST (account);
-- Else every search would read what waits to be sorted into the index, which takes longer than the search.
CREATE INDEX entries_tokens ON archive.entries USING gin (tokens) WITH (fastupdate = off);
CREATE INDEX entries_large ON archive.entries (id, account) WHERE size >= {LARGE_MESSAGE_BYTES};

CREATE TABLE archive.pieces (               -- large attachments as they stand in the message, each stored once
    account integer NOT NULL REFERENCES archive.accounts,
    sha256 bytea NOT NULL,
    codec text NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (account, sha256)
);
ALTER TABLE archive.messages ALTER COLUMN data SET STORAGE EXTERNAL;    -- it is packed already
ALTER TABLE archive.pieces ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE archive.labels (
    label integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account integer NOT NULL REFERENCES archive.accounts,
    name text NOT NULL
);
CREATE UNIQUE INDEX labels_name ON archive.labels (account, md5(name));
CREATE TABLE archive.message_labels (
    label integer NOT NULL REFERENCES archive.labels,
    id bigint NOT NULL,
    account integer NOT NULL,
    PRIMARY KEY (label, id)
);
CREATE INDEX message_labels_message ON archive.message_labels (account, id);

CREATE TABLE archive.sync_marks (
    account integer PRIMARY KEY REFERENCES archive.accounts,
    account_id text NOT NULL,
    walk integer NOT NULL
);
CREATE TABLE archive.imports (
    source text NOT NULL,                   -- the hash of host, account, format and path
    file text NOT NULL,                     -- the hash of its name
    identity text NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (source, file)
);
CREATE TABLE archive.quarantine (           -- rows that were not what was stored, whole, as they were found
    account integer NOT NULL,
    found_at timestamptz NOT NULL DEFAULT now(),
    message jsonb NOT NULL
);

CREATE TABLE archive.certificates (
    certificate bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account integer NOT NULL REFERENCES archive.accounts,
    batch text NOT NULL,
    gmail_id text NOT NULL,
    action text NOT NULL,
    label text NOT NULL,
    key text NOT NULL,
    sha256 text NOT NULL,
    size bigint NOT NULL,
    shard text NOT NULL,
    row_id bigint NOT NULL,
    provenance text NOT NULL,
    watermark bigint NOT NULL,
    certified_at timestamptz NOT NULL,
    UNIQUE (account, gmail_id, action, label, sha256)
);
CREATE TABLE archive.outcomes (             -- the last one of a certificate is how it stands
    outcome bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    certificate bigint NOT NULL REFERENCES archive.certificates,
    result text NOT NULL CHECK (result IN ('intended', 'removed', 'gone', 'left')),
    detail text NOT NULL,
    recorded_at timestamptz NOT NULL
);
CREATE INDEX outcomes_of_certificate ON archive.outcomes (certificate, outcome);
CREATE VIEW archive.ledger AS
    SELECT c.*, o.result, o.detail, o.recorded_at AS result_at
    FROM archive.certificates c JOIN archive.outcomes o
        ON o.outcome = (SELECT max(outcome) FROM archive.outcomes WHERE certificate = c.certificate);
CREATE FUNCTION archive.never() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '% are never changed', TG_TABLE_NAME; END $$;
CREATE TRIGGER certificates_never BEFORE UPDATE OR DELETE OR TRUNCATE ON archive.certificates
    FOR EACH STATEMENT EXECUTE FUNCTION archive.never();
CREATE TRIGGER outcomes_never BEFORE UPDATE OR DELETE OR TRUNCATE ON archive.outcomes
    FOR EACH STATEMENT EXECUTE FUNCTION archive.never();
{_READINGS}{_WAITING}{_REINDEXING}"""


@dataclass(frozen=True, slots=True)
class Partition:
    """An account's month: the row ids from `low` to before `high`."""

    account: int
    low: int
    high: int
    lost: int = 0

    @property
    def table(self) -> str:
        return f"messages_{self.account}_{date_of_id(self.low):%Y_%m}"

    @property
    def shown(self) -> str:
        return f"{date_of_id(self.low):%Y-%m}"


def prepare_tables(connections: ArchiveConnections) -> None:
    """Make the tables if they are not there; refuse those of a newer Postroom. Many may do so at once."""
    with connections.session() as session, session.transaction():
        session.query("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
        if session.query("SHOW server_encoding") != [("UTF8",)]:
            raise Fatal("The database of the archive must be made with the encoding UTF8.")
        if session.query("SELECT to_regclass('archive.facts')") == [(None,)]:
            session.query(_TABLES)
            session.query("INSERT INTO archive.facts VALUES ('version', %s)", (str(VERSION),))
        [(version,)] = session.query("SELECT value FROM archive.facts WHERE key = 'version'")
        if int(version) < VERSION:
            _upgrade(session, int(version))
        if int(version) <= VERSION and session.query("SELECT to_regclass('archive.readings_again')") == [(None,)]:
            session.query(_WAITING)  # also for older tables: an older Postroom can use them as well
    if int(version) > VERSION:
        raise NewerSchema(f"The archive in the database was made by a newer Postroom ({version}). Upgrade Postroom.")


def _upgrade(session: ArchiveSession, version: int) -> None:
    """The tables at once; what `reindexing` lists is indexed anew in the background."""
    if version < _READINGS_SINCE:
        session.query(_READINGS)
    if version < _SEGMENTED_SINCE:
        session.query(_REINDEXING)
        session.query("INSERT INTO archive.reindexing SELECT account, %s FROM archive.accounts", (LARGEST_ID,))
    session.query("UPDATE archive.facts SET value = %s WHERE key = 'version'", (str(VERSION),))


def partition_of(account: int, row_id: int) -> Partition:
    date = date_of_id(row_id)
    year, month = (date.year + 1, 1) if date.month == 12 else (date.year, date.month + 1)
    start, end = datetime(date.year, date.month, 1, tzinfo=UTC), datetime(year, month, 1, tzinfo=UTC)
    low, high = _first_id(start), _first_id(end)
    return Partition(account, low, high if high > row_id else LARGEST_ID)  # the last month there can be has no end


def _first_id(moment: datetime) -> int:
    return first_id(round(moment.timestamp() * 1_000))


def make_partition(session: ArchiveSession, partition: Partition) -> None:
    """Also the account's own, if it is the first."""
    number, months = partition.account, f"messages_{partition.account}"
    with session.transaction():
        session.query("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
        _attach(session, "messages", months, f"IN ({number})", "PARTITION BY RANGE (id)")
        _attach(session, "entries", f"entries_{number}", f"IN ({number})")
        _attach(session, months, partition.table, f"FROM ({partition.low}) TO ({partition.high})")
        session.query(
            "INSERT INTO archive.partitions (account, low, high, name) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (partition.account, partition.low, partition.high, partition.table),
        )


def _attach(session: ArchiveSession, parent: str, name: str, values: str, kind: str = "") -> None:
    """Create the partition separately and attach it, which blocks no reader or writer."""
    if session.query("SELECT to_regclass(%s)", (f"archive.{name}",)) == [(None,)]:
        session.query(f"CREATE TABLE archive.{name} (LIKE archive.{parent} INCLUDING ALL) {kind}")
        session.query(f"ALTER TABLE archive.{parent} ATTACH PARTITION archive.{name} FOR VALUES {values}")


def partitions(session: ArchiveSession, accounts: list[int]) -> list[Partition]:
    """Those that should be there, newest first."""
    rows = session.query(
        "SELECT account, low, high, lost FROM archive.partitions WHERE account = ANY(%s) ORDER BY low DESC, account",
        (accounts,),
    )
    return [Partition(*row) for row in rows]


def find_account(session: ArchiveSession, email: str) -> int | None:
    rows = session.query("SELECT account FROM archive.accounts WHERE email = %s", (email,))
    return rows[0][0] if rows else None


def account_number(session: ArchiveSession, email: str) -> int:
    """An account's number, given to it when it is first needed."""
    found = find_account(session, email)
    if found is None:
        session.query("INSERT INTO archive.accounts (email) VALUES (%s) ON CONFLICT DO NOTHING", (email,))
        found = find_account(session, email)
    assert found is not None  # noqa: S101 - accounts are never taken away
    return found


def lock_account(session: ArchiveSession, account: int) -> None:
    """Lock the account's mail against other writers until the transaction ends, so that identity is decided once."""
    session.query("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK, account))
