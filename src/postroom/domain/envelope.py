"""`ingest.v1`: the one form in which a message reaches the Switchboard, whichever connector and lane brings it.

Strict on purpose: a key that does not belong, a text too long or a body where there must be none is refused, and the
refusal names the field.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from postroom.domain.errors import BadInput
from postroom.domain.terms import AssignmentRule, Tier
from postroom.domain.validation import problem_steps, problem_text

SCHEMA_VERSION = "ingest.v1"
MOST_ENVELOPES = 100
LARGEST_RAW = 50 * 1024 * 1024
LONGEST_TEXT = 262_144
LONGEST_LINE = 998
MOST_ATTACHMENTS = 250
UNKNOWN_SENDER = "unknown"
"""The sender's identity where a message names none."""

_ARCHIVED, _INLINE = "archived", "inline"


class IngestionTier(StrEnum):
    FULL = "full"
    METADATA = "metadata"
    """Neither body nor model: the envelope alone decides."""


def _no_nul(value: object) -> object:
    if isinstance(value, str) and "\0" in value:
        raise PydanticCustomError("nul", "holds a NUL character")
    return value


def _printable(value: object) -> object:
    if isinstance(value, str) and not value.isprintable():
        raise PydanticCustomError("printable", "holds characters that cannot be printed")
    return value


def _written_instant(value: object) -> object:
    """A number is refused: seconds and milliseconds look alike."""
    if not isinstance(value, str | datetime):
        raise PydanticCustomError("instant", "must be a text such as 2026-01-31T12:00:00Z")
    if isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdigit():
        raise PydanticCustomError("instant", "is a number; write for example 2026-01-31T12:00:00Z")
    return value


def _canonical_uuid(value: object) -> object:
    """Ids are compared as texts, so there is one way to write them."""
    if not isinstance(value, str):
        return value
    try:
        return str(UUID(value))
    except ValueError:
        raise PydanticCustomError("id", "is not an id such as 0199a1c2-7e5b-7abc-8def-0123456789ab") from None


def _name(longest: int) -> Any:
    return StringConstraints(strict=True, min_length=1, max_length=longest, pattern=r"^[a-z0-9][a-z0-9_.-]*$")


def _line(longest: int, shortest: int = 1) -> Any:
    return StringConstraints(strict=True, min_length=shortest, max_length=longest)


Name = Annotated[str, _name(64)]
Identity = Annotated[str, _line(320), BeforeValidator(_printable)]
SourceId = Annotated[str, _line(256), BeforeValidator(_printable)]
Key = Annotated[str, _line(512), BeforeValidator(_printable)]
Line = Annotated[str, _line(LONGEST_LINE, 0), BeforeValidator(_no_nul)]
Text = Annotated[str, _line(LONGEST_TEXT, 0), BeforeValidator(_no_nul)]
Sha256 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")]
Instant = Annotated[AwareDatetime, BeforeValidator(_written_instant)]
JobId = Annotated[str, BeforeValidator(_canonical_uuid)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvelopeSource(_Part):
    """Where the message came from."""

    channel: Name = Field(description="the kind of channel, for example `email`")
    provider: Name = Field(description="who runs it, for example `gmail`")
    endpoint_identity: Identity = Field(description="the mailbox, by its address")


class EnvelopeEvent(_Part):
    """What happened there."""

    external_event_id: SourceId = Field(description="the source's own id of the message")
    external_thread_id: SourceId | None = Field(None, description="the source's own id of the conversation")
    observed_at: Instant = Field(description="when the source received it, with a time zone")


class EnvelopeSender(_Part):
    identity: Annotated[str, _line(LONGEST_LINE), BeforeValidator(_printable)] = Field(
        description=f"the sender's address in lower case; `{UNKNOWN_SENDER}` where the message names none"
    )
    display_name: Line | None = Field(None, description="the name beside the address")


class ArchivedRaw(_Part):
    """The message's exact bytes, as a reference into the archive (`archive.store` answers with one)."""

    key: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    sha256: Sha256 = Field(description="of the raw bytes, 64 hexadecimal digits in lower case")


class InlineRaw(_Part):
    """The message's exact bytes, here."""

    base64: Annotated[str, _line(LARGEST_RAW * 4 // 3 + 4)] = Field(description="standard base64 with padding")

    @model_validator(mode="after")
    def _decodable(self) -> InlineRaw:
        try:
            size = len(base64.b64decode(self.base64, validate=True))
        except (binascii.Error, ValueError):
            raise _problem("payload.raw.base64", "is not base64") from None
        if not 0 < size <= LARGEST_RAW:
            raise _problem("payload.raw.base64", f"holds {size:,} bytes; 1 to {LARGEST_RAW:,} are taken")
        return self

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.base64)


class EnvelopeAttachment(_Part):
    filename: Line | None = None
    content_type: Annotated[str, _line(255), BeforeValidator(_printable)] = "application/octet-stream"
    size: int = Field(ge=0, le=LARGEST_RAW, strict=True, description="in bytes")
    sha256: Sha256 | None = None


def _kind_of_raw(value: object) -> str:
    inline = "base64" in value if isinstance(value, Mapping) else isinstance(value, InlineRaw)
    return _INLINE if inline else _ARCHIVED


Raw = Annotated[
    Annotated[ArchivedRaw, Tag(_ARCHIVED)] | Annotated[InlineRaw, Tag(_INLINE)], Discriminator(_kind_of_raw)
]


class Payload(_Part):
    raw: Raw | None = Field(description="null exactly when the ingestion tier is `metadata`")
    normalized_text: Text = Field(
        description="the text for rules and model; the subject, one line, when the ingestion tier is `metadata`"
    )
    attachments: list[EnvelopeAttachment] = Field(default_factory=list, max_length=MOST_ATTACHMENTS)


class EnvelopeControl(_Part):
    idempotency_key: Key | None = Field(
        None, description="`gmail:<endpoint_identity>:<message id>` for Gmail; made from source and event if absent"
    )
    policy_tier: Tier = Field(description="how urgent it is")
    assignment_rule: AssignmentRule | None = Field(None, description="the rule that decided how urgent it is")
    ingestion_tier: IngestionTier = Field(description="`full`, or `metadata`: no body, no model")
    backfill_job_id: JobId | None = Field(None, description="the backfill job that brings it; absent: live mail")
    trace_context: dict[Name, Annotated[str, _line(1_024), BeforeValidator(_printable)]] | None = Field(
        None, max_length=8, description="W3C trace context, for example `{'traceparent': '00-...'}`"
    )


class Envelope(_Part):
    schema_version: Literal["ingest.v1"]
    source: EnvelopeSource
    event: EnvelopeEvent
    sender: EnvelopeSender
    payload: Payload
    control: EnvelopeControl

    @model_validator(mode="after")
    def _body_follows_the_tier(self) -> Envelope:
        payload = self.payload
        if self.control.ingestion_tier is IngestionTier.FULL:
            if payload.raw is None:
                raise _problem("payload.raw", "must not be null when control.ingestion_tier is full")
            return self
        if payload.raw is not None:
            raise _problem("payload.raw", "must be null when control.ingestion_tier is metadata")
        if len(payload.normalized_text) > LONGEST_LINE or len(payload.normalized_text.splitlines()) > 1:
            raise _problem("payload.normalized_text", "must be one line, the subject, with ingestion tier metadata")
        return self

    @property
    def dedupe_key(self) -> str:
        """What makes two deliveries the same message. Never its content: equal words are not equal mail."""
        if self.control.idempotency_key is not None:
            return self.control.idempotency_key
        return event_key(self.source.provider, self.source.endpoint_identity, self.event.external_event_id)

    @property
    def observed_at(self) -> datetime:
        return self.event.observed_at.astimezone(UTC)


def event_key(provider: str, endpoint_identity: str, event_id: str) -> str:
    """The idempotency key of a source's message; `gmail:<endpoint_identity>:<message id>` for Gmail."""
    return f"{provider}:{endpoint_identity}:{event_id}"


def parse_envelope(value: object) -> Envelope:
    """Any JSON value as an envelope; refused with the name of the first field that is wrong."""
    try:
        return Envelope.model_validate(value)
    except ValidationError as error:
        raise field_problem(error) from None
    except (RecursionError, OverflowError):
        raise BadInput("envelope", "is nested too deeply or holds an impossible number") from None


def field_problem(error: ValidationError, whole: str = "envelope") -> BadInput:
    """The first thing that pydantic found wrong, in our words: which field, and why. Never the value itself."""
    first = error.errors(include_url=False, include_input=False)[0]
    named = first.get("ctx", {}).get("field")
    place = ".".join(step for step in problem_steps(first) if step not in (_ARCHIVED, _INLINE, "[key]"))
    return BadInput(str(named or place or whole), problem_text(first))


def _problem(field: str, problem: str) -> PydanticCustomError:
    return PydanticCustomError("envelope", "{problem}", {"field": field, "problem": problem})
