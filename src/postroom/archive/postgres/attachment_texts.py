"""The texts of attachments in PostgreSQL: which attachments wait, recording what was read, and counting all parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroom.archive import coverage
from postroom.archive.postgres.connections import ArchiveSession
from postroom.archive.postgres.words import Indexed, indexed
from postroom.archive.preparing import Texts
from postroom.mail.parsing import UNREADABLE
from postroom.reading.documents import EXTRACTOR_VERSION

_ATTACHMENTS = (
    "jsonb_array_elements(m.attachments) WITH ORDINALITY AS a (facts, place) "
    "LEFT JOIN archive.readings r ON r.account = m.account AND r.id = m.id AND r.number = a.place - 1"
)
_IS_UNREADABLE = f"starts_with(coalesce(m.problems, ''), '{UNREADABLE}')"
_IS_BLANK = "(CASE WHEN octet_length(m.body) < 1000 THEN btrim(m.body, E' \\t\\r\\n') = '' ELSE false END)"
_RECORD = (
    "INSERT INTO archive.readings (account, id, number, state, version, note, text) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (account, id, number) DO UPDATE SET state = excluded.state, version = excluded.version, "
    "note = excluded.note, text = excluded.text"
)


def _waits(version: int) -> str:
    cases = " ".join(f"WHEN '{state}' THEN {before}" for state, before in coverage.read_again_before(version).items())
    return f"(r.id IS NULL OR r.version < CASE r.state {cases} ELSE 0 END)"


def waiting_in(
    session: ArchiveSession, account: int, below: int, limit: int, version: int
) -> dict[int, tuple[int, ...]]:
    """The numbers of attachments that wait, by the row ids of their messages, newest first."""
    found: dict[int, tuple[int, ...]] = {}
    while len(found) < limit and (candidates := _candidates(session, account, below, limit, version)):
        rows = session.query(
            "SELECT m.id, w.numbers FROM archive.messages m CROSS JOIN LATERAL "
            f"(SELECT array_agg(a.place - 1 ORDER BY a.place) AS numbers FROM {_ATTACHMENTS} "
            f"WHERE {_waits(version)}) w "
            "WHERE m.account = %s AND m.id = ANY(%s) AND w.numbers IS NOT NULL ORDER BY m.id DESC LIMIT %s",
            (account, candidates, limit - len(found)),
        )
        found |= {row_id: tuple(numbers) for row_id, numbers in rows}
        below = candidates[-1]
    return found


def _candidates(session: ArchiveSession, account: int, below: int, limit: int, version: int) -> list[int]:
    """The newest messages of which nothing was read yet, or something may be read again. From two indexes alone: the
    messages themselves are large, and of most nothing waits."""
    again = " OR ".join(
        f"state = '{state}' AND version < {n}" for state, n in coverage.read_again_before(version).items()
    )
    rows = session.query(
        "(SELECT e.id FROM archive.entries e WHERE e.account = %s AND e.id < %s AND e.has_attachment AND NOT EXISTS "
        "(SELECT FROM archive.readings r WHERE r.account = e.account AND r.id = e.id) ORDER BY e.id DESC LIMIT %s) "
        "UNION "
        f"(SELECT DISTINCT id FROM archive.readings WHERE account = %s AND id < %s AND ({again}) "
        "ORDER BY id DESC LIMIT %s) ORDER BY id DESC LIMIT %s",
        (account, below, limit, account, below, limit, limit),
    )
    return [row_id for (row_id,) in rows]


def record_readings(session: ArchiveSession, account: int, messages: Sequence[coverage.MessageReadings]) -> None:
    """Within a transaction that holds the account's lock. A message whose bytes are others now is left out."""
    for each in messages:
        row_id = each.message.row_id
        rows = session.query(
            "SELECT jsonb_array_length(attachments) FROM archive.messages "
            "WHERE account = %s AND id = %s AND sha256 = %s",
            (account, row_id, bytes.fromhex(each.message.sha256)),
        )
        for (count,) in rows:
            before = readings_of(session, account, row_id)
            merged = coverage.merged_readings(before, each.readings, range(count))
            if each.texts is not None:
                merged = _indexed_with(session, account, row_id, each.texts, before, merged)
            write_readings(session, account, row_id, merged)


def write_readings(
    session: ArchiveSession, account: int, row_id: int, readings: Mapping[int, coverage.AttachmentReading]
) -> None:
    session.many(
        _RECORD,
        [
            (account, row_id, number, reading.state, reading.version, reading.note, reading.text)
            for number, reading in readings.items()
        ],
    )


def _indexed_with(
    session: ArchiveSession,
    account: int,
    row_id: int,
    texts: Texts,
    before: Mapping[int, coverage.AttachmentReading],
    readings: dict[int, coverage.AttachmentReading],
) -> dict[int, coverage.AttachmentReading]:
    """Index the message with the texts of its attachments; returns the readings, some of which may be too large."""
    if coverage.joined_text(before) == coverage.joined_text(readings):
        return readings
    entry, readings = fitting(texts, readings)
    write_index(session, account, row_id, entry)
    return readings


def write_index(session: ArchiveSession, account: int, row_id: int, entry: Indexed) -> None:
    session.query(
        "UPDATE archive.entries SET tokens = %s::tsvector, folded = %s WHERE account = %s AND id = %s",
        (entry.tokens, entry.folded, account, row_id),
    )


def fitting(
    texts: Texts, readings: dict[int, coverage.AttachmentReading]
) -> tuple[Indexed, dict[int, coverage.AttachmentReading]]:
    """The index has room for so many different words of a message: the largest attachment is left out first."""
    while not (entry := indexed(texts, coverage.joined_text(readings))).has_room:
        largest = max(readings, key=lambda number: len(readings[number].text))
        readings = {**readings, largest: coverage.too_large(readings[largest])}
    return entry, readings


def readings_of(session: ArchiveSession, account: int, row_id: int) -> dict[int, coverage.AttachmentReading]:
    """Those recorded before, in the order of the attachments."""
    rows = session.query(
        "SELECT number, state, text, note, version FROM archive.readings WHERE account = %s AND id = %s "
        "ORDER BY number",
        (account, row_id),
    )
    return {number: coverage.AttachmentReading(coverage.PartState(state), *rest) for number, state, *rest in rows}


def texts_in(session: ArchiveSession, accounts: Sequence[int], ids: Sequence[int]) -> list[tuple[Any, ...]]:
    """Account, row id, file name and text of each attachment that has some."""
    return session.query(
        "SELECT r.account, r.id, m.attachments -> r.number ->> 0, r.text FROM archive.readings r "
        "JOIN archive.messages m ON m.account = r.account AND m.id = r.id "
        "WHERE r.account = ANY(%s) AND r.id = ANY(%s) AND r.text <> '' ORDER BY r.number",
        (list(accounts), list(ids)),
    )


def coverage_of(session: ArchiveSession, account: int, version: int = EXTRACTOR_VERSION) -> coverage.TextCoverage:
    [(messages, with_text, unreadable, empty)] = session.query(
        f"SELECT count(*), count(e.id), count(e.id) FILTER (WHERE {_IS_UNREADABLE}), "
        f"count(e.id) FILTER (WHERE {_IS_BLANK} AND NOT {_IS_UNREADABLE}) FROM archive.messages m "
        "LEFT JOIN archive.entries e ON e.account = m.account AND e.id = m.id WHERE m.account = %s",
        (account,),
    )
    rows = session.query(
        f"SELECT CASE WHEN {_waits(version)} THEN '{coverage.PartState.WAITS}' ELSE r.state END, count(*) "
        f"FROM archive.messages m CROSS JOIN LATERAL {_ATTACHMENTS} "
        "WHERE m.account = %s AND m.has_attachment GROUP BY 1",
        (account,),
    )
    return coverage.TextCoverage(
        coverage.body_states(messages, with_text, unreadable, empty), {coverage.PartState(name): n for name, n in rows}
    )


def unindexed_in(
    session: ArchiveSession, account: int, state: coverage.PartState, limit: int, version: int = EXTRACTOR_VERSION
) -> list[tuple[Any, ...]]:
    """Row id, and what `UnindexedPart` has beside the message, newest first."""
    parts = [*_bodies(session, account, state, limit), *_attachments(session, account, state, limit, version)]
    return sorted(parts, key=lambda part: int(part[0]), reverse=True)[:limit]


def _bodies(session: ArchiveSession, account: int, state: coverage.PartState, limit: int) -> list[tuple[Any, ...]]:
    conditions = {
        coverage.PartState.UNREADABLE: _IS_UNREADABLE,
        coverage.PartState.EMPTY: f"{_IS_BLANK} AND NOT {_IS_UNREADABLE}",
        coverage.PartState.WAITS: (
            "NOT EXISTS (SELECT 1 FROM archive.entries e WHERE e.account = m.account AND e.id = m.id)"
        ),
    }
    if state not in conditions:
        return []
    rows = session.query(
        "SELECT m.id, coalesce(m.problems, '') FROM archive.messages m "
        f"WHERE m.account = %s AND {conditions[state]} ORDER BY m.id DESC LIMIT %s",
        (account, limit),
    )
    return [(row_id, coverage.PartKind.BODY, None, "", state, problems) for row_id, problems in rows]


def _attachments(
    session: ArchiveSession, account: int, state: coverage.PartState, limit: int, version: int
) -> list[tuple[Any, ...]]:
    waits = _waits(version)
    condition = waits if state is coverage.PartState.WAITS else f"r.state = '{state}' AND NOT {waits}"
    rows = session.query(
        "SELECT m.id, a.place - 1, a.facts ->> 0, coalesce(r.note, '') FROM archive.messages m "
        f"CROSS JOIN LATERAL {_ATTACHMENTS} WHERE m.account = %s AND m.has_attachment AND {condition} "
        "ORDER BY m.id DESC, a.place LIMIT %s",
        (account, limit),
    )
    return [(row_id, coverage.PartKind.ATTACHMENT, number, name, state, note) for row_id, number, name, note in rows]
