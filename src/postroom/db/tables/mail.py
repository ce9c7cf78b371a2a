"""Mail as the Switchboard took it in, what decides its tier (contacts, sent mail, policy rules), and backfill jobs.

On PostgreSQL the jobs are `switchboard.backfill_jobs`, on SQLite, which has no schemas, `switchboard_backfill_jobs`.
Other tables name a job by its id alone: jobs are never deleted, and with two names there is nothing to point a key at.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Date, ForeignKey, Index, Integer, Table, Text, text

from postroom.db.types import Id, Instant, Json, metadata

# What triage and lists need. Raw bytes are in the archive, where `archive_key` finds them.
messages = Table(
    "messages",
    metadata,
    Column("id", Id, primary_key=True),
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="SET NULL"), comment="null: no account of ours"),
    Column("channel", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("endpoint_identity", Text, nullable=False),
    Column("external_event_id", Text, nullable=False),
    Column("external_thread_id", Text),
    Column("idempotency_key", Text, nullable=False),
    Column("direction", Text, nullable=False, server_default="inbound"),
    Column("sender_identity", Text, nullable=False),
    Column("sender_name", Text),
    Column("subject", Text),
    Column("normalized_text", Text, comment="null for the metadata tier"),
    Column("headers", Json, comment="those that triage needs"),
    Column("labels", Json),
    Column("attachments", Json, comment="names, types and sizes"),
    Column("has_attachment", Boolean, comment="as the archive found; null: it does not have the message"),
    Column("size_bytes", BigInteger, comment="of the raw message; null: not known"),
    Column("ingestion_tier", Text, nullable=False),
    Column("policy_tier", Text, nullable=False),
    Column("assignment_rule", Text),
    Column("category", Text, comment="decides how long it is kept; null: none of the known ones"),
    Column("archive_key", Text),
    Column("archive_shard", Text),
    Column("archive_sha256", Text),
    Column(
        "raw_by_ingest",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="nobody else brought it",
    ),
    Column("backfill_job_id", Id, comment="null: live mail"),
    Column("observed_at", Instant, nullable=False, comment="when the connector saw it"),
    Column("received_at", Instant, nullable=False, comment="when the mailbox received it"),
    Column("accepted_at", Instant, nullable=False, comment="when the Switchboard took it in"),
    Column("deleted_at_source", Instant, comment="since when the mailbox no longer has it"),
    CheckConstraint("direction IN ('inbound', 'outbound')", name="direction"),
    CheckConstraint("ingestion_tier IN ('full', 'metadata')", name="ingestion_tier"),
    CheckConstraint("policy_tier IN ('high_priority', 'interactive', 'default')", name="policy_tier"),
    CheckConstraint("ingestion_tier = 'full' OR normalized_text IS NULL", name="metadata_has_no_text"),
    Index("messages_idempotency_key_idx", "idempotency_key", unique=True),
    Index("messages_event_idx", "provider", "endpoint_identity", "external_event_id"),
    Index("messages_account_id_idx", "account_id", "received_at"),
    Index("messages_thread_idx", "account_id", "external_thread_id", "received_at"),
    Index("messages_received_at_idx", "received_at", "id"),
    Index("messages_accepted_at_idx", "accepted_at"),
    Index("messages_retention_idx", "ingestion_tier", "accepted_at", "id"),
    Index("messages_backfill_job_id_idx", "backfill_job_id"),
)

ingest_inbox = Table(
    "ingest_inbox",
    metadata,
    Column("request_id", Id, primary_key=True),
    Column("message_id", Id, ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("accepted_at", Instant, nullable=False),
    Column("accepted_from", Text, nullable=False, comment="the name of the caller"),
    Column("duplicates", Integer, nullable=False, server_default="0"),
    Column("last_duplicate_at", Instant),
    Column("trace_context", Json),
    Index("ingest_inbox_idempotency_key_idx", "idempotency_key", unique=True),
    Index("ingest_inbox_message_id_idx", "message_id"),
)

# What is left of mail that retention removed: the same delivery is a duplicate still.
pruned_messages = Table(
    "pruned_messages",
    metadata,
    Column("idempotency_key", Text, primary_key=True),
    Column("request_id", Id, nullable=False, comment="the one that brought it"),
    Column("backfill_job_id", Id, comment="null: live mail"),
    Column("pruned_at", Instant, nullable=False),
    Index("pruned_messages_backfill_job_id_idx", "backfill_job_id"),
)

contacts = Table(
    "contacts",
    metadata,
    Column("address", Text, primary_key=True, comment="in its compared form"),
    Column("name", Text),
    Column("source", Text, nullable=False),
    Column("kind", Text, nullable=False, server_default="person"),
    Column("added_at", Instant, nullable=False),
    Column("last_seen_at", Instant),
    Column("has_priority", Boolean, nullable=False, server_default=text("true"), comment="raises the tier of its mail"),
    CheckConstraint("source IN ('vcard', 'csv', 'sent', 'manual')", name="source"),
)

# Addresses that the owner removed: sent mail does not bring them back.
removed_contacts = Table(
    "removed_contacts",
    metadata,
    Column("address", Text, primary_key=True, comment="in its compared form"),
    Column("removed_at", Instant, nullable=False),
)

# Which mailbox a contact has to do with: written to from it, or wrote to it, or imported for it.
contact_mailboxes = Table(
    "contact_mailboxes",
    metadata,
    Column("mailbox", Text, primary_key=True),
    Column("address", Text, primary_key=True, comment="in its compared form"),
)

# Senders whose mail the owner put into a category, or into none.
category_corrections = Table(
    "category_corrections",
    metadata,
    Column("sender", Text, primary_key=True, comment="an address or a domain, in its compared form"),
    Column("category", Text, nullable=False, comment="the name of a category, or none"),
    Column("created_by", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
)

contact_exports = Table(
    "contact_exports",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("generated_at", Instant, nullable=False),
    Column("addresses", Integer, nullable=False),
    Column("sha256", Text, nullable=False, comment="of the sorted addresses, one a line"),
)

# The index that tells a reply to the user's own mail.
sent_messages = Table(
    "sent_messages",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("message_id_header", Text, primary_key=True, comment="without its angle brackets"),
    Column("sent_at", Instant),
    Column("added_at", Instant, nullable=False),
)

policy_rules = Table(
    "policy_rules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("position", Integer, nullable=False, comment="the first match in this order wins"),
    Column("tier", Integer, nullable=False, comment="1 full, 2 metadata, 3 skip"),
    Column("condition", Json, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("note", Text, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("tier IN (1, 2, 3)", name="tier"),
    Index("policy_rules_position_idx", "position"),
)


STATUSES = ("pending", "active", "paused", "completed", "cancelled", "cost_capped", "error")


def _backfill_jobs(name: str, schema: str | None, dialect: str) -> Table:
    on_postgres = dialect == "postgresql"
    now = text("now()") if on_postgres else None
    return Table(
        name,
        metadata,
        Column("id", Id, primary_key=True, server_default=text("gen_random_uuid()") if on_postgres else None),
        Column("connector_type", Text, nullable=False),
        Column("endpoint_identity", Text, nullable=False),
        Column("target_categories", Json, nullable=False, server_default="[]"),
        Column("date_from", Date, nullable=False),
        Column("date_to", Date, nullable=False, comment="this day included"),
        Column("rate_limit_per_hour", Integer, nullable=False, server_default="100"),
        Column("daily_cost_cap_cents", Integer, nullable=False, server_default="500"),
        Column("status", Text, nullable=False, server_default="pending"),
        Column("cursor", Json),
        Column("rows_processed", Integer, nullable=False, server_default="0"),
        Column("rows_skipped", Integer, nullable=False, server_default="0"),
        Column("cost_spent_cents", Integer, nullable=False, server_default="0", comment="settled, rounded up"),
        Column("error", Text),
        Column("created_at", Instant, nullable=False, server_default=now),
        Column("started_at", Instant),
        Column("completed_at", Instant),
        Column("updated_at", Instant, nullable=False, server_default=now),
        Column("mode", Text, nullable=False, server_default="selective"),
        Column("includes", Json, nullable=False, server_default="[]", comment="of drafts, sent, spam, trash"),
        Column("status_reason", Text, comment="why it is not at work, in words for a person"),
        Column("spent_microdollars", BigInteger, nullable=False, server_default="0", comment="settled, exact"),
        Column("reported_cost_cents", Integer, nullable=False, server_default="0", comment="the connector's own spend"),
        Column("auto_resume", Boolean, nullable=False, server_default=text("true")),
        Column("capped_day", Date, comment="the day whose cap it reached; null: not capped"),
        Column("refused_microdollars", BigInteger, comment="what did not fit under the cap"),
        Column("fence", BigInteger, nullable=False, server_default="0", comment="grows with each lease"),
        Column("lease_holder", Text, comment="who may still report; null: nobody"),
        Column("lease_expires_at", Instant),
        Column("last_report_seq", BigInteger, comment="of this lease"),
        Column("estimate", Json),
        Column("consent_at", Instant),
        Column("consent_by", Text),
        Column("uses_model", Boolean, nullable=False, server_default=text("true"), comment="false: rules decide alone"),
        Column("walked_at", Instant, comment="since when all of its mail is in, and only decisions are missing"),
        Column(
            "category_from",
            Json,
            nullable=False,
            server_default="{}",
            comment="the first day of a category that begins later than the job",
        ),
        Column("turn_ends_at", Instant, comment="of an active job; of a pending one: it gave up its turn then"),
        CheckConstraint(f"status IN {STATUSES}", name="status"),
        CheckConstraint("mode IN ('selective', 'background')", name="mode"),
        CheckConstraint("date_from <= date_to", name="dates"),
        CheckConstraint("rate_limit_per_hour > 0 AND daily_cost_cap_cents > 0", name="limits"),
        Index("idx_backfill_jobs_status", "status"),
        Index("idx_backfill_jobs_connector", "connector_type", "endpoint_identity"),
        schema=schema,
        info={"only": dialect},
    )


# By the name of the dialect: `BACKFILL_JOBS[tx.dialect]`.
BACKFILL_JOBS = {
    "sqlite": _backfill_jobs("switchboard_backfill_jobs", None, "sqlite"),
    "postgresql": _backfill_jobs("backfill_jobs", "switchboard", "postgresql"),
}

# A job's money of each day: what calls under way reserved, what calls cost, and what its connector says it spent
# itself. Together they never pass the job's cap, but for one report.
backfill_spend = Table(
    "backfill_spend",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("day", Date, primary_key=True, comment="of the zone that caps turn in"),
    Column("reserved_microdollars", BigInteger, nullable=False),
    Column("settled_microdollars", BigInteger, nullable=False),
    Column("reported_microdollars", BigInteger, nullable=False, server_default="0"),
)

# Mail of backfill jobs until it is decided, and live mail while it waits for money.
undecided_mail = Table(
    "undecided_mail",
    metadata,
    Column("message_id", Id, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    Column("backfill_job_id", Id, comment="null: live mail"),
    Column("queue_job_id", Id, nullable=False, comment="the job that decides it"),
    Column("state", Text, nullable=False),
    Column("since", Instant, nullable=False),
    CheckConstraint("state IN ('open', 'waiting', 'unjudged')", name="state"),
    Index("undecided_mail_backfill_job_id_idx", "backfill_job_id", "state"),
)

# What was admitted when, for the limit of any sliding hour; rows of more than an hour ago are gone.
backfill_rate = Table(
    "backfill_rate",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("at", Instant, nullable=False),
    Column("count", Integer, nullable=False),
    Index("backfill_rate_job_id_at_idx", "job_id", "at"),
)

# Searches that were saved under a name, for everyone who logs in.
saved_searches = Table(
    "saved_searches",
    metadata,
    Column("key", Text, primary_key=True, comment="the name in lower case"),
    Column("name", Text, nullable=False),
    Column("query", Text, nullable=False),
    Column("mailbox", Text, comment="null: every mailbox"),
    Column("saved_by", Text, nullable=False),
    Column("saved_at", Instant, nullable=False),
)

# Senders whose remote pictures are fetched whenever their mail is opened.
picture_senders = Table(
    "picture_senders",
    metadata,
    Column("address", Text, primary_key=True, comment="in its compared form"),
    Column("allowed_by", Text, nullable=False),
    Column("allowed_at", Instant, nullable=False),
)

# Lists that the owner left, to see whether mail still comes.
unsubscriptions = Table(
    "unsubscriptions",
    metadata,
    Column("mailbox", Text, primary_key=True),
    Column("sender", Text, primary_key=True, comment="in its compared form"),
    Column("way", Text, nullable=False),
    Column("asked_at", Instant, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("action_id", Id, comment="that asked; null: the owner opened the link"),
    CheckConstraint("way IN ('one_click', 'mail', 'link')", name="way"),
)
