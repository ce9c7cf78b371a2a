"""The texts of attachments in one shard: which attachments wait, recording what was read, and counting all parts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from postroom.archive.coverage import (
    AttachmentReading,
    MessageReadings,
    PartKind,
    PartState,
    TextCoverage,
    UnindexedPart,
    WaitingAttachments,
    body_states,
    cut_text,
    joined_text,
    merged_readings,
    read_again_before,
)
from postroom.archive.messages import LARGEST_ID, ArchivedMessage
from postroom.archive.shards.insertion import index_with_attachments
from postroom.archive.shards.shard_file import BLANK_BODY, upgrade
from postroom.mail.parsing import UNREADABLE
from postroom.reading.documents import EXTRACTOR_VERSION

_READINGS = "LEFT JOIN readings r ON r.id = a.id AND r.number = a.number"
_IS_UNREADABLE = f"substr(coalesce(problems, ''), 1, {len(UNREADABLE)}) = '{UNREADABLE}'"


def _waits(version: int) -> str:
    cases = " ".join(f"WHEN '{state}' THEN {before}" for state, before in read_again_before(version).items())
    return f"(r.id IS NULL OR r.version < CASE r.state {cases} ELSE 0 END)"


class AskedShard(Protocol):
    """One shard, read-only."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def messages(self, row_ids: Sequence[int]) -> dict[int, ArchivedMessage]: ...

    def has_attachment_texts(self) -> bool: ...


def waiting_in(
    shard: AskedShard, below: int | None, limit: int, version: int = EXTRACTOR_VERSION
) -> list[WaitingAttachments]:
    """Messages before a row with attachments that wait, newest first."""
    has_texts = shard.has_attachment_texts()
    readings, condition = (_READINGS, _waits(version)) if has_texts else ("", "TRUE")
    rows = shard.query(
        f"SELECT a.id, group_concat(a.number) FROM attachments a {readings} WHERE a.id < ? AND {condition} "
        "GROUP BY a.id ORDER BY a.id DESC LIMIT ?",
        (LARGEST_ID if below is None else below, limit),
    )
    messages = shard.messages([row_id for row_id, _ in rows])
    return [
        WaitingAttachments(messages[row_id], tuple(sorted(int(number) for number in numbers.split(","))))
        for row_id, numbers in rows
        if row_id in messages
    ]


def record_readings(connection: sqlite3.Connection, messages: Sequence[MessageReadings]) -> None:
    """Within the writer's transaction. A message whose bytes are others now is left out: it waits again."""
    upgrade(connection)
    for each in messages:
        row_id = each.message.row_id
        numbers = [
            number
            for (number,) in connection.execute(
                "SELECT number FROM attachments JOIN messages USING (id) WHERE id = ? AND messages.sha256 = ?",
                (row_id, bytes.fromhex(each.message.sha256)),
            )
        ]
        if numbers:
            _record(connection, row_id, merged_readings(_readings(connection, row_id), each.readings, numbers))


def _record(connection: sqlite3.Connection, row_id: int, readings: Mapping[int, AttachmentReading]) -> None:
    rows = connection.execute("SELECT attachments FROM texts WHERE id = ?", (row_id,)).fetchall()
    text = joined_text(readings)
    if rows and text != (rows[0][0] or ""):
        index_with_attachments(connection, row_id, text)
    connection.executemany(
        "INSERT OR REPLACE INTO readings (id, number, state, version, note, length) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (row_id, number, reading.state, reading.version, reading.note, len(reading.text))
            for number, reading in readings.items()
        ],
    )


def _readings(connection: sqlite3.Connection, row_id: int) -> dict[int, AttachmentReading]:
    """Those recorded before, with their texts."""
    rows = connection.execute(
        "SELECT number, state, version, note, length FROM readings WHERE id = ? ORDER BY number", (row_id,)
    ).fetchall()
    if not rows:
        return {}
    [(joined,)] = connection.execute("SELECT attachments FROM texts WHERE id = ?", (row_id,)).fetchall() or [("",)]
    texts = cut_text(joined or "", [row[-1] for row in rows])
    return {
        number: AttachmentReading(PartState(state), text, note, version)
        for (number, state, version, note, _), text in zip(rows, texts, strict=True)
    }


def texts_in(shard: AskedShard, row_ids: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    """Of these messages, the file name and text of each attachment that has some."""
    if not row_ids or not shard.has_attachment_texts():
        return {}
    in_order = (
        "SELECT a.filename, r.length FROM readings r JOIN attachments a USING (id, number) WHERE r.id = texts.id "
        "ORDER BY number"
    )
    rows = shard.query(
        f"SELECT id, attachments, (SELECT json_group_array(json_array(filename, length)) FROM ({in_order})) FROM texts "
        f"WHERE id IN ({', '.join('?' * len(row_ids))}) AND attachments IS NOT NULL",
        tuple(row_ids),
    )
    return {row_id: _cut(joined, json.loads(readings)) for row_id, joined, readings in rows}


def _cut(joined: str, readings: Sequence[tuple[str, int]]) -> list[tuple[str, str]]:
    """By attachment, given by its file name and how long its text is."""
    texts = cut_text(joined, [length for _, length in readings])
    return [(name, text) for (name, _), text in zip(readings, texts, strict=True) if text]


def coverage_of(shard: AskedShard, version: int = EXTRACTOR_VERSION) -> TextCoverage:
    [(messages, with_text, unreadable, empty)] = shard.query(
        "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM texts), "
        f"(SELECT count(*) FROM messages JOIN texts USING (id) WHERE problems IS NOT NULL AND {_IS_UNREADABLE}), "
        f"(SELECT count(*) FROM texts WHERE {BLANK_BODY} AND NOT EXISTS "
        f"(SELECT 1 FROM messages WHERE messages.id = texts.id AND {_IS_UNREADABLE}))"
    )
    if shard.has_attachment_texts():
        state = f"CASE WHEN {_waits(version)} THEN '{PartState.WAITS}' ELSE r.state END"
        rows = shard.query(f"SELECT {state}, count(*) FROM attachments a {_READINGS} GROUP BY 1")
    else:
        rows = shard.query(f"SELECT '{PartState.WAITS}', count(*) FROM attachments HAVING count(*) > 0")
    attachments = {PartState(name): count for name, count in rows}
    return TextCoverage(body_states(messages, with_text, unreadable, empty), attachments)


def unindexed_in(
    shard: AskedShard, state: PartState, limit: int, version: int = EXTRACTOR_VERSION
) -> list[UnindexedPart]:
    """Parts in this state, newest first."""
    parts = [*_bodies(shard, state, limit), *_attachments(shard, state, limit, version)]
    return sorted(parts, key=lambda part: part.message.row_id, reverse=True)[:limit]


def _bodies(shard: AskedShard, state: PartState, limit: int) -> list[UnindexedPart]:
    conditions = {
        PartState.UNREADABLE: _IS_UNREADABLE,
        PartState.EMPTY: f"NOT {_IS_UNREADABLE} AND id IN (SELECT id FROM texts WHERE {BLANK_BODY})",
        PartState.WAITS: "id NOT IN (SELECT id FROM texts)",
    }
    if state not in conditions:
        return []
    sql = f"SELECT id, coalesce(problems, '') FROM messages WHERE {conditions[state]} ORDER BY id DESC LIMIT ?"
    problems = dict(shard.query(sql, (limit,)))
    messages = shard.messages(list(problems))
    return [
        UnindexedPart(message, PartKind.BODY, None, "", state, problems[row_id]) for row_id, message in messages.items()
    ]


def _attachments(shard: AskedShard, state: PartState, limit: int, version: int) -> list[UnindexedPart]:
    if not shard.has_attachment_texts():
        if state is not PartState.WAITS:
            return []
        sql = "SELECT id, number, filename, '' FROM attachments ORDER BY id DESC, number LIMIT ?"
        rows = shard.query(sql, (limit,))
    else:
        waits = _waits(version)
        condition = waits if state is PartState.WAITS else f"r.state = '{state}' AND NOT {waits}"
        rows = shard.query(
            f"SELECT a.id, a.number, a.filename, coalesce(r.note, '') FROM attachments a {_READINGS} "
            f"WHERE {condition} ORDER BY a.id DESC, a.number LIMIT ?",
            (limit,),
        )
    messages = shard.messages(list({row[0] for row in rows}))
    return [
        UnindexedPart(messages[row_id], PartKind.ATTACHMENT, number, filename, state, note)
        for row_id, number, filename, note in rows
        if row_id in messages
    ]
