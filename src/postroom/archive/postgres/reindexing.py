"""Indexes messages anew that an older version has indexed, newest first, a few hundred at a time.

Only messages with words that are cut otherwise now are touched, and of them only what the index holds: a kill repeats
at most one portion, and a search that goes on meanwhile looks for the words as they were cut before, too.
"""

from __future__ import annotations

from postroom.archive.coverage import joined_text
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.postgres.attachment_texts import fitting, readings_of, write_index, write_readings
from postroom.archive.postgres.connections import ArchiveSession
from postroom.archive.postgres.reader import raw_of
from postroom.archive.preparing import prepare
from postroom.domain.errors import Fatal
from postroom.mail.query.segmenting import needs_segmenting

_AT_ONCE = 200
_NEXT = (
    "SELECT m.id, m.subject || m.sender || m.recipients::text || m.attachments::text, m.body, "
    "EXISTS (SELECT 1 FROM archive.readings r WHERE r.account = m.account AND r.id = m.id "
    "AND octet_length(r.text) > length(r.text)) "
    "FROM archive.messages m WHERE m.account = %s AND m.id < %s ORDER BY m.id DESC LIMIT %s"
)


def is_pending(session: ArchiveSession, accounts: list[int]) -> bool:
    """Whether some messages of these accounts wait to be indexed anew."""
    return bool(session.query("SELECT 1 FROM archive.reindexing WHERE account = ANY(%s) LIMIT 1", (accounts,)))


def pending_below(session: ArchiveSession, account: int) -> int:
    """Messages before this row wait; 0 if none does."""
    rows = session.query("SELECT below FROM archive.reindexing WHERE account = %s", (account,))
    return int(rows[0][0]) if rows else 0


def reindex_some(session: ArchiveSession, account: int, at_once: int = _AT_ONCE) -> bool:
    """One portion, within a transaction that holds the account's lock; returns whether some are left."""
    below = pending_below(session, account)
    rows = session.query(_NEXT, (account, below, at_once)) if below else []
    for row_id, names, body, has_foreign_attachments in rows:
        if has_foreign_attachments or needs_segmenting(names) or needs_segmenting(body):
            _reindex(session, account, row_id)
    if len(rows) < at_once:
        session.query("DELETE FROM archive.reindexing WHERE account = %s", (account,))
        return False
    session.query("UPDATE archive.reindexing SET below = %s WHERE account = %s", (rows[-1][0], account))
    return True


def _reindex(session: ArchiveSession, account: int, row_id: int) -> None:
    try:
        raw = raw_of(session, account, row_id)
    except Fatal:
        return  # a verification tells, and what the index has of it stays
    before = readings_of(session, account, row_id)
    entry, readings = fitting(prepare(IncomingMail(raw, Provenance.IMPORT)).texts, before)
    write_index(session, account, row_id, entry)
    if joined_text(readings) != joined_text(before):
        write_readings(session, account, row_id, readings)
