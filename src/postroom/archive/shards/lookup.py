"""Finds messages in the shards: by key, key prefix or Message-ID, by id at the source, or page by page by date.

Reads only what a shard keeps beside the bytes, and headers where they are asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from heapq import merge
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from postroom.archive.layout import account_name, first_id
from postroom.archive.messages import ArchivedMessage, KnownId
from postroom.archive.shards.reader import MESSAGE_COLUMNS, ArchiveReader, ShardReader, shards_on_disk
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.mime import Attachment
from postroom.mail.parsing import ParsedMail

SHORTEST_PREFIX = 8
_SHOWN = 5
MOST_FOUND = _SHOWN + 1
_KEY = re.compile(r"[0-9A-Za-z_-]+")


class MessageReference(NamedTuple):
    """A Message-ID, or else the keys from one to before another."""

    message_id: str | None = None
    keys: tuple[str, str] = ("", "")


def find_message(archive: ArchiveReader, wanted: str, account: str | None = None) -> ArchivedMessage:
    """The one message that is meant; refuses what names none or several."""
    condition, parameters = _condition(wanted_by(wanted))
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE {condition} ORDER BY id LIMIT {MOST_FOUND}"
    rows = ((shard, row) for shard in archive.shards(account) for row in shard.query(sql, parameters))
    return only_match(wanted, [shard.read_row(row) for shard, row in rows])


def attachment_of(parsed: ParsedMail, number: int) -> Attachment:
    if not 0 <= number < len(parsed.attachments):
        count = len(parsed.attachments)
        have = f"its attachments are numbered 0 to {count - 1}" if count else "it has none"
        raise NotFound("attachment", f"the message has no attachment {number}; {have}")
    return parsed.attachments[number]


def wanted_by(text: str) -> MessageReference:
    """What a person means; refuses what can be neither."""
    if text.startswith("<") and text.endswith(">"):
        return MessageReference(message_id=text)
    if not _KEY.fullmatch(text):
        raise BadInput("id", f"{text!r} is neither a message's key nor a Message-ID in angle brackets")
    if len(text) < SHORTEST_PREFIX:
        return MessageReference(keys=(text, f"{text}-"))  # the first of all that begin with it
    return MessageReference(keys=(text, text[:-1] + chr(ord(text[-1]) + 1)))


def _condition(wanted: MessageReference) -> tuple[str, tuple[str, ...]]:
    if wanted.message_id is not None:
        return "message_id = ?", (wanted.message_id,)
    return "key >= ? AND key < ?", wanted.keys


def only_match(wanted: str, found: Sequence[ArchivedMessage]) -> ArchivedMessage:
    exact = [message for message in found if message.key == wanted]
    candidates = exact or found
    if not candidates:
        hint = (
            "" if len(wanted) >= SHORTEST_PREFIX else f" (a beginning must have {SHORTEST_PREFIX} characters or more)"
        )
        raise NotFound("id", f"the archive has no message {wanted}{hint}")
    if len(candidates) > 1:
        names = ", ".join(f"{message.key} ({message.account})" for message in candidates[:_SHOWN])
        raise BadInput("id", f"{wanted} is several messages: {names}; write more of the key, or use --account")
    return candidates[0]


_AT_ONCE = 1_000


def all_ids(reader: ArchiveReader, email: str) -> Iterator[list[KnownId]]:
    """Every message of the account that has a Gmail id, in portions."""
    query = (
        "SELECT id, gmail_id, date_ms, deleted_at_source IS NOT NULL FROM messages "
        "WHERE id > ? AND gmail_id IS NOT NULL ORDER BY id LIMIT ?"
    )
    for shard in reader.shards(email):
        last = -1
        while rows := shard.query(query, (last, _AT_ONCE)):
            yield [KnownId(gmail_id, date_ms // 1_000, bool(deleted)) for _, gmail_id, date_ms, deleted in rows]
            last = rows[-1][0]


def look_up(reader: ArchiveReader, email: str, gmail_ids: Sequence[str]) -> Mapping[str, KnownId]:
    """Those of the ids that the archive has."""
    query = (
        "SELECT gmail_id, date_ms, deleted_at_source IS NOT NULL FROM messages "
        "WHERE key IN (SELECT value FROM json_each(?)) AND gmail_id IS NOT NULL"
    )
    wanted = json.dumps(list(gmail_ids))
    rows = (row for shard in reader.shards(email) for row in shard.query(query, (wanted,)))
    return {gmail_id: KnownId(gmail_id, date_ms // 1_000, bool(deleted)) for gmail_id, date_ms, deleted in rows}


PORTION = 500
_DAY_MS = 86_400_000
Place = tuple[int, int]
"""A row's id and its shard's part: where a walk is, among all shards of its year."""


@dataclass(frozen=True, slots=True)
class _Step:
    message: ArchivedMessage
    place: Place


def find_many(archive: ArchiveReader, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
    """Those of the keys that the archive has. Newest shards are asked first; most mail that is asked for is new."""
    found: dict[str, ArchivedMessage] = {}
    query = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE key IN (SELECT value FROM json_each(?))"
    missing = set(keys)
    for shard in archive.shards(email):
        if not missing:
            break
        for row in shard.query(query, (json.dumps(sorted(missing)),)):
            message = shard.read_row(row)
            found[message.key] = message
        missing -= found.keys()
    return found


def walk(
    archive: ArchiveReader, email: str, date_from: date, date_to: date, after: str | None, limit: int
) -> tuple[list[ArchivedMessage], str | None]:
    """Messages with a Gmail id received from the first day to the last, both included, in UTC, newest first.

    `after` is the cursor that the page before ended with; the last page ends with None.
    """
    start, end = _milliseconds(date_from), _milliseconds(date_to) + _DAY_MS
    before = _read_cursor(after) if after else (first_id(end), 0)
    steps = list(islice(_steps(archive, email, first_id(start), before, date_from.year, limit + 1), limit + 1))
    more = len(steps) > limit
    return [step.message for step in steps[:limit]], _cursor(steps[limit - 1].place) if more else None


def portions(root: Path, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
    """Those dated before `below` (seconds since 1970), or all, a few hundred at a time.

    Each portion is read afresh: no shard stays open while the caller is at work, and no old state is seen.
    """
    bound = None if below is None else first_id(below * 1_000)
    for name in shards_on_disk(root, account_name(email)):
        last = -1
        while found := _portion(ShardReader(root, name), last, bound):
            yield found
            last = found[-1].row_id


def newest_first(archive: ArchiveReader, emails: Sequence[str] | None = None) -> Iterator[ArchivedMessage]:
    """All messages of these accounts, or of all, from the newest; a few hundred of each shard are held at a time."""
    accounts = None if emails is None else {account_name(email) for email in emails}
    names = [name for name in shards_on_disk(archive.root) if accounts is None or name.account in accounts]
    by_year = sorted(names, key=lambda name: name.year, reverse=True)
    for _, group in groupby(by_year, key=lambda name: name.year):
        walks = [_backwards(archive.shard(name), name.part) for name in group]
        yield from (step.message for step in merge(*walks, key=lambda step: step.place, reverse=True))


def oldest_first(archive: ArchiveReader, email: str | None = None) -> Iterator[ArchivedMessage]:
    """All messages of an account, or of one account after the other."""
    for shard in reversed(list(archive.shards(email))):
        last = -1
        while found := _next_ones(shard, last, None):
            yield from found
            last = found[-1].row_id


def _backwards(shard: ShardReader, part: int) -> Iterator[_Step]:
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id < ? ORDER BY id DESC LIMIT {PORTION}"
    last = (1 << 63) - 1
    while rows := shard.query(sql, (last,)):
        yield from (_Step(shard.read_row(row), (row[0], part)) for row in rows)
        last = rows[-1][0]


def _portion(reader: ShardReader, after: int, bound: int | None) -> list[ArchivedMessage]:
    try:
        return _next_ones(reader, after, bound)
    finally:
        reader.close()


def _next_ones(reader: ShardReader, after: int, bound: int | None) -> list[ArchivedMessage]:
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id > ? AND (? IS NULL OR id < ?) ORDER BY id LIMIT {PORTION}"
    return [reader.read_row(row) for row in reader.query(sql, (after, bound, bound))]


def _steps(
    archive: ArchiveReader, email: str, first: int, before: Place, first_year: int, most: int
) -> Iterator[_Step]:
    names = [name for name in shards_on_disk(archive.root, account_name(email)) if name.year >= first_year]
    for _, parts in groupby(reversed(names), key=lambda name: name.year):
        readers = [(name.part, archive.shard(name)) for name in parts]
        pages = [_page(shard, part, first, before, most) for part, shard in readers]
        yield from merge(*pages, key=lambda step: step.place, reverse=True)


def _page(shard: ShardReader, part: int, first: int, before: Place, most: int) -> list[_Step]:
    """Rows below the place; a row of the same id in a lower part is still to come."""
    last, last_part = before
    condition = "id <= ?" if part < last_part else "id < ?"
    rows = shard.query(
        f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id >= ? AND {condition} AND gmail_id IS NOT NULL "
        "ORDER BY id DESC LIMIT ?",
        (first, last, most),
    )
    return [_Step(shard.read_row(row), (row[0], part)) for row in rows]


def _milliseconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000)


def _cursor(place: Place) -> str:
    return f"{place[0]:x}.{place[1]}"


def _read_cursor(text: str) -> Place:
    row_id, _, part = text.partition(".")
    try:
        place = int(row_id, 16), int(part)
    except ValueError:
        raise BadInput("cursor", "is not one that this tool gave") from None
    if not (0 <= place[0] < 1 << 63 and 0 < place[1] < 1 << 31):
        raise BadInput("cursor", "is not one that this tool gave")
    return place
