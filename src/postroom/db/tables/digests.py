"""Digests sent to the owner, each in steps that survive a crash: the draft's id is written down before it is sent."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Date, Table, Text

from postroom.db.types import Id, Instant, metadata

digests = Table(
    "digests",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("first_day", Date, primary_key=True),
    Column("account_id", Id, nullable=False, comment="the mailbox that sends it to itself"),
    Column("state", Text, nullable=False),
    Column("draft_id", Text),
    Column("sent_message_id", Text),
    Column("reason", Text, comment="why it was not sent, or is not known to be"),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("kind IN ('day', 'week')", name="kind"),
    CheckConstraint("state IN ('composing', 'drafted', 'sending', 'sent', 'unclear', 'given_up')", name="state"),
)
