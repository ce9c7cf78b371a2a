"""Makes the summary of a message from its bytes: for mail that arrives, and for mailboxes given as bytes."""

from __future__ import annotations

from postroom.gmail.sim.mime import take_apart
from postroom.gmail.sim.model import MailSummary


def summarise(
    raw: bytes,
    *,
    message_id: str,
    thread_id: str,
    label_ids: frozenset[str],
    internal_date: int,
    category: str = "",
) -> MailSummary:
    mail = take_apart(raw)
    return MailSummary(
        id=message_id,
        thread_id=thread_id,
        label_ids=label_ids,
        internal_date=internal_date,
        sender=mail.header("from"),
        to=mail.header("to"),
        cc=mail.header("cc"),
        subject=mail.header("subject"),
        message_id=mail.header("message-id"),
        list_id=mail.header("list-id"),
        has_attachment=any(part.is_attachment for part in mail.walk()),
        size=len(raw),
        category=category,
    )
