"""Web sources: endpoints, discovered items, immutable evidence, backfill runs, politeness shared by processes."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    on_postgres = op.get_context().dialect.name == "postgresql"
    _content()
    _guard_evidence(on_postgres)
    _index_words(on_postgres)
    _discovery()
    _politeness()


def _content() -> None:
    op.create_table(
        "web_endpoints",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_slug", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False, comment="as the file calls it, within its source"),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False, comment="where it began when it was last looked at"),
        sa.Column("sentinel_at", Instant, comment="when the sentinel last went through it to the end"),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="web_endpoints_pkey"),
        sa.CheckConstraint("mode IN ('SITEMAP', 'ARCHIVE', 'PAGINATION')", name="mode"),
    )
    op.create_index("web_endpoints_name_idx", "web_endpoints", ["source_slug", "name"], unique=True)
    op.create_table(
        "evidence",
        sa.Column("id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False, comment="canonical; immutable"),
        sa.Column("content_hash", sa.Text, nullable=False, comment="sha256 of raw_content, in hex; immutable"),
        sa.Column("fetched_at", Instant, nullable=False, comment="immutable"),
        sa.Column("source_slug", sa.Text, nullable=False),
        sa.Column("final_url", sa.Text, comment="where redirects ended, if elsewhere"),
        sa.Column("content_type", sa.Text),
        sa.Column("etag", sa.Text),
        sa.Column("last_modified", sa.Text, comment="the header, word for word, to be sent back"),
        sa.Column("last_verified_at", Instant, nullable=False, comment="when the page last had this very content"),
        sa.Column("raw_content", sa.LargeBinary, nullable=False, comment="as it was sent; immutable"),
        sa.PrimaryKeyConstraint("id", name="evidence_pkey"),
        sa.CheckConstraint("length(content_hash) = 64", name="content_hash"),
    )
    op.create_index("evidence_source_idx", "evidence", ["source_slug", "fetched_at"])
    op.create_index("evidence_url_idx", "evidence", ["url", "content_hash"], unique=True)
    op.create_table(
        "evidence_texts",
        sa.Column("evidence_id", Id, nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("published_on", sa.Date, comment="the day that the page itself names"),
        sa.Column("language", sa.Text, comment="ISO 639-1"),
        sa.Column("extractor", sa.Text, nullable=False, comment="what read it, with its version"),
        sa.Column("problem", sa.Text, comment="why there is no text, or not all of it"),
        sa.Column("extracted_at", Instant, nullable=False),
        sa.Column("title_words", sa.Text, nullable=False, comment="folded, for search: see websources/words"),
        sa.Column("url_words", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("text_words", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("evidence_id", name="evidence_texts_pkey"),
        sa.ForeignKeyConstraint(["evidence_id"], ["evidence.id"], name="evidence_texts_evidence_id_fkey"),
    )


def _index_words(on_postgres: bool) -> None:
    """PostgreSQL indexes the words of a row as they stand; SQLite's index of words knows rows by number."""
    if on_postgres:
        words = "string_to_array(title_words || text_words || url_words, ' ')"
        op.execute(f"CREATE INDEX evidence_index_words ON evidence_texts USING gin (({words}))")
        return
    op.create_table(
        "evidence_numbers",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("evidence_id", Id, nullable=False),
        sa.PrimaryKeyConstraint("number", name="evidence_numbers_pkey"),
        sa.ForeignKeyConstraint(["evidence_id"], ["evidence.id"], name="evidence_numbers_evidence_id_fkey"),
    )
    op.create_index("evidence_numbers_evidence_idx", "evidence_numbers", ["evidence_id"], unique=True)
    op.execute(
        "CREATE VIRTUAL TABLE evidence_index "
        "USING fts5(title_words, text_words, url_words, content='', tokenize='ascii')"
    )


def _discovery() -> None:
    op.create_table(
        "backfill_runs",
        sa.Column("id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default="PENDING"),
        sa.Column("status_reason", sa.Text, comment="why it failed or was cancelled, or which cap ended it"),
        sa.Column("sources", Json, nullable=False, comment="slugs, in the order in which they are gone through"),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("date_from", Instant),
        sa.Column("date_to", Instant, comment="excluded"),
        sa.Column("max_urls", sa.Integer, nullable=False, comment="the cap of the run"),
        sa.Column("max_urls_per_source", sa.Integer, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("delay_ms", sa.Integer, nullable=False, comment="the least delay between two requests to a domain"),
        sa.Column("dry_run", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("started_at", Instant),
        sa.Column("finished_at", Instant),
        sa.Column("discovered_count", sa.Integer, nullable=False, server_default="0", comment="distinct urls found"),
        sa.Column("queued_count", sa.Integer, nullable=False, server_default="0", comment="jobs enqueued"),
        sa.Column("skipped_count", sa.Integer, nullable=False, server_default="0", comment="already existed"),
        sa.Column("error_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error_log", sa.Text, nullable=False, server_default="[]", comment="JSON array of the first errors"),
        sa.Column("run_by", sa.Text),
        sa.Column("last_processed_source", sa.Text),
        sa.Column("last_processed_page", sa.Integer),
        sa.Column("last_processed_url", sa.Text),
        sa.Column("walks", Json, nullable=False, server_default="{}", comment="how far each endpoint's walk is"),
        sa.Column("fence", sa.Integer, nullable=False, server_default="0", comment="grows with each start and resume"),
        sa.Column("heartbeat_at", Instant),
        sa.PrimaryKeyConstraint("id", name="backfill_runs_pkey"),
        sa.CheckConstraint("status IN ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED')", name="status"),
        sa.CheckConstraint("mode IN ('SITEMAP', 'ARCHIVE', 'PAGINATION')", name="mode"),
        sa.CheckConstraint("max_urls > 0 AND max_urls_per_source > 0 AND concurrency > 0", name="limits"),
        sa.CheckConstraint("discovered_count <= max_urls", name="cap"),
    )
    op.create_index("backfill_runs_status_idx", "backfill_runs", ["status", "heartbeat_at"])
    op.create_table(
        "discovered_items",
        sa.Column("id", Id, nullable=False),
        sa.Column("endpoint_id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False, comment="canonical: what tells it from others"),
        sa.Column("fetch_url", sa.Text, nullable=False, comment="as the site wrote it: what is asked for"),
        sa.Column("status", sa.Text, nullable=False, server_default="PENDING"),
        sa.Column("discovery_method", sa.Text, nullable=False),
        sa.Column("run_id", Id, comment="null: the sentinel found it"),
        sa.Column("job_key", sa.Text, nullable=False),
        sa.Column("modified_at", Instant, comment="what the site says of the page's age"),
        sa.Column("discovered_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("evidence_id", Id, comment="the newest"),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="discovered_items_pkey"),
        sa.ForeignKeyConstraint(["endpoint_id"], ["web_endpoints.id"], name="discovered_items_endpoint_id_fkey"),
        sa.ForeignKeyConstraint(["run_id"], ["backfill_runs.id"], name="discovered_items_run_id_fkey"),
        sa.ForeignKeyConstraint(["evidence_id"], ["evidence.id"], name="discovered_items_evidence_id_fkey"),
        sa.CheckConstraint("status IN ('PENDING', 'FETCHED', 'FAILED', 'SKIPPED')", name="status"),
        sa.CheckConstraint("discovery_method IN ('SENTINEL', 'BACKFILL')", name="discovery_method"),
    )
    op.create_index("discovered_items_job_key_idx", "discovered_items", ["job_key"])
    op.create_index("discovered_items_run_idx", "discovered_items", ["run_id"])
    op.create_index("discovered_items_status_idx", "discovered_items", ["status", "id"])
    op.create_index("discovered_items_url_idx", "discovered_items", ["endpoint_id", "url"], unique=True)
    op.create_table(
        "backfill_run_urls",
        sa.Column("run_id", Id, nullable=False),
        sa.Column("url_hash", sa.Text, nullable=False, comment="sha1 of the canonical url, in hex"),
        sa.PrimaryKeyConstraint("run_id", "url_hash", name="backfill_run_urls_pkey"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["backfill_runs.id"], name="backfill_run_urls_run_id_fkey", ondelete="CASCADE"
        ),
    )


def _politeness() -> None:
    op.create_table(
        "domain_pace",
        sa.Column("domain", sa.Text, nullable=False),
        sa.Column("next_allowed_at", Instant, comment="no request begins before"),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("domain", name="domain_pace_pkey"),
    )

    op.create_table(
        "domain_leases",
        sa.Column("id", Id, nullable=False),
        sa.Column("domain", sa.Text, nullable=False),
        sa.Column("expires_at", Instant, nullable=False, comment="its process died if it is still here then"),
        sa.PrimaryKeyConstraint("id", name="domain_leases_pkey"),
        sa.ForeignKeyConstraint(["domain"], ["domain_pace.domain"], name="domain_leases_domain_fkey"),
    )
    op.create_index("domain_leases_domain_idx", "domain_leases", ["domain", "expires_at"])
    op.create_table(
        "robots_cache",
        sa.Column("origin", sa.Text, nullable=False, comment="scheme, host and port"),
        sa.Column("status", sa.Integer, nullable=False, comment="of the answer; 0: there was none"),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("fetched_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("origin", name="robots_cache_pkey"),
    )

    op.create_table(
        "web_lanes",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("next_at", Instant),
        sa.PrimaryKeyConstraint("name", name="web_lanes_pkey"),
    )
    op.execute("INSERT INTO web_lanes (name) VALUES ('fetch')")


_SAME_EVIDENCE = " AND ".join(
    f"NEW.{name} = OLD.{name}" for name in ("id", "url", "content_hash", "raw_content", "fetched_at")
)


def _guard_evidence(on_postgres: bool) -> None:
    """What was fetched stays as it was fetched, also against a hand at the database."""
    if on_postgres:
        _guard_evidence_on_postgres()
    else:
        _guard_evidence_on_sqlite()


def _guard_evidence_on_postgres() -> None:
    op.execute(
        "CREATE FUNCTION evidence_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'evidence is immutable'; END $$"
    )
    op.execute(
        "CREATE TRIGGER evidence_refuse_update BEFORE UPDATE ON evidence "
        f"FOR EACH ROW WHEN (NOT ({_SAME_EVIDENCE})) EXECUTE FUNCTION evidence_refuse()"
    )
    op.execute(
        "CREATE TRIGGER evidence_refuse_delete BEFORE DELETE OR TRUNCATE ON evidence "
        "FOR EACH STATEMENT EXECUTE FUNCTION evidence_refuse()"
    )


def _guard_evidence_on_sqlite() -> None:
    """REPLACE removes rows without a word to triggers, and a row can be named by its rowid too: both are guarded."""
    op.execute(
        "CREATE TRIGGER evidence_refuse_update BEFORE UPDATE ON evidence "
        f"WHEN NOT (NEW.rowid = OLD.rowid AND {_SAME_EVIDENCE}) "
        "BEGIN SELECT RAISE(ABORT, 'evidence is immutable'); END"
    )
    op.execute(
        "CREATE TRIGGER evidence_refuse_delete BEFORE DELETE ON evidence "
        "BEGIN SELECT RAISE(ABORT, 'evidence is immutable'); END"
    )
    op.execute(
        "CREATE TRIGGER evidence_refuse_replace BEFORE INSERT ON evidence WHEN EXISTS ("
        "SELECT 1 FROM evidence "
        "WHERE rowid = NEW.rowid OR id = NEW.id OR (url = NEW.url AND content_hash = NEW.content_hash)) "
        "BEGIN SELECT RAISE(IGNORE); END"
    )
