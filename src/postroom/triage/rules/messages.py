"""The facts of messages: of one in the control database, and of one in the archive, in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import select

from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import labels
from postroom.mail.headers import Headers
from postroom.mail.triage_headers import triage_headers
from postroom.triage.rules.facts import MailFacts, label_key, stored_facts


def facts_of_message(tx: Tx, message_id: str) -> MailFacts | None:
    """What rules may know of a message that was taken in; None if it is gone."""
    row = tx.execute(select(messages).where(messages.c.id == message_id)).one_or_none()
    if row is None:
        return None
    return stored_facts(
        account_id=row.account_id,
        sender=row.sender_identity,
        subject=row.subject,
        headers=row.headers,
        labels=row.labels,
        has_attachment=bool(row.attachments) if row.has_attachment is None else row.has_attachment,
        size_bytes=row.size_bytes,
        received_at=row.received_at,
        label_ids={} if row.account_id is None else label_ids_of(tx, row.account_id),
    )


def label_ids_of(tx: Tx, account_id: str) -> dict[str, str]:
    """The ids of an account's labels, by the compared form of their names."""
    rows = tx.execute(select(labels.c.label_id, labels.c.name).where(labels.c.account_id == account_id))
    return {label_key(row.name): row.label_id for row in rows}


def archived_facts(
    headers: Headers,
    *,
    account_id: str | None,
    subject: str,
    labels: Iterable[str],
    has_attachment: bool,
    size_bytes: int,
    received_at: datetime,
    label_ids: Mapping[str, str],
) -> MailFacts:
    """The same that would have been known of it, had it been taken in."""
    return stored_facts(
        account_id=account_id,
        sender="",
        subject=subject,
        headers=triage_headers(headers),
        labels=labels,
        has_attachment=has_attachment,
        size_bytes=size_bytes,
        received_at=received_at,
        label_ids=label_ids,
    )
