"""Reads stored messages: by key, key prefix or Message-ID, by id at the source, or page by page by date; their exact
bytes, headers, text and attachments. Needs no owner and never waits for the writer.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from postroom.archive.coverage import PartState, TextCoverage, UnindexedPart, WaitingAttachments, added_up
from postroom.archive.messages import (
    LARGEST_ID,
    MOST_FOUND,
    AccountHolding,
    ArchivedAttachment,
    ArchivedMessage,
    ArchivedSentMail,
    KnownId,
    MessageReference,
    PersonWrittenTo,
    ShardName,
    TextRow,
    account_name,
    check_of,
    cursor_of,
    date_of_id,
    first_id,
    folder_of,
    id_range,
    only_match,
    parse_filename,
    parse_name,
    path_of,
    read_cursor,
    wanted_by,
)
from postroom.archive.preparing import Cut, Packed, unpack
from postroom.archive.reader import FACTS, PORTION, ArchiveReader, PackedMail, archived_message, whole_message
from postroom.archive.shards import attachment_texts
from postroom.archive.shards.shard_file import (
    SEGMENT_SIZES,
    SIZE_INDEXES,
    VERSION,
    has_attachment_texts,
    is_scattered,
    open_for_reading,
    storage_error,
    version_of,
)
from postroom.domain.errors import Fatal, PostroomError
from postroom.mail.parsing import UNREADABLE
from postroom.reading.documents import EXTRACTOR_VERSION

_IDS_AT_ONCE = 1_000
_CACHE_KIB = 512
"""Of each open shard. A process reads from several threads, and each keeps the shards of all years open; what a commit
to a shard makes worthless is most of a cache, and the system keeps the file's pages in any case."""
MESSAGE_COLUMNS = (
    f"id, {', '.join(FACTS)}, deleted_at_source, "
    "(SELECT json_group_array(l.name) FROM message_labels ml JOIN labels l USING (label) "
    "WHERE ml.id = messages.id) AS labels"
)

_ATTACHMENTS = "SELECT number, filename, content_type, size, sha256 FROM attachments WHERE id = {} ORDER BY number"
_ATTACHMENTS_IF_ANY = (
    "CASE WHEN has_attachment THEN (SELECT json_group_array(json_array(number, filename, content_type, size, sha256)) "
    f"FROM ({_ATTACHMENTS.format('messages.id')})) END"
)


def shards_on_disk(root: Path, account: str | None = None) -> list[ShardName]:
    """Every shard file below the archive, by account and date."""
    folders = [account] if account else [unquote(name) for name in _folders(root)]
    files = [(folder, name) for folder in folders for name in _names(folder_of(root, folder)) if name.endswith(".db")]
    found = [name for folder, file in files if (name := parse_filename(folder, file)) is not None]
    return sorted(found, key=attrgetter("account", "year", "part"))


def _folders(root: Path) -> list[str]:
    """The names of the folders in a folder."""
    try:
        with os.scandir(root) as found:
            return [each.name for each in found if each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


@lru_cache(1_024)
def _label_names(labels: str) -> tuple[str, ...]:
    """From JSON; few of them differ among many messages."""
    return tuple(sorted(json.loads(labels)))


def _names(folder: Path) -> list[str]:
    """The names in a folder; none if it is no folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


class ShardReader:
    """One shard, read-only. Not for several threads at once."""

    def __init__(self, root: Path, name: ShardName, path: Path | None = None) -> None:
        """`path` is for a file that lies elsewhere than its name says, such as one in quarantine."""
        self.name = name
        self._shard = str(name)
        self._path = path or path_of(root, name)
        self._connection = open_for_reading(self._path)
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._has_attachment_texts = False

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> PostroomError:
        return storage_error(error, str(self._path))

    def segments(self) -> list[int]:
        """The sizes of the segments of its index."""
        return [size for (size,) in self.query(SEGMENT_SIZES)]

    def message(self, key: str) -> ArchivedMessage | None:
        rows = self.query(f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE key = ?", (key,))
        return self.read_row(rows[0]) if rows else None

    def messages(self, row_ids: Sequence[int]) -> dict[int, ArchivedMessage]:
        """By their row ids."""
        marks = ", ".join("?" * len(row_ids))
        rows = self.query(f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id IN ({marks})", tuple(row_ids))
        return {message.row_id: message for message in map(self.read_row, rows)}

    def has_attachment_texts(self) -> bool:
        """Whether the shard can hold texts of attachments; the writer may change that at any time, but not back."""
        self._has_attachment_texts = self._has_attachment_texts or has_attachment_texts(self._connection)
        return self._has_attachment_texts

    def version(self) -> int:
        return version_of(self._connection)

    def size_indexes(self) -> list[tuple[int, str]]:
        """Those that it has, the shortest first. The writer may add the others at any time."""
        names = {name for (name,) in self.query("SELECT name FROM sqlite_schema WHERE tbl_name = 'messages'")}
        return [(least, name) for least, name in sorted(SIZE_INDEXES.items(), reverse=True) if name in names]

    def is_current(self) -> bool:
        """Whether its version and its indexes are those of a new shard."""
        return self.version() >= VERSION and len(self.size_indexes()) == len(SIZE_INDEXES)

    def read_row(self, row: Sequence[Any]) -> ArchivedMessage:
        """A row of MESSAGE_COLUMNS as a message."""
        row_id, *facts, deleted, labels = row
        deleted_at = None if deleted is None else datetime.fromisoformat(deleted)
        return archived_message(self.name.account, self._shard, row_id, facts, deleted_at, _label_names(labels))

    def raw(self, row_id: int) -> bytes:
        """The exact bytes, checked against the hash that was taken when they were stored."""
        rows = self.query(
            "SELECT raw.codec, raw.data, messages.sha256, messages.size FROM raw JOIN messages USING (id) WHERE id = ?",
            (row_id,),
        )
        if not rows:
            raise Fatal(f"{self.name} holds no bytes for message {row_id}; run `postroom verify`.")
        codec, data, sha256, size = rows[0]
        rest = unpack(Packed(codec, data))
        cuts = self._cuts(row_id) if len(rest) != size else []  # most mail has none
        return whole_message(rest, cuts, sha256, row_id, str(self.name))

    def packed(self, row_ids: Sequence[int]) -> list[tuple[Any, ...]]:
        """Row id, stored bytes and body of many messages."""
        return self.query(
            f"SELECT id, raw.codec, raw.data, messages.sha256, texts.body, {_ATTACHMENTS_IF_ANY} FROM raw "
            "JOIN messages USING (id) JOIN texts USING (id) WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(row_ids),),
        )

    def _cuts(self, row_id: int) -> list[Cut]:
        pieces = self.query(
            "SELECT position, codec, data FROM raw_pieces JOIN pieces USING (piece) WHERE id = ? ORDER BY number",
            (row_id,),
        )
        return [Cut(position, unpack(Packed(kind, piece))) for position, kind, piece in pieces]

    def attachments(self, row_id: int) -> Iterator[ArchivedAttachment]:
        for row in self.query(_ATTACHMENTS.format("?"), (row_id,)):
            yield ArchivedAttachment(*row)

    def after(self, row_id: int, bound: int | None) -> list[ArchivedMessage]:
        """The oldest few hundred messages after a row, and before `bound` if given."""
        condition = "id > ? AND (? IS NULL OR id < ?)"
        sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE {condition} ORDER BY id LIMIT {PORTION}"
        return [self.read_row(row) for row in self.query(sql, (row_id, bound, bound))]


RowPosition = tuple[int, int]
"""A row's id and its shard's part: how far a walk is, among all shards of its year."""


class _Step(NamedTuple):
    message: ArchivedMessage
    position: RowPosition


class FileArchiveReader(ArchiveReader):
    """The whole archive, read-only. Not for several threads at once; each opens its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shards: dict[ShardName, ShardReader] = {}
        self._by_text: dict[str, ShardReader] = {}

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

    def accounts(self) -> list[str]:
        return sorted({name.account for name in shards_on_disk(self.root)})

    def count(self, email: str | None = None) -> int:
        return sum(shard.query("SELECT count(*) FROM messages")[0][0] for shard in self.shards(email))

    def holding(self, email: str) -> AccountHolding:
        sql = "SELECT count(*), coalesce(sum(gmail_id IS NOT NULL AND deleted_at_source IS NULL), 0) FROM messages"
        counts = [shard.query(sql)[0] for shard in self.shards(email)]
        names = shards_on_disk(self.root, account_name(email))
        return AccountHolding(
            messages=sum(messages for messages, _ in counts),
            at_source=sum(at_source for _, at_source in counts),
            bytes=sum(path_of(self.root, name).stat().st_size for name in names),
        )

    def message(self, email: str, key: str) -> ArchivedMessage | None:
        return next((found for shard in self.shards(email) if (found := shard.message(key))), None)

    def reread(self, message: ArchivedMessage) -> ArchivedMessage | None:
        return self.shard_of(message).message(message.key)

    def find(self, wanted: str, account: str | None = None) -> ArchivedMessage:
        condition, parameters = _condition(wanted_by(wanted))
        sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE {condition} ORDER BY id LIMIT {MOST_FOUND}"
        rows = ((shard, row) for shard in self.shards(account) for row in shard.query(sql, parameters))
        return only_match(wanted, [shard.read_row(row) for shard, row in rows])

    def find_many(self, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Newest shards first, since most requested mail is new."""
        found: dict[str, ArchivedMessage] = {}
        query = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE key IN (SELECT value FROM json_each(?))"
        missing = set(keys)
        for shard in self.shards(email):
            if not missing:
                break
            for row in shard.query(query, (json.dumps(sorted(missing)),)):
                message = shard.read_row(row)
                found[message.key] = message
            missing -= found.keys()
        return found

    def raw_of(self, message: ArchivedMessage) -> bytes:
        return self.shard_of(message).raw(message.row_id)

    def _packed(self, messages: Sequence[ArchivedMessage]) -> Iterator[PackedMail]:
        for shard in dict.fromkeys(message.shard for message in messages):
            mine = {message.row_id: message for message in messages if message.shard == shard}
            for row_id, codec, data, sha256, body, listed in self.shard(parse_name(shard)).packed(list(mine)):
                attachments = [ArchivedAttachment(*each) for each in json.loads(listed)] if listed else ()
                yield PackedMail(mine[row_id], Packed(codec, data), sha256, body or "", tuple(attachments))

    def senders_of(self, message: ArchivedMessage) -> tuple[str, ...]:
        sql = (
            "SELECT address, (SELECT problems FROM messages m WHERE m.id = r.id) "
            "FROM recipients r INDEXED BY recipients_id WHERE r.id = ? AND kind = 'from'"
        )
        rows = self.shard_of(message).query(sql, (message.row_id,))
        return tuple(address for address, problems in rows if not (problems or "").startswith(UNREADABLE))

    def body_of(self, message: ArchivedMessage) -> str:
        rows = self.shard_of(message).query("SELECT body FROM texts WHERE id = ?", (message.row_id,))
        return str(rows[0][0]) if rows else ""

    def attachments_of(self, message: ArchivedMessage) -> Iterator[ArchivedAttachment]:
        return self.shard_of(message).attachments(message.row_id)

    def attachment_texts_of(self, message: ArchivedMessage) -> list[tuple[str, str]]:
        return attachment_texts.texts_in(self.shard_of(message), [message.row_id]).get(message.row_id, [])

    def waiting_attachments(
        self, email: str, after: ArchivedMessage | None, limit: int, version: int = EXTRACTOR_VERSION
    ) -> list[WaitingAttachments]:
        found: list[WaitingAttachments] = []
        last = None if after is None else parse_name(after.shard)
        for shard in self.shards(email):
            if last is not None and (shard.name.year, shard.name.part) > (last.year, last.part):
                continue
            below = after.row_id if after is not None and shard.name == last else None
            found += attachment_texts.waiting_in(shard, below, limit - len(found), version)
            if len(found) >= limit:
                break
        return found

    def coverage(self, email: str | None = None, version: int = EXTRACTOR_VERSION) -> TextCoverage:
        return added_up(attachment_texts.coverage_of(shard, version) for shard in self.shards(email))

    def index_needs_work(self, email: str) -> bool:
        return any(not shard.is_current() or is_scattered(shard.segments()) for shard in self.shards(email))

    def unindexed(
        self, state: PartState, limit: int, email: str | None = None, version: int = EXTRACTOR_VERSION
    ) -> list[UnindexedPart]:
        found: list[UnindexedPart] = []
        for shard in self.shards(email):
            found += attachment_texts.unindexed_in(shard, state, limit - len(found), version)
            if len(found) >= limit:
                break
        return found

    def walk(
        self, email: str, date_from: date, date_to: date, after: str | None, limit: int
    ) -> tuple[list[ArchivedMessage], str | None]:
        first, end = id_range(date_from, date_to)
        before = read_cursor(after) if after else (end, 0)
        steps = list(islice(self._steps(email, first, before, date_from.year, limit + 1), limit + 1))
        more = len(steps) > limit
        return [step.message for step in steps[:limit]], cursor_of(*steps[limit - 1].position) if more else None

    def newest_first(self, emails: Sequence[str] | None = None) -> Iterator[ArchivedMessage]:
        """A few hundred of each shard are held at a time."""
        accounts = None if emails is None else {account_name(email) for email in emails}
        names = [name for name in shards_on_disk(self.root) if accounts is None or name.account in accounts]
        by_year = sorted(names, key=lambda name: name.year, reverse=True)
        for _, group in groupby(by_year, key=lambda name: name.year):
            walks = [_backwards(self.shard(name), name.part) for name in group]
            yield from (step.message for step in merge(*walks, key=lambda step: step.position, reverse=True))

    def oldest_first(self, email: str | None = None) -> Iterator[ArchivedMessage]:
        for shard in reversed(list(self.shards(email))):
            last = -1
            while found := shard.after(last, None):
                yield from found
                last = found[-1].row_id

    def all_ids(self, email: str) -> Iterator[list[KnownId]]:
        query = (
            "SELECT id, gmail_id, date_ms, deleted_at_source IS NOT NULL FROM messages "
            "WHERE id > ? AND gmail_id IS NOT NULL ORDER BY id LIMIT ?"
        )
        for shard in self.shards(email):
            last = -1
            while rows := shard.query(query, (last, _IDS_AT_ONCE)):
                yield [KnownId(gmail_id, date_ms // 1_000, bool(deleted)) for _, gmail_id, date_ms, deleted in rows]
                last = rows[-1][0]

    def look_up(self, email: str, gmail_ids: Sequence[str]) -> Mapping[str, KnownId]:
        query = (
            "SELECT gmail_id, date_ms, deleted_at_source IS NOT NULL FROM messages "
            "WHERE key IN (SELECT value FROM json_each(?)) AND gmail_id IS NOT NULL"
        )
        wanted = json.dumps(list(gmail_ids))
        rows = (row for shard in self.shards(email) for row in shard.query(query, (wanted,)))
        return {gmail_id: KnownId(gmail_id, date_ms // 1_000, bool(deleted)) for gmail_id, date_ms, deleted in rows}

    def text_rows(self, email: str) -> Iterator[list[TextRow]]:
        sql = "SELECT id, sha256 FROM messages WHERE id < ? ORDER BY id DESC LIMIT ?"
        for shard in self.shards(email):
            last = LARGEST_ID
            while rows := shard.query(sql, (last, _IDS_AT_ONCE)):
                yield [TextRow(shard.name.year, shard.name.part, row_id, check_of(sha256)) for row_id, sha256 in rows]
                last = rows[-1][0]

    def texts(self, email: str, rows: Sequence[TextRow], longest: int) -> list[tuple[str, str]]:
        sql = "SELECT id, subject, substr(body, 1, ?) FROM texts WHERE id IN (SELECT value FROM json_each(?))"
        found: dict[tuple[int, int, int], tuple[str, str]] = {}
        for year, part in dict.fromkeys((row.year, row.part) for row in rows):
            ids = [row.row_id for row in rows if (row.year, row.part) == (year, part)]
            shard = self.shard(ShardName(account_name(email), year, part))
            for row_id, subject, body in shard.query(sql, (longest, json.dumps(ids))):
                found[year, part, row_id] = (subject or "", body or "")
        return [found.get((row.year, row.part, row.row_id), ("", "")) for row in rows]

    def written_to(self, email: str) -> Iterator[PersonWrittenTo]:
        sql = (
            "SELECT r.address, max(r.name), max(r.id) FROM message_labels ml JOIN labels l USING (label) "
            "JOIN recipients r ON r.id = ml.id WHERE l.name = 'SENT' AND r.kind IN ('to', 'cc', 'bcc') "
            "GROUP BY r.address"
        )
        for shard in self.shards(email):
            for address, name, row_id in shard.query(sql):
                yield PersonWrittenTo(address, name, date_of_id(row_id))

    def sent_mail(self, email: str) -> Iterator[ArchivedSentMail]:
        sql = (
            "SELECT m.message_id, m.date_ms FROM labels l JOIN message_labels ml USING (label) "
            "JOIN messages m ON m.id = ml.id WHERE l.name = 'SENT' AND m.message_id LIKE '<%>'"
        )
        for shard in self.shards(email):
            for message_id, date_ms in shard.query(sql):
                yield ArchivedSentMail(message_id, datetime.fromtimestamp(date_ms / 1_000, UTC))

    def _steps(self, email: str, first: int, before: RowPosition, first_year: int, most: int) -> Iterator[_Step]:
        names = [name for name in shards_on_disk(self.root, account_name(email)) if name.year >= first_year]
        for _, parts in groupby(reversed(names), key=lambda name: name.year):
            pages = [_page(self.shard(name), name.part, first, before, most) for name in parts]
            yield from merge(*pages, key=lambda step: step.position, reverse=True)


def portions(root: Path, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
    """Messages dated before `below` (seconds since 1970), or all, a few hundred at a time.

    No shard stays open between portions, and each shows the current state.
    """
    bound = None if below is None else first_id(below * 1_000)
    for name in shards_on_disk(root, account_name(email)):
        last = -1
        while found := _portion(ShardReader(root, name), last, bound):
            yield found
            last = found[-1].row_id


def _portion(shard: ShardReader, after: int, bound: int | None) -> list[ArchivedMessage]:
    try:
        return shard.after(after, bound)
    finally:
        shard.close()


def _condition(wanted: MessageReference) -> tuple[str, tuple[str, ...]]:
    if wanted.message_id is not None:
        return "message_id = ?", (wanted.message_id,)
    return "key >= ? AND key < ?", wanted.keys


def _backwards(shard: ShardReader, part: int) -> Iterator[_Step]:
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id < ? ORDER BY id DESC LIMIT {PORTION}"
    last = LARGEST_ID
    while rows := shard.query(sql, (last,)):
        yield from (_Step(shard.read_row(row), (row[0], part)) for row in rows)
        last = rows[-1][0]


def _page(shard: ShardReader, part: int, first: int, before: RowPosition, most: int) -> list[_Step]:
    """Rows below a position; a row of the same id in a lower part is still to come."""
    last, last_part = before
    condition = "id <= ?" if part < last_part else "id < ?"
    rows = shard.query(
        f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id >= ? AND {condition} AND gmail_id IS NOT NULL "
        "ORDER BY id DESC LIMIT ?",
        (first, last, most),
    )
    return [_Step(shard.read_row(row), (row[0], part)) for row in rows]
