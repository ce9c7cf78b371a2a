"""Reads what is stored in PostgreSQL: a message by its key, its exact bytes, its attachments, and walks over all
mail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

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
    TextRow,
    account_name,
    check_of,
    cursor_of,
    date_of_id,
    first_id,
    id_range,
    only_match,
    read_cursor,
    wanted_by,
)
from postroom.archive.postgres import attachment_texts
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession, Rows, sayable
from postroom.archive.postgres.insertion import message_hash
from postroom.archive.postgres.schema import find_account, partition_of, partitions
from postroom.archive.preparing import Cut, Packed, unpack
from postroom.archive.reader import FACTS, PORTION, ArchiveReader, PackedMail, archived_message, whole_message
from postroom.domain.errors import Fatal
from postroom.mail.parsing import UNREADABLE
from postroom.reading.documents import EXTRACTOR_VERSION

COLUMNS = (
    f"m.account, m.id, {', '.join(f'm.{name}' for name in FACTS)}, m.deleted_at_source, "
    "(SELECT email FROM archive.accounts a WHERE a.account = m.account), "
    "ARRAY(SELECT l.name FROM archive.message_labels ml JOIN archive.labels l USING (label) "
    "WHERE ml.account = m.account AND ml.id = m.id)"
)


def read_row(row: Sequence[Any]) -> ArchivedMessage:
    """A row that begins with COLUMNS as a message."""
    (account, row_id), facts = row[:2], row[2 : 2 + len(FACTS)]
    deleted, email, labels = row[2 + len(FACTS) : 5 + len(FACTS)]
    shard = f"{email}/{partition_of(account, row_id).shown}"
    deleted_at = None if deleted is None else deleted.astimezone(UTC)
    return archived_message(email, shard, row_id, facts, deleted_at, labels)


def raw_of(session: ArchiveSession, account: int, row_id: int) -> bytes:
    """The exact bytes, checked against the hash that was taken when they were stored."""
    rows = session.query(
        "SELECT codec, data, cuts, sha256 FROM archive.messages WHERE account = %s AND id = %s", (account, row_id)
    )
    where = partition_of(account, row_id).shown
    if not rows:
        raise Fatal(f"the database holds no bytes for message {row_id} in {where}; run `postroom verify`.")
    codec, data, places, sha256 = rows[0]
    pieces = _pieces(session, account, [bytes.fromhex(piece) for _, piece in places])
    try:
        cuts = [Cut(position, unpack(pieces[bytes.fromhex(piece)])) for position, piece in places]
    except KeyError:
        raise Fatal(f"message {row_id} in {where} lacks an attachment's bytes; run `postroom verify`.") from None
    return whole_message(unpack(Packed(codec, data)), cuts, sha256, row_id, where)


def _pieces(session: ArchiveSession, account: int, hashes: Sequence[bytes]) -> dict[bytes, Packed]:
    if not hashes:
        return {}
    sql = "SELECT sha256, codec, data FROM archive.pieces WHERE account = %s AND sha256 = ANY(%s)"
    return {sha256: Packed(codec, data) for sha256, codec, data in session.query(sql, (account, list(hashes)))}


class PostgresArchiveReader(ArchiveReader):
    """Takes a connection for each call and gives it back."""

    def __init__(self, connections: ArchiveConnections) -> None:
        self._connections = connections

    def __exit__(self, *error: object) -> None:
        """It holds nothing open."""

    def accounts(self) -> list[str]:
        sql = (
            "SELECT email FROM archive.accounts a WHERE EXISTS "
            "(SELECT 1 FROM archive.partitions p WHERE p.account = a.account) ORDER BY email"
        )
        return sorted(email for (email,) in self._connections.query(sql))

    def count(self, email: str | None = None) -> int:
        sql = "SELECT count(*) FROM archive.messages WHERE account = %s"
        return sum(rows[0][0] for _, rows in self._of_accounts(email, sql))

    def holding(self, email: str) -> AccountHolding:
        sql = (
            "SELECT count(*), count(*) FILTER (WHERE gmail_id IS NOT NULL AND deleted_at_source IS NULL) "
            "FROM archive.messages WHERE account = %s"
        )
        sized = "SELECT coalesce(sum(pg_total_relation_size(relid)), 0) FROM pg_partition_tree(%s) WHERE isleaf"
        with self._connections.session() as session:
            account = find_account(session, account_name(email))
            if account is None or not partitions(session, [account]):
                return AccountHolding(0, 0, 0)
            [(messages, at_source)] = session.query(sql, (account,))
            [(size,)] = session.query(sized, (f"archive.messages_{account}",))
        return AccountHolding(messages, at_source, int(size))

    def message(self, email: str, key: str) -> ArchivedMessage | None:
        return self.find_many(email, [key]).get(key)

    def reread(self, message: ArchivedMessage) -> ArchivedMessage | None:
        return self.message(message.account, message.key)

    def find(self, wanted: str, account: str | None = None) -> ArchivedMessage:
        meant = wanted_by(wanted)
        found: list[ArchivedMessage] = []
        with self._connections.session() as session:
            for number in self._numbers(session, account):
                found += _by_ids(session, number, _meant(session, number, meant))
        return only_match(wanted, found)

    def find_many(self, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        sql = "SELECT id FROM archive.register WHERE account = %s AND key = ANY(%s)"
        with self._connections.session() as session:
            account = find_account(session, account_name(email))
            if account is None:
                return {}
            ids = [row_id for (row_id,) in session.query(sql, (account, sayable(keys)))]
            return {message.key: message for message in _by_ids(session, account, ids)}

    def raw_of(self, message: ArchivedMessage) -> bytes:
        with self._connections.session() as session:
            return raw_of(session, self._number(session, message), message.row_id)

    def _packed(self, messages: Sequence[ArchivedMessage]) -> Iterator[PackedMail]:
        columns = "id, codec, data, sha256, body, attachments"
        sql = f"SELECT {columns} FROM archive.messages WHERE account = %s AND id = ANY(%s)"
        if not messages:
            return
        mine = {message.row_id: message for message in messages}
        for _, rows in self._of_accounts(messages[0].account, sql, list(mine)):
            for row_id, codec, data, sha256, body, attachments in rows:
                packed = Packed(codec, data)
                yield PackedMail(mine[row_id], packed, sha256, body or "", tuple(_numbered(attachments)))

    def senders_of(self, message: ArchivedMessage) -> tuple[str, ...]:
        found: list[str] = []
        for recipients, problems in self._row(message, "recipients, problems"):
            if not (problems or "").startswith(UNREADABLE):
                found += [address for kind, address, _ in recipients if kind == "from"]
        return tuple(found)

    def body_of(self, message: ArchivedMessage) -> str:
        rows = self._row(message, "body")
        return str(rows[0][0]) if rows else ""

    def attachments_of(self, message: ArchivedMessage) -> Iterator[ArchivedAttachment]:
        for (attachments,) in self._row(message, "attachments"):
            yield from _numbered(attachments)

    def attachment_texts_of(self, message: ArchivedMessage) -> list[tuple[str, str]]:
        with self._connections.session() as session:
            rows = attachment_texts.texts_in(session, [self._number(session, message)], [message.row_id])
        return [(name or "", text) for _, _, name, text in rows]

    def waiting_attachments(
        self, email: str, after: ArchivedMessage | None, limit: int, version: int = EXTRACTOR_VERSION
    ) -> list[WaitingAttachments]:
        below = LARGEST_ID if after is None else after.row_id
        found: list[WaitingAttachments] = []
        with self._connections.session() as session:
            for account in self._numbers(session, email):
                waiting = attachment_texts.waiting_in(session, account, below, limit, version)
                messages = {each.row_id: each for each in _by_ids(session, account, list(waiting))}
                found += [WaitingAttachments(messages[row_id], numbers) for row_id, numbers in waiting.items()]
        return found

    def coverage(self, email: str | None = None, version: int = EXTRACTOR_VERSION) -> TextCoverage:
        with self._connections.session() as session:
            accounts = self._numbers(session, email)
            return added_up(attachment_texts.coverage_of(session, account, version) for account in accounts)

    def index_needs_work(self, email: str) -> bool:
        sql = "SELECT 1 FROM archive.reindexing JOIN archive.accounts USING (account) WHERE email = %s"
        return bool(self._connections.query(sql, (account_name(email),)))

    def unindexed(
        self, state: PartState, limit: int, email: str | None = None, version: int = EXTRACTOR_VERSION
    ) -> list[UnindexedPart]:
        found: list[UnindexedPart] = []
        with self._connections.session() as session:
            for account in self._numbers(session, email):
                rows = attachment_texts.unindexed_in(session, account, state, limit - len(found), version)
                messages = {each.row_id: each for each in _by_ids(session, account, sorted({row[0] for row in rows}))}
                found += [UnindexedPart(messages[row_id], *rest) for row_id, *rest in rows]
        return found

    def walk(
        self, email: str, date_from: date, date_to: date, after: str | None, limit: int
    ) -> tuple[list[ArchivedMessage], str | None]:
        first, end = id_range(date_from, date_to)
        below = end if after is None else min(read_cursor(after)[0], end)
        found = self._page(email, "m.id >= %s AND m.id < %s AND m.gmail_id IS NOT NULL", (first, below), limit + 1)
        more = len(found) > limit
        return found[:limit], cursor_of(found[limit - 1].row_id) if more else None

    def newest_first(self, emails: Sequence[str] | None = None) -> Iterator[ArchivedMessage]:
        accounts: Sequence[str | None] = [None] if emails is None else [account_name(email) for email in emails]
        last = (LARGEST_ID, 0)
        sql = (
            f"SELECT {COLUMNS} FROM archive.messages m WHERE m.account = ANY(%s) AND (m.id, -m.account) < (%s, %s) "
            "AND m.id <= %s ORDER BY m.id DESC, m.account LIMIT %s"
        )
        while True:
            with self._connections.session() as session:
                numbers = [number for email in accounts for number in self._numbers(session, email)]
                rows = session.query(sql, (numbers, *last, last[0], PORTION))
            if not rows:
                return
            yield from map(read_row, rows)
            last = rows[-1][1], -rows[-1][0]

    def oldest_first(self, email: str | None = None) -> Iterator[ArchivedMessage]:
        for each in self.accounts() if email is None else [email]:
            for portion in self.portions(each):
                yield from portion

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        bound = LARGEST_ID if below is None else first_id(below * 1_000)
        last = -1
        while found := self._page(email, "m.id > %s AND m.id < %s", (last, bound), PORTION, order="ASC"):
            yield found
            last = found[-1].row_id

    def all_ids(self, email: str) -> Iterator[list[KnownId]]:
        sql = (
            "SELECT id, gmail_id, date_ms, deleted_at_source IS NOT NULL FROM archive.messages "
            "WHERE account = %s AND id > %s AND gmail_id IS NOT NULL ORDER BY id LIMIT %s"
        )
        last = -1
        while rows := [row for _, found in self._of_accounts(email, sql, last, 2 * PORTION) for row in found]:
            yield [KnownId(gmail_id, date_ms // 1_000, deleted) for _, gmail_id, date_ms, deleted in rows]
            last = rows[-1][0]

    def look_up(self, email: str, gmail_ids: Sequence[str]) -> Mapping[str, KnownId]:
        sql = (
            "SELECT m.gmail_id, m.date_ms, m.deleted_at_source IS NOT NULL FROM archive.register r "
            "JOIN archive.messages m ON m.account = r.account AND m.id = r.id "
            "WHERE r.account = %s AND r.key = ANY(%s) AND m.gmail_id IS NOT NULL"
        )
        rows = [row for _, found in self._of_accounts(email, sql, list(gmail_ids)) for row in found]
        return {gmail_id: KnownId(gmail_id, date_ms // 1_000, deleted) for gmail_id, date_ms, deleted in rows}

    def text_rows(self, email: str) -> Iterator[list[TextRow]]:
        sql = (
            "SELECT id, substring(sha256 FOR 4) FROM archive.messages WHERE account = %s AND id < %s "
            "ORDER BY id DESC LIMIT %s"
        )
        last = LARGEST_ID
        while rows := [row for _, found in self._of_accounts(email, sql, last, 20 * PORTION) for row in found]:
            yield [TextRow(0, 0, row_id, check_of(sha256)) for row_id, sha256 in rows]
            last = rows[-1][0]

    def texts(self, email: str, rows: Sequence[TextRow], longest: int) -> list[tuple[str, str]]:
        sql = "SELECT id, subject, left(body, %s) FROM archive.messages WHERE account = %s AND id = ANY(%s)"
        ids = [row.row_id for row in rows]
        found: dict[int, tuple[str, str]] = {}
        with self._connections.session() as session:
            for number in self._numbers(session, email):
                for row_id, subject, body in session.query(sql, (longest, number, ids)):
                    found[row_id] = (subject or "", body or "")
        return [found.get(row.row_id, ("", "")) for row in rows]

    def written_to(self, email: str) -> Iterator[PersonWrittenTo]:
        sql = (
            "SELECT r->>1, max(r->>2), max(m.id) FROM archive.labels l JOIN archive.message_labels ml USING (label) "
            "JOIN archive.messages m ON m.account = ml.account AND m.id = ml.id, jsonb_array_elements(m.recipients) r "
            "WHERE l.account = %s AND l.name = 'SENT' AND r->>0 IN ('to', 'cc', 'bcc') GROUP BY 1"
        )
        for _, rows in self._of_accounts(email, sql):
            yield from (PersonWrittenTo(address, name, date_of_id(row_id)) for address, name, row_id in rows)

    def sent_mail(self, email: str) -> Iterator[ArchivedSentMail]:
        sql = (
            "SELECT m.message_id, m.date_ms FROM archive.labels l JOIN archive.message_labels ml USING (label) "
            "JOIN archive.messages m ON m.account = ml.account AND m.id = ml.id "
            "WHERE l.account = %s AND l.name = 'SENT' AND m.message_id LIKE '<%%>'"
        )
        for _, rows in self._of_accounts(email, sql):
            yield from (
                ArchivedSentMail(header, datetime.fromtimestamp(date_ms / 1_000, UTC)) for header, date_ms in rows
            )

    def _page(
        self, email: str, condition: str, values: Sequence[object], limit: int, order: str = "DESC"
    ) -> list[ArchivedMessage]:
        sql = f"SELECT {COLUMNS} FROM archive.messages m WHERE m.account = %s AND {condition} ORDER BY m.id {order} "
        with self._connections.session() as session:
            account = find_account(session, account_name(email))
            if account is None:
                return []
            return [read_row(row) for row in session.query(f"{sql} LIMIT %s", (account, *values, limit))]

    def _row(self, message: ArchivedMessage, column: str) -> Rows:
        number = "(SELECT account FROM archive.accounts WHERE email = %s)"
        sql = f"SELECT {column} FROM archive.messages WHERE account = {number} AND id = %s"
        with self._connections.session() as session:
            return session.query(sql, (account_name(message.account), message.row_id))

    def _of_accounts(self, email: str | None, sql: str, *values: object) -> list[tuple[int, Rows]]:
        with self._connections.session() as session:
            return [(number, session.query(sql, (number, *values))) for number in self._numbers(session, email)]

    def _numbers(self, session: ArchiveSession, email: str | None) -> list[int]:
        if email is None:
            return [number for (number,) in session.query("SELECT account FROM archive.accounts ORDER BY email")]
        found = find_account(session, account_name(email))
        return [] if found is None else [found]

    def _number(self, session: ArchiveSession, message: ArchivedMessage) -> int:
        return next(iter(self._numbers(session, message.account)), 0)


def _numbered(attachments: Iterable[Sequence[Any]]) -> Iterator[ArchivedAttachment]:
    return (ArchivedAttachment(number, *each) for number, each in enumerate(attachments))


def _by_ids(session: ArchiveSession, account: int, ids: Sequence[int]) -> list[ArchivedMessage]:
    if not ids:
        return []
    sql = f"SELECT {COLUMNS} FROM archive.messages m WHERE m.account = %s AND m.id = ANY(%s) ORDER BY m.id"
    return [read_row(row) for row in session.query(sql, (account, list(ids)))]


def _meant(session: ArchiveSession, account: int, wanted: MessageReference) -> list[int]:
    """Row ids; a Message-ID is looked for by its hash."""
    if wanted.message_id is None:
        condition, values = "key >= %s AND key < %s", list[Any](wanted.keys)
    else:
        condition, values = "message_hash = %s", [message_hash(wanted.message_id)]
    sql = f"SELECT id FROM archive.register WHERE account = %s AND {condition} ORDER BY id LIMIT %s"
    return [row_id for (row_id,) in session.query(sql, (account, *values, MOST_FOUND))]
