"""Accounts at mail providers, their granted quota, and how far each account's mail has been brought into the archive.

Times of mail are seconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text

from postroom.db.types import Id, Instant, metadata

accounts = Table(
    "accounts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("email", Text, nullable=False, comment="in lower case"),
    Column("api_base", Text, nullable=False),
    Column("quota_profile", Text, comment="null: not known"),
    Column("scopes", Text, nullable=False, comment="separated by spaces; empty: not known"),
    Column("status", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("last_checked_at", Instant),
    Column("last_error", Text),
    Column("login_ended_at", Instant, comment="null: the login is good, as far as is known"),
    Column("login_notice", Text, comment="the message in Discord that says that the login has ended; null: none"),
    Column("display_name", Text, comment="of its owner, in mail that is sent; null: none"),
    CheckConstraint("provider IN ('gmail', 'imap')", name="provider"),
    CheckConstraint("status IN ('active', 'failing', 'removed')", name="status"),
    CheckConstraint("quota_profile IN ('legacy', '2026')", name="quota_profile"),
    Index("accounts_provider_email_idx", "provider", "email", unique=True),
)

# Mailboxes that have mail in the archive but no account, such as those of imported mail. An account that is added for
# one takes over its id, and so everything that is recorded under it.
archived_mailboxes = Table(
    "archived_mailboxes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("email", Text, nullable=False, comment="in lower case"),
    Column("created_at", Instant, nullable=False),
    Index("archived_mailboxes_email_idx", "email", unique=True),
)

# A ledger with a running total: what was spent between two moments is the difference of two rows, however many lie
# between. Within an account, `granted_at` never goes back as `total` grows.
quota_grants = Table(
    "quota_grants",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("total", BigInteger, primary_key=True, autoincrement=False, comment="units granted so far, this included"),
    Column("urgent_total", BigInteger, nullable=False, comment="the same, of urgent lanes only"),
    Column("granted_at", Instant, nullable=False),
    Column("units", Integer, nullable=False),
    Column("lane", Integer, nullable=False),
    Index("quota_grants_granted_at_idx", "account_id", "granted_at"),
)

# Messages that could not be fetched, read or ingested, of every lane. They are retried and hold up no other message.
troubled_messages = Table(
    "troubled_messages",
    metadata,
    Column("account_id", Id, primary_key=True, comment="of an account or of an archived mailbox"),
    Column("message_key", Text, primary_key=True, comment="its id at the source; its archive key where it has none"),
    Column("lane", Text, nullable=False, comment="in which it first gave trouble"),
    Column("kind", Text, nullable=False),
    Column("archived", Boolean, nullable=False, comment="its exact bytes are in the archive"),
    Column("reason", Text, nullable=False),
    Column("first_seen", Instant, nullable=False),
    Column("last_tried", Instant, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("reader_version", Integer, nullable=False, comment="of the code that could not read it"),
    CheckConstraint("lane IN ('live', 'backfill', 'on demand', 'sync', 'import')", name="lane"),
    CheckConstraint("kind IN ('fetch', 'read', 'intake')", name="kind"),
)


# One reader per account: the process with the lease on `changes` reads them and moves the cursor. The other
# duty, `walk`, is that of a sync beside a connector: it brings old mail and leaves the changes to the connector.
history_cursors = Table(
    "history_cursors",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("duty", Text, primary_key=True),
    Column("history_id", Text, comment="null: nobody has read one yet"),
    Column("holder", Text, comment="who reads now, in words for a person"),
    Column("fence", Integer, nullable=False, comment="raised with each change of holder"),
    Column("lease_expires_at", Instant),
    Column("updated_at", Instant, nullable=False),
    Column("moved_at", Instant, comment="when everything up to the cursor was last known to be in"),
    Column(
        "unfinished", Integer, nullable=False, server_default="0", comment="how often it was claimed since it moved"
    ),
    Column("seen_at", Instant, comment="when all changes up to then were last known to be in"),
    Column("epoch", Integer, nullable=False, server_default="0", comment="raised where the history broke"),
    CheckConstraint("duty IN ('changes', 'walk')", name="duty"),
)

# What a mailbox's history no longer reports and what is compared because of it, step by step, beside live mail. The
# row is written in the transaction that moves the cursor past the gap.
history_gaps = Table(
    "history_gaps",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("step", Integer, nullable=False, comment="raised with each step, which must name it"),
    Column("since_s", BigInteger, nullable=False, comment="mail received from then on is to be taken in"),
    Column("stage", Text, nullable=False),
    Column("before_s", BigInteger, comment="what was received then or later is done; null: nothing is"),
    Column("mark", Text, comment="where in the current stretch the stage has come to"),
    Column("opened_at", Instant, nullable=False),
    CheckConstraint("stage IN ('arrivals', 'labels', 'older')", name="stage"),
)

sync_states = Table(
    "sync_states",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("walk", Integer, nullable=False, comment="1 is the first sync; an expired history id begins another"),
    Column("walk_started_at", Instant, nullable=False),
    Column("walked_at", Instant, comment="null while the walk is under way"),
    Column("compared_walk", Integer, nullable=False, comment="the last walk whose labels and deletions were compared"),
    Column("granularity", Text, nullable=False),
    Column("until", BigInteger, nullable=False, comment="where the newest slice with an end has its end"),
    Column("frontier", BigInteger, nullable=False, comment="all slices of this walk that end at or before it are done"),
    Column("watermark", BigInteger, nullable=False, comment="the largest frontier of any walk; never goes back"),
    Column("counters", Text, nullable=False, comment="JSON"),
    Column("updated_at", Instant, nullable=False),
    Column("progress", Text, comment="JSON; null: nothing was counted yet"),
    CheckConstraint("granularity IN ('day', 'week', 'month')", name="granularity"),
)

# The slices from the frontier on; those below it are gone, the frontier speaks for them.
sync_slices = Table(
    "sync_slices",
    metadata,
    Column("account_id", Id, ForeignKey("sync_states.account_id", ondelete="CASCADE"), primary_key=True),
    Column("start_s", BigInteger, primary_key=True, autoincrement=False),
    Column("end_s", BigInteger, comment="null: has no end, and so moves no frontier"),
    Column("state", Text, nullable=False),
    Column("messages", Integer, nullable=False, comment="as listed"),
    Column("listed_at", Instant, comment="null: before this was recorded, or not yet"),
    Column("epoch", Integer, comment="of the history, as it was listed"),
    CheckConstraint("state IN ('open', 'done')", name="state"),
)

sync_alerts = Table(
    "sync_alerts",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("condition", Text, primary_key=True),
    Column("level", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("raised_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    Column("last_told_at", Instant, comment="null: nobody was told"),
    Column("cleared_at", Instant),
    CheckConstraint("level IN ('warning', 'critical')", name="level"),
)

# The labels as they were last seen at the source: so that a label that gets another name is known by its id. One that
# has several names here is being renamed, or was when a process died.
sync_labels = Table(
    "sync_labels",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("label_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
)

# How the last messages went, for the share of bad ones; kept over restarts, since many runs bring only a few.
sync_windows = Table(
    "sync_windows",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("outcomes", Text, nullable=False, comment="JSON: [messages, bad ones of them], oldest first"),
    Column("updated_at", Instant, nullable=False),
)


# Where the messages of an IMAP mailbox lie. The server names places, which it may name anew; a message is known by the
# hash of its bytes. What changed is a journal, from which the account's changes are read as Gmail's are from history.
mailbox_journals = Table(
    "mailbox_journals",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("epoch", Text, nullable=False, comment="part of every cursor; another journal has another"),
    Column("generation", BigInteger, nullable=False, comment="raised with every change"),
    Column("entries", BigInteger, nullable=False, comment="how many were written"),
    Column("floor", BigInteger, nullable=False, comment="changes up to this generation are forgotten"),
    Column("keywords", Text, nullable=False, comment="that messages have or had, separated by spaces"),
)

mailbox_folders = Table(
    "mailbox_folders",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("folder_id", Text, primary_key=True, comment="stays when the folder is renamed"),
    Column("wire_name", Text, nullable=False, comment="as the server writes it"),
    Column("delimiter", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("uidvalidity", BigInteger, nullable=False, comment="0: it was never looked into"),
    Column("uidnext", BigInteger, nullable=False),
    Column("modseq", BigInteger, comment="null: the server counts no changes"),
    Column("messages", Integer, nullable=False),
    Column("revision", Integer, nullable=False, comment="raised with every change of the row"),
    CheckConstraint(
        "role IN ('inbox', 'sent', 'drafts', 'trash', 'spam', 'archive', 'all', 'user')",
        name="role",
    ),
)

mailbox_places = Table(
    "mailbox_places",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("folder_id", Text, primary_key=True),
    Column("uidvalidity", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", BigInteger, primary_key=True, autoincrement=False),
    Column("message_id", Text, comment="the hash of its bytes; null: they were not read yet"),
    Column("flags", Text, nullable=False, comment="in small letters, separated by spaces"),
    Column("received_s", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("email_id", Text, nullable=False, comment="RFC 8474; empty: the server has none"),
    Column("header_id", Text, nullable=False, comment="its Message-ID, hashed; empty: none, or not read yet"),
    Column("provisional", Boolean, nullable=False, comment="matched without its bytes"),
    Column("seen", BigInteger, nullable=False, comment="the generation in which it was first seen"),
    Index("mailbox_places_message_idx", "account_id", "message_id"),
    Index("mailbox_places_received_idx", "account_id", "received_s"),
)

mailbox_changes = Table(
    "mailbox_changes",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("added", Text, nullable=False, comment="label ids, separated by spaces"),
    Column("removed", Text, nullable=False),
    Column("labels", Text, nullable=False, comment="all labels afterwards"),
    CheckConstraint("kind IN ('added', 'deleted', 'relabelled')", name="kind"),
    Index("mailbox_changes_generation_idx", "account_id", "generation"),
)
