"""The Switchboard: backfill jobs and their spend, ingested mail, connectors, tokens, the audit log, decisions."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json
from postroom.domain.ids import new_id
from postroom.mail.tier_policy import RULES

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    on_postgres = op.get_context().dialect.name == "postgresql"
    if on_postgres:
        op.execute("CREATE SCHEMA switchboard")
    _backfill_jobs(on_postgres)
    _backfill()
    _switchboard()
    _guard_audit_log(on_postgres)
    _mail()
    _seed_policy()
    _triage()


def _backfill_jobs(on_postgres: bool) -> None:
    name, schema = ("backfill_jobs", "switchboard") if on_postgres else ("switchboard_backfill_jobs", None)
    now = sa.text("now()") if on_postgres else None
    op.create_table(
        name,
        sa.Column("id", Id, nullable=False, server_default=sa.text("gen_random_uuid()") if on_postgres else None),
        sa.Column("connector_type", sa.Text, nullable=False),
        sa.Column("endpoint_identity", sa.Text, nullable=False),
        sa.Column("target_categories", Json, nullable=False, server_default="[]"),
        sa.Column("date_from", sa.Date, nullable=False),
        sa.Column("date_to", sa.Date, nullable=False, comment="this day included"),
        sa.Column("rate_limit_per_hour", sa.Integer, nullable=False, server_default="100"),
        sa.Column("daily_cost_cap_cents", sa.Integer, nullable=False, server_default="500"),
        sa.Column("status", sa.Text, nullable=False, server_default="pending"),
        sa.Column("cursor", Json),
        sa.Column("rows_processed", sa.Integer, nullable=False, server_default="0"),
        sa.Column("rows_skipped", sa.Integer, nullable=False, server_default="0"),
        sa.Column("cost_spent_cents", sa.Integer, nullable=False, server_default="0", comment="settled, rounded up"),
        sa.Column("error", sa.Text),
        sa.Column("created_at", Instant, nullable=False, server_default=now),
        sa.Column("started_at", Instant),
        sa.Column("completed_at", Instant),
        sa.Column("updated_at", Instant, nullable=False, server_default=now),
        sa.Column("mode", sa.Text, nullable=False, server_default="selective"),
        sa.Column("includes", Json, nullable=False, server_default="[]", comment="of drafts, sent, spam, trash"),
        sa.Column("status_reason", sa.Text, comment="why it is not at work, in words for a person"),
        sa.Column("spent_microdollars", sa.BigInteger, nullable=False, server_default="0", comment="settled, exact"),
        sa.Column(
            "reported_cost_cents", sa.Integer, nullable=False, server_default="0", comment="the connector's own guess"
        ),
        sa.Column("auto_resume", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("capped_day", sa.Date, comment="the day whose cap it reached; null: not capped"),
        sa.Column("refused_microdollars", sa.BigInteger, comment="what did not fit under the cap"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0", comment="grows with each lease"),
        sa.Column("lease_holder", sa.Text, comment="who may still report; null: nobody"),
        sa.Column("lease_expires_at", Instant),
        sa.Column("last_report_seq", sa.BigInteger, comment="of this lease"),
        sa.Column("estimate", Json),
        sa.Column("consent_at", Instant),
        sa.Column("consent_by", sa.Text),
        sa.PrimaryKeyConstraint("id", name=f"{name}_pkey"),
        sa.CheckConstraint(
            "status IN ('pending', 'active', 'paused', 'completed', 'cancelled', 'cost_capped', 'error')", name="status"
        ),
        sa.CheckConstraint("date_from <= date_to", name="dates"),
        sa.CheckConstraint("rate_limit_per_hour > 0 AND daily_cost_cap_cents > 0", name="limits"),
        sa.CheckConstraint("mode IN ('selective', 'background')", name="mode"),
        schema=schema,
    )
    op.create_index("idx_backfill_jobs_connector", name, ["connector_type", "endpoint_identity"], schema=schema)
    op.create_index("idx_backfill_jobs_status", name, ["status"], schema=schema)


def _switchboard() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", Id, nullable=False, comment="sorts by time"),
        sa.Column("at", Instant, nullable=False),
        sa.Column("actor_role", sa.Text, nullable=False),
        sa.Column("actor_name", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject_type", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("before", Json),
        sa.Column("after", Json),
        sa.PrimaryKeyConstraint("id", name="audit_log_pkey"),
    )
    op.create_index("audit_log_action_idx", "audit_log", ["action", "id"])
    op.create_index("audit_log_subject_idx", "audit_log", ["subject_type", "subject_id", "id"])
    op.create_table(
        "access_tokens",
        sa.Column("id", Id, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False, comment="of the token, in hex; the token itself is nowhere"),
        sa.Column("endpoint_identity", sa.Text, comment="a connector's token may be good for one mailbox only"),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("expires_at", Instant),
        sa.Column("last_used_at", Instant),
        sa.Column("revoked_at", Instant),
        sa.PrimaryKeyConstraint("id", name="access_tokens_pkey"),
        sa.CheckConstraint("role IN ('dashboard', 'connector', 'agent')", name="role"),
    )
    op.create_index("access_tokens_sha256_idx", "access_tokens", ["sha256"], unique=True)
    op.create_table(
        "connectors",
        sa.Column("connector_type", sa.Text, nullable=False),
        sa.Column("endpoint_identity", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("counters", Json, nullable=False, server_default="{}"),
        sa.Column("checkpoint", Json),
        sa.Column("capabilities", Json, nullable=False, server_default="[]"),
        sa.Column("first_seen_at", Instant, nullable=False),
        sa.Column("last_heartbeat_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("connector_type", "endpoint_identity", name="connectors_pkey"),
    )
    op.create_table(
        "switches",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Boolean, nullable=False),
        sa.Column("changed_at", Instant, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="switches_pkey"),
    )


def _backfill() -> None:
    op.create_table(
        "backfill_spend",
        sa.Column("job_id", Id, nullable=False),
        sa.Column("day", sa.Date, nullable=False, comment="of the zone that caps turn in"),
        sa.Column("reserved_microdollars", sa.BigInteger, nullable=False),
        sa.Column("settled_microdollars", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "day", name="backfill_spend_pkey"),
    )
    op.create_table(
        "backfill_reservations",
        sa.Column("job_id", Id, nullable=False),
        sa.Column("message_ref", sa.Text, nullable=False),
        sa.Column("day", sa.Date, nullable=False, comment="the day that it counts for, whenever it is settled"),
        sa.Column("amount_microdollars", sa.BigInteger, nullable=False, comment="the most that the call can cost"),
        sa.Column("settled_microdollars", sa.BigInteger, comment="what it did cost"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reserved_at", Instant, nullable=False),
        sa.Column("closed_at", Instant),
        sa.PrimaryKeyConstraint("job_id", "message_ref", name="backfill_reservations_pkey"),
        sa.CheckConstraint("state IN ('reserved', 'settled', 'released')", name="state"),
    )
    op.create_table(
        "backfill_rate",
        sa.Column("id", Id, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="backfill_rate_pkey"),
    )
    op.create_index("backfill_rate_job_id_at_idx", "backfill_rate", ["job_id", "at"])


def _mail() -> None:
    op.create_table(
        "messages",
        sa.Column("id", Id, nullable=False),
        sa.Column("account_id", Id, comment="null: no account of ours"),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("endpoint_identity", sa.Text, nullable=False),
        sa.Column("external_event_id", sa.Text, nullable=False),
        sa.Column("external_thread_id", sa.Text),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("direction", sa.Text, nullable=False, server_default="inbound"),
        sa.Column("sender_identity", sa.Text, nullable=False),
        sa.Column("sender_name", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("normalized_text", sa.Text, comment="null for the metadata tier"),
        sa.Column("headers", Json, comment="those that triage needs"),
        sa.Column("labels", Json),
        sa.Column("attachments", Json, comment="names, types and sizes"),
        sa.Column("ingestion_tier", sa.Text, nullable=False),
        sa.Column("policy_tier", sa.Text, nullable=False),
        sa.Column("assignment_rule", sa.Text),
        sa.Column("category", sa.Text, comment="decides how long it is kept; null: none of the known ones"),
        sa.Column("archive_key", sa.Text),
        sa.Column("archive_shard", sa.Text),
        sa.Column("archive_sha256", sa.Text),
        sa.Column(
            "raw_by_ingest",
            sa.Boolean,
            nullable=False,
            server_default=sa.text("false"),
            comment="nobody else brought it",
        ),
        sa.Column("backfill_job_id", Id, comment="null: live mail"),
        sa.Column("observed_at", Instant, nullable=False, comment="when the connector saw it"),
        sa.Column("received_at", Instant, nullable=False, comment="when the mailbox received it"),
        sa.Column("accepted_at", Instant, nullable=False, comment="when the Switchboard took it in"),
        sa.PrimaryKeyConstraint("id", name="messages_pkey"),
        sa.CheckConstraint("ingestion_tier IN ('full', 'metadata')", name="ingestion_tier"),
        sa.CheckConstraint("direction IN ('inbound', 'outbound')", name="direction"),
        sa.CheckConstraint("policy_tier IN ('high_priority', 'interactive', 'default')", name="policy_tier"),
        sa.CheckConstraint("ingestion_tier = 'full' OR normalized_text IS NULL", name="metadata_has_no_text"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="messages_account_id_fkey", ondelete="SET NULL"),
    )
    op.create_index("messages_account_id_idx", "messages", ["account_id", "received_at"])
    op.create_index("messages_backfill_job_id_idx", "messages", ["backfill_job_id"])
    op.create_index("messages_event_idx", "messages", ["provider", "endpoint_identity", "external_event_id"])
    op.create_index("messages_idempotency_key_idx", "messages", ["idempotency_key"], unique=True)
    op.create_index("messages_received_at_idx", "messages", ["received_at", "id"])
    op.create_index("messages_retention_idx", "messages", ["ingestion_tier", "category", "received_at"])
    op.create_table(
        "ingest_inbox",
        sa.Column("request_id", Id, nullable=False),
        sa.Column("message_id", Id, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("accepted_at", Instant, nullable=False),
        sa.Column("accepted_from", sa.Text, nullable=False, comment="the name of the caller"),
        sa.Column("duplicates", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_duplicate_at", Instant),
        sa.Column("trace_context", Json),
        sa.PrimaryKeyConstraint("request_id", name="ingest_inbox_pkey"),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name="ingest_inbox_message_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_index("ingest_inbox_idempotency_key_idx", "ingest_inbox", ["idempotency_key"], unique=True)
    op.create_index("ingest_inbox_message_id_idx", "ingest_inbox", ["message_id"])
    op.create_table(
        "contacts",
        sa.Column("address", sa.Text, nullable=False, comment="in its compared form"),
        sa.Column("name", sa.Text),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False, server_default="person"),
        sa.Column("added_at", Instant, nullable=False),
        sa.Column("last_seen_at", Instant),
        sa.PrimaryKeyConstraint("address", name="contacts_pkey"),
        sa.CheckConstraint("source IN ('vcard', 'csv', 'sent', 'manual')", name="source"),
    )
    op.create_table(
        "contact_exports",
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("generated_at", Instant, nullable=False),
        sa.Column("addresses", sa.Integer, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False, comment="of the sorted addresses, one a line"),
        sa.PrimaryKeyConstraint("version", name="contact_exports_pkey"),
    )
    op.create_table(
        "sent_messages",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("message_id_header", sa.Text, nullable=False, comment="without its angle brackets"),
        sa.Column("sent_at", Instant),
        sa.Column("added_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "message_id_header", name="sent_messages_pkey"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="sent_messages_account_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "policy_rules",
        sa.Column("id", Id, nullable=False),
        sa.Column("position", sa.Integer, nullable=False, comment="the first match in this order wins"),
        sa.Column("tier", sa.Integer, nullable=False, comment="1 full, 2 metadata, 3 skip"),
        sa.Column("condition", Json, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="policy_rules_pkey"),
        sa.CheckConstraint("tier IN (1, 2, 3)", name="tier"),
    )
    op.create_index("policy_rules_position_idx", "policy_rules", ["position"])


def _seed_policy() -> None:
    """What an installation starts with. From then on the rules are its own: nothing writes over them by itself."""
    columns = (("id", Id), ("position", sa.Integer), ("tier", sa.Integer), ("condition", Json), ("note", sa.Text))
    rules = sa.table(
        "policy_rules", *(sa.column(name, kind) for name, kind in columns), sa.column("updated_at", Instant)
    )
    now = datetime.now(UTC)
    rows = [{"id": new_id(), "position": number, **rule, "updated_at": now} for number, rule in enumerate(RULES)]
    op.bulk_insert(rules, rows)


def _triage() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", Id, nullable=False),
        sa.Column("message_id", Id, nullable=False),
        sa.Column("account_id", Id),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("parameters", Json, nullable=False, server_default="{}"),
        sa.Column("confidence", sa.Double),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("needs_review", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="decisions_pkey"),
        sa.CheckConstraint("source IN ('deterministic', 'llm', 'none')", name="source"),
        sa.ForeignKeyConstraint(["message_id"], ["messages.id"], name="decisions_message_id_fkey", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="decisions_account_id_fkey", ondelete="SET NULL"),
    )
    op.create_index("decisions_created_at_idx", "decisions", ["created_at"])
    op.create_index("decisions_message_id_idx", "decisions", ["message_id"], unique=True)
    op.create_table(
        "model_calls",
        sa.Column("id", Id, nullable=False),
        sa.Column("message_id", Id),
        sa.Column("backfill_job_id", Id),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cost_microdollars", sa.BigInteger, nullable=False),
        sa.Column("latency_ms", sa.Integer, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("simulated", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("prompt", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="model_calls_pkey"),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name="model_calls_message_id_fkey", ondelete="SET NULL"
        ),
    )
    op.create_index("model_calls_backfill_job_id_idx", "model_calls", ["backfill_job_id"])
    op.create_index("model_calls_created_at_idx", "model_calls", ["created_at"])
    op.create_index("model_calls_message_id_idx", "model_calls", ["message_id"])


def _guard_audit_log(on_postgres: bool) -> None:
    """What is written stays written, also against a program that means well."""
    if not on_postgres:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_log_refuse_{change.lower()} BEFORE {change} ON audit_log "
                "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_log_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_log_refuse()"
    )
