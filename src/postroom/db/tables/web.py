"""Web sources: what was discovered, the evidence that was fetched, the runs that looked for it, and how politely."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)

from postroom.db.types import Id, Instant, Json, metadata

RUN_STATUSES = ("PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED")
MODES = ("SITEMAP", "ARCHIVE", "PAGINATION", "FEED", "PAGE")
ITEM_STATUSES = ("PENDING", "FETCHED", "FAILED", "SKIPPED")

EVIDENCE_INDEX = "evidence_index"
"""The index of words, which is made by hand: on SQLite a virtual table, which has tables of its own whose names begin
so; on PostgreSQL `evidence_index_words`, of the expression below, which a query has to repeat for it to be used."""
EVIDENCE_WORDS = "string_to_array(title_words || text_words || url_words, ' ')"

# Sources that were added by command, dashboard or tool, beside those of the file; and what is set for both.
web_sources = Table(
    "web_sources",
    metadata,
    Column("slug", Text, primary_key=True),
    Column("definition", Json, comment="as in the file; null: the source is in the file alone"),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("notified_at", Instant, comment="what came before was reported"),
    Column("created_by", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
)

# An endpoint gets a row here when something is first discovered through it.
web_endpoints = Table(
    "web_endpoints",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_slug", Text, nullable=False),
    Column("name", Text, nullable=False, comment="as the file calls it, within its source"),
    Column("mode", Text, nullable=False),
    Column("url", Text, nullable=False, comment="where it began when it was last looked at"),
    Column("sentinel_at", Instant, comment="when the sentinel last went through it to the end"),
    Column("created_at", Instant, nullable=False),
    Column("looked_at", Instant, comment="when the sentinel last looked, to the end or not"),
    Column("follow_since", Instant, comment="what the first listing dates before is left to a backfill"),
    Column("listed_at", Instant, comment="when the first listing was complete: from then on, unknown means new"),
    Column("behind_since", Instant, comment="the first look of those that did not reach the end; null: none is owed"),
    CheckConstraint(f"mode IN {MODES}", name="mode"),
    Index("web_endpoints_name_idx", "source_slug", "name", unique=True),
)

# Append-only in what identifies content: triggers refuse to change or remove it, and to replace a row by INSERT.
# What is large comes last, here and below: SQLite has to read past it to get to later columns.
evidence = Table(
    "evidence",
    metadata,
    Column("id", Id, primary_key=True),
    Column("url", Text, nullable=False, comment="canonical; immutable"),
    Column("content_hash", Text, nullable=False, comment="sha256 of raw_content, in hex; immutable"),
    Column("fetched_at", Instant, nullable=False, comment="immutable"),
    Column("source_slug", Text, nullable=False),
    Column("final_url", Text, comment="where redirects ended, if elsewhere"),
    Column("content_type", Text),
    Column("etag", Text),
    Column("last_modified", Text, comment="the header, word for word, to be sent back"),
    Column("last_verified_at", Instant, nullable=False, comment="when the page last had this very content"),
    Column("raw_content", LargeBinary, nullable=False, comment="as it was sent; immutable"),
    CheckConstraint("length(content_hash) = 64", name="content_hash"),
    Index("evidence_url_idx", "url", "content_hash", unique=True),
    Index("evidence_source_idx", "source_slug", "fetched_at"),
)

evidence_texts = Table(
    "evidence_texts",
    metadata,
    Column("evidence_id", Id, ForeignKey("evidence.id"), primary_key=True),
    Column("title", Text),
    Column("published_on", Date, comment="the day that the page itself names"),
    Column("language", Text, comment="ISO 639-1"),
    Column("extractor", Text, nullable=False, comment="what read it, with its version"),
    Column("problem", Text, comment="why there is no text, or not all of it"),
    Column("extracted_at", Instant, nullable=False),
    Column("title_words", Text, nullable=False, comment="folded, for search: see websources/words"),
    Column("url_words", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("text_words", Text, nullable=False),
)

# SQLite's index of words (FTS5) knows pages by number, and these numbers outlive a VACUUM.
evidence_numbers = Table(
    "evidence_numbers",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("evidence_id", Id, ForeignKey("evidence.id"), nullable=False),
    Index("evidence_numbers_evidence_idx", "evidence_id", unique=True),
    info={"only": "sqlite"},
)

backfill_runs = Table(
    "backfill_runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("status", Text, nullable=False, server_default="PENDING"),
    Column("status_reason", Text, comment="why it failed or was cancelled, or which cap ended it"),
    Column("sources", Json, nullable=False, comment="slugs, in the order in which they are gone through"),
    Column("mode", Text, nullable=False),
    Column("date_from", Instant),
    Column("date_to", Instant, comment="excluded"),
    Column("max_urls", Integer, nullable=False, comment="the cap of the run"),
    Column("max_urls_per_source", Integer, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("delay_ms", Integer, nullable=False, comment="the least delay between two requests to a domain"),
    Column("dry_run", Boolean, nullable=False, server_default=text("false")),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    Column("discovered_count", Integer, nullable=False, server_default="0", comment="distinct urls found"),
    Column("queued_count", Integer, nullable=False, server_default="0", comment="jobs enqueued"),
    Column("skipped_count", Integer, nullable=False, server_default="0", comment="already existed"),
    Column("error_count", Integer, nullable=False, server_default="0"),
    Column("error_log", Text, nullable=False, server_default="[]", comment="JSON array of the first errors"),
    Column("run_by", Text),
    Column("last_processed_source", Text),
    Column("last_processed_page", Integer),
    Column("last_processed_url", Text),
    Column("walks", Json, nullable=False, server_default="{}", comment="how far each endpoint's walk is"),
    Column("fence", Integer, nullable=False, server_default="0", comment="grows with each start and resume"),
    Column("heartbeat_at", Instant),
    CheckConstraint(f"status IN {RUN_STATUSES}", name="status"),
    CheckConstraint(f"mode IN {MODES}", name="mode"),
    CheckConstraint("max_urls > 0 AND max_urls_per_source > 0 AND concurrency > 0", name="limits"),
    CheckConstraint("discovered_count - skipped_count <= max_urls", name="cap"),
    Index("backfill_runs_status_idx", "status", "heartbeat_at"),
)

discovered_items = Table(
    "discovered_items",
    metadata,
    Column("id", Id, primary_key=True),
    Column("endpoint_id", Id, ForeignKey("web_endpoints.id"), nullable=False),
    Column("url", Text, nullable=False, comment="canonical: what tells it from others"),
    Column("fetch_url", Text, nullable=False, comment="as the site wrote it: what is asked for"),
    Column("status", Text, nullable=False, server_default="PENDING"),
    Column("discovery_method", Text, nullable=False),
    Column("run_id", Id, ForeignKey("backfill_runs.id"), comment="null: the sentinel found it"),
    Column("job_key", Text, nullable=False),
    Column("modified_at", Instant, comment="what the site says of the page's age"),
    Column("discovered_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("evidence_id", Id, ForeignKey("evidence.id"), comment="the newest"),
    Column("error", Text),
    Column("checked_at", Instant, comment="when the page was last fetched or verified"),
    Column("changed_at", Instant, comment="when it was last found to have changed"),
    Column("check_every_h", Integer, comment="hours between two checks; follows how often the page changes"),
    Column("check_at", Instant, comment="when it is due to be checked again"),
    CheckConstraint(f"status IN {ITEM_STATUSES}", name="status"),
    CheckConstraint("discovery_method IN ('SENTINEL', 'BACKFILL')", name="discovery_method"),
    Index("discovered_items_url_idx", "endpoint_id", "url", unique=True),
    Index("discovered_items_job_key_idx", "job_key"),
    Index("discovered_items_status_idx", "status", "id"),
    Index("discovered_items_endpoint_idx", "endpoint_id", "status"),
    Index("discovered_items_run_idx", "run_id"),
    Index("discovered_items_check_idx", "endpoint_id", "check_at"),
)

# The pages of lists that the sentinel reads: what to ask with, what they said, and when to read them again.
web_list_pages = Table(
    "web_list_pages",
    metadata,
    Column("endpoint_id", Id, ForeignKey("web_endpoints.id", ondelete="CASCADE"), primary_key=True),
    Column("url", Text, primary_key=True),
    Column("etag", Text),
    Column("last_modified", Text),
    Column("digest", Text, nullable=False, comment="of what it lists"),
    Column("following", Json, nullable=False, comment="the pages that it leads to"),
    Column("checked_at", Instant, nullable=False),
    Column("changed_at", Instant),
    Column("check_every_h", Integer, nullable=False),
    Column("check_at", Instant, nullable=False),
    Index("web_list_pages_check_idx", "endpoint_id", "check_at"),
)

# What was listed before its source was followed: no news, and left to a backfill.
web_older_pages = Table(
    "web_older_pages",
    metadata,
    Column("endpoint_id", Id, ForeignKey("web_endpoints.id", ondelete="CASCADE"), primary_key=True),
    Column("url_hash", Text, primary_key=True, comment="sha1 of the canonical url, in hex"),
)

# Which urls a run has counted, so that none counts twice, in whichever process and after whatever crash.
backfill_run_urls = Table(
    "backfill_run_urls",
    metadata,
    Column("run_id", Id, ForeignKey("backfill_runs.id", ondelete="CASCADE"), primary_key=True),
    Column("url_hash", Text, primary_key=True, comment="sha1 of the canonical url, in hex"),
)

# Politeness, shared by all processes.
domain_pace = Table(
    "domain_pace",
    metadata,
    Column("domain", Text, primary_key=True),
    Column("next_allowed_at", Instant, comment="no request begins before"),
    Column("updated_at", Instant, nullable=False),
)

domain_leases = Table(
    "domain_leases",
    metadata,
    Column("id", Id, primary_key=True),
    Column("domain", Text, ForeignKey("domain_pace.domain"), nullable=False),
    Column("expires_at", Instant, nullable=False, comment="its process died if it is still here then"),
    Index("domain_leases_domain_idx", "domain", "expires_at"),
)

robots_cache = Table(
    "robots_cache",
    metadata,
    Column("origin", Text, primary_key=True, comment="scheme, host and port"),
    Column("status", Integer, nullable=False, comment="of the answer; 0: there was none"),
    Column("body", Text, nullable=False),
    Column("fetched_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
)

# One row for each lane of fetch jobs: locked while jobs are added, and the time at which the next one may begin.
web_lanes = Table(
    "web_lanes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("next_at", Instant),
)
