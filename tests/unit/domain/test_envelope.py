"""`ingest.v1`: what is right passes, and what is wrong is refused by the name of its field."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.envelope import Envelope, IngestionTier, InlineRaw, event_key, parse_envelope
from postroom.domain.errors import BadInput
from postroom.domain.terms import Tier
from tests.support.mail import ME, envelope, inline

pytestmark = pytest.mark.req("PL-4")

ARCHIVED = {"key": "18f0000000000001", "sha256": "0" * 64}


def changed(path: str, value: Any) -> dict[str, Any]:
    """A right envelope with one thing changed."""
    whole = envelope(raw=dict(ARCHIVED), text="Hello\nthere")
    place = whole
    *steps, last = path.split(".")
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return whole


def paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


ALL = list(paths(envelope(raw=ARCHIVED)))
OBJECTS = ["source", "event", "sender", "payload", "payload.raw", "control"]
OPTIONAL = {
    "event.external_thread_id",
    "sender.display_name",
    "payload.attachments",
    "control.idempotency_key",
}


def test_an_envelope_of_each_tier_is_read() -> None:
    full = parse_envelope(envelope(raw=ARCHIVED, text="Hello\nthere", policy_tier="high_priority"))
    assert (full.control.ingestion_tier, full.control.policy_tier) == (IngestionTier.FULL, Tier.HIGH_PRIORITY)
    assert parse_envelope(envelope()).payload.raw is None
    carried = parse_envelope(envelope(raw=inline(b"Subject: x\r\n\r\n"))).payload.raw
    assert isinstance(carried, InlineRaw)
    assert carried.content == b"Subject: x\r\n\r\n"


def test_a_written_envelope_is_read_back_unchanged() -> None:
    first = parse_envelope(envelope(raw=ARCHIVED, backfill_job_id="0199A1C27E5B7ABC8DEF0123456789AB"))
    assert Envelope.model_validate_json(first.model_dump_json()) == first
    assert first.control.backfill_job_id == "0199a1c2-7e5b-7abc-8def-0123456789ab"


def test_two_deliveries_are_the_same_by_their_key_else_by_their_event() -> None:
    keyed, bare = parse_envelope(envelope("a1")), envelope("a1")
    del bare["control"]["idempotency_key"]
    assert keyed.dedupe_key == parse_envelope(bare).dedupe_key == event_key("gmail", ME, "a1") == f"gmail:{ME}:a1"
    assert parse_envelope(envelope("a1", idempotency_key="mine")).dedupe_key == "mine"


@pytest.mark.parametrize("path", ALL)
def test_a_missing_field_is_named_unless_it_is_optional(path: str) -> None:
    if path in OPTIONAL:
        parse_envelope(changed(path, ...))
        return
    with pytest.raises(BadInput) as refused:
        parse_envelope(changed(path, ...))
    assert refused.value.field == path


@pytest.mark.parametrize("place", ["", *OBJECTS])
def test_a_key_that_does_not_belong_is_named(place: str) -> None:
    path = f"{place}.surprise".lstrip(".")
    with pytest.raises(BadInput, match="is not a field") as refused:
        parse_envelope(changed(path, 1))
    assert refused.value.field == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", "ingest.v2"),
        ("source.channel", "E-Mail!"),
        ("source.endpoint_identity", ""),
        ("source.endpoint_identity", "x" * 321),
        ("event.external_event_id", "a\nb"),
        ("event.observed_at", "2026-01-01T12:00:00"),
        ("event.observed_at", 1_767_225_600),
        ("event.observed_at", "1767225600"),
        ("event.observed_at", "yesterday"),
        ("sender.identity", "\x1b[2J"),
        ("sender.display_name", "x" * 999),
        ("payload.normalized_text", "a\0b"),
        ("payload.normalized_text", "\ud800"),
        ("payload.normalized_text", "x" * 262_145),
        ("payload.raw", None),
        ("payload.raw", "text"),
        ("payload.raw", []),
        ("payload.raw.sha256", "0" * 63),
        ("payload.raw.key", "../../etc/passwd"),
        ("payload.attachments", [{"size": 1}] * 251),
        ("control.idempotency_key", ""),
        ("control.policy_tier", "urgent"),
        ("control.ingestion_tier", "partial"),
        ("control.backfill_job_id", "42"),
        ("control.trace_context", {f"k{n}": "v" for n in range(9)}),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name_and_not_repeated(path: str, value: Any) -> None:
    with pytest.raises(BadInput) as refused:
        parse_envelope(changed(path, value))
    assert refused.value.field == path
    assert len(refused.value.problem) < 300


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("payload.raw", {"base64": "not base64"}, "payload.raw.base64"),
        ("payload.raw", {"base64": ""}, "payload.raw.base64"),
        ("payload.raw", {"base64": "YQ==", "sha256": "0" * 64}, "payload.raw.sha256"),
        ("payload.attachments", [{"size": 1}, {"size": -1}], "payload.attachments.1.size"),
        ("payload.attachments", [{"size": 1, "data": "x"}], "payload.attachments.0.data"),
        ("control.trace_context", {"traceparent": 1}, "control.trace_context.traceparent"),
        ("control.trace_context", {"A B": "x"}, "control.trace_context.A B"),
    ],
)
def test_what_is_wrong_further_down_is_named_with_its_place(path: str, value: Any, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_envelope(changed(path, value))
    assert refused.value.field == field


@pytest.mark.parametrize("tier", ["full", "metadata"])
def test_raw_is_null_exactly_when_the_tier_is_metadata(tier: str) -> None:
    wrong = envelope(raw=ARCHIVED if tier == "metadata" else None)
    wrong["control"]["ingestion_tier"] = tier
    with pytest.raises(BadInput) as refused:
        parse_envelope(wrong)
    assert refused.value.field == "payload.raw"


@pytest.mark.parametrize("text", ["Subject\nand the body", "x" * 999, "one\u2028two"])
def test_a_metadata_envelope_cannot_carry_a_body_in_its_text(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_envelope(envelope(text=text))
    assert refused.value.field == "payload.normalized_text"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(path=st.sampled_from(ALL), value=JSON)
def test_a_fuzzed_field_is_read_or_refused_by_a_name_below_it(path: str, value: Any) -> None:
    whole = changed(path, value)
    before = copy.deepcopy(whole)
    try:
        read = parse_envelope(whole)
    except BadInput as refused:
        blamed = refused.field
        assert blamed.startswith(path) or (path in ("control.ingestion_tier", "payload.raw") and "payload." in blamed)
    else:
        assert parse_envelope(read.model_dump(mode="json")) == read
    assert repr(whole) == repr(before)


@given(JSON)
def test_any_json_at_all_is_refused_with_a_field(value: Any) -> None:
    with pytest.raises(BadInput) as refused:
        parse_envelope(value)
    assert refused.value.field
