"""The index of sent Message-IDs (PQ-3), filled from the sent mail in the archive: it tells a reply to the owner's mail.

A connector adds what it sees being sent; this adds what sync or an import has brought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from postroom.archive.place import ArchivePlace
from postroom.db import Tx
from postroom.db.tables.mail import sent_messages
from postroom.db.upsert import insert

_LONGEST_ID = 998
_ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class SentMail:
    message_id: str
    """Without its angle brackets."""
    sent_at: datetime


def sent_in_archive(place: ArchivePlace, owner: str) -> list[SentMail]:
    """The Message-IDs of the account's sent mail. Mail without one cannot be answered by reference."""
    found: dict[str, SentMail] = {}
    with place.reader() as archive:
        for mail in archive.sent_mail(owner):
            bare = mail.message_id.strip().removeprefix("<").removesuffix(">")
            if bare and len(bare) <= _LONGEST_ID:
                found[bare] = SentMail(bare, mail.sent_at)
    return list(found.values())


def missing(tx: Tx, account_id: str, sent: Sequence[SentMail]) -> list[SentMail]:
    """Those that the index does not have: mostly none, so that a look is enough."""
    known = select(sent_messages.c.message_id_header).where(sent_messages.c.account_id == account_id)
    have = {row.message_id_header for row in tx.execute(known)}
    return [mail for mail in sent if mail.message_id not in have]


def add(tx: Tx, account_id: str, sent: Sequence[SentMail], now: datetime) -> None:
    for start in range(0, len(sent), _ROWS_AT_ONCE):
        rows = [
            {
                "account_id": account_id,
                "message_id_header": mail.message_id,
                "sent_at": mail.sent_at,
                "added_at": now,
            }
            for mail in sent[start : start + _ROWS_AT_ONCE]
        ]
        tx.execute(insert(tx, sent_messages).on_conflict_do_nothing(), rows)
