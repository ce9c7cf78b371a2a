"""Envelopes for tests."""

from __future__ import annotations

import base64
from typing import Any

ME = "me@example.org"


def envelope(
    event_id: str = "18f0000000000001",
    *,
    identity: str = ME,
    raw: dict[str, str] | None = None,
    ingestion_tier: str = "metadata",
    policy_tier: str = "default",
    text: str = "A letter",
    observed_at: str = "2026-01-01T12:00:00Z",
    **control: Any,
) -> dict[str, Any]:
    """An envelope that is right; without `raw`, of the metadata tier."""
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "email", "provider": "gmail", "endpoint_identity": identity},
        "event": {"external_event_id": event_id, "external_thread_id": event_id, "observed_at": observed_at},
        "sender": {"identity": "ann@example.org", "display_name": "Ann"},
        "payload": {"raw": raw, "normalized_text": text, "attachments": []},
        "control": {
            "idempotency_key": f"gmail:{identity}:{event_id}",
            "policy_tier": policy_tier,
            "ingestion_tier": "full" if raw else ingestion_tier,
            **control,
        },
    }


def inline(content: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(content).decode()}
