"""The tools of a connector: deliver mail (`ingest`, the archive, the history cursor, sent mail), show that it is
alive, and learn what it needs (tier policy, categories, contacts).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from postroom.contract.tool import (
    MOST_IDS,
    Arguments,
    ConnectorReply,
    ConnectorType,
    Cursor,
    Day,
    EndpointIdentity,
    GmailId,
    GmailIds,
    HeaderName,
    HistoryId,
    JsonObject,
    Labels,
    MessageId,
    Moment,
    RawBytes,
    Reply,
    Short,
    ToolSignature,
)
from postroom.domain.envelope import LARGEST_RAW, MOST_ENVELOPES, Envelope, Instant
from postroom.domain.errors import Fatal
from postroom.domain.validation import LONGEST_REASON

MOST_STORED = 100
MOST_HEADERS = 500
LARGEST_STORE = LARGEST_RAW
WALKED_HEADERS = ("From", "To", "Cc", "Subject", "Date", "Message-ID", "In-Reply-To", "List-Id", "List-Unsubscribe")
_LATEST_MS = 253_402_300_799_999
MailLane = Literal["live", "backfill", "on demand"]
GapStageName = Literal["arrivals", "labels", "older"]
Seconds = Annotated[int, Field(ge=0, le=_LATEST_MS // 1_000, strict=True, description="seconds since 1970")]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_REASON)]


class IngestArguments(Arguments):
    """One envelope, field by field, or several under `envelopes`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    envelopes: list[Any] | None = Field(None, min_length=1, max_length=MOST_ENVELOPES)

    @field_validator("*", mode="after")
    @classmethod
    def _storable(cls, value: object) -> object:
        """Each envelope is checked by itself, also for this: a wrong one does not affect the others."""
        return value

    @model_validator(mode="after")
    def _one_form(self) -> IngestArguments:
        if self.envelopes is not None and self.model_extra:
            field = sorted(self.model_extra)[0]
            raise PydanticCustomError("form", "does not belong beside envelopes", {"field": field})
        return self

    @classmethod
    def described(cls) -> dict[str, Any]:
        """Both forms in one flat object: some clients cannot read a choice at the top of a schema."""
        envelope = Envelope.model_json_schema()
        definitions = envelope.pop("$defs")
        several = {
            "type": "array",
            "items": {"$ref": "#/$defs/Envelope"},
            "minItems": 1,
            "maxItems": MOST_ENVELOPES,
            "description": "several envelopes, and nothing beside them; each gets a result of its own",
        }
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {**envelope["properties"], "envelopes": several},
            "$defs": {**definitions, "Envelope": envelope},
        }


class ChangedLabelsArgument(Arguments):
    gmail_id: GmailId
    labels: Labels = Field(description="all labels that the message has now, by name")


class RawMailArgument(Arguments):
    gmail_id: GmailId
    thread_id: GmailId | None = None
    labels: Labels | None = Field(None, description="all labels that it has, by name; absent: not known")
    internal_date: int = Field(
        ge=0, le=_LATEST_MS, strict=True, description="when the mailbox received it, in milliseconds since 1970"
    )
    raw: RawBytes = Field(description="the exact bytes of the message, in standard base64")


class StoreArguments(Arguments):
    endpoint_identity: EndpointIdentity
    messages: list[RawMailArgument] = Field(min_length=1, max_length=MOST_STORED)
    lane: MailLane = Field("live", description="how this mail came")
    with_headers: bool = Field(False, strict=True, description="answer with the headers of each, as they were read")


class TroubledMailArgument(Arguments):
    gmail_id: GmailId
    archived: bool = Field(strict=True, description="its exact bytes are in the archive")
    reason: Reason = Field(description="what went wrong, in words for a person, without anything of its content")


class TroubleArguments(Arguments):
    endpoint_identity: EndpointIdentity
    lane: MailLane = "live"
    troubled: list[TroubledMailArgument] = Field(default_factory=list, max_length=MOST_IDS)
    settled: GmailIds = Field(default_factory=list, description="reported before, and in order now or gone")


class LookupArguments(Arguments):
    endpoint_identity: EndpointIdentity
    gmail_ids: GmailIds


class RangeArguments(Arguments):
    endpoint_identity: EndpointIdentity
    date_from: Day = Field(description="the first day, in UTC")
    date_to: Day = Field(description="the last day, included")
    cursor: Cursor | None = Field(None, description="where the page before ended")
    limit: int = Field(100, ge=1, le=500, strict=True)
    headers: list[HeaderName] = Field(
        list(WALKED_HEADERS), max_length=MOST_HEADERS, description="which headers to send along"
    )


class ChangesArguments(Arguments):
    endpoint_identity: EndpointIdentity
    labels: list[ChangedLabelsArgument] = Field(default_factory=list, max_length=MOST_IDS)
    deleted: GmailIds = Field(default_factory=list, description="messages that no longer exist at the source")


class ClaimArguments(Arguments):
    endpoint_identity: EndpointIdentity
    instance: Short = Field(description="which process asks, in words for a person")


class GapArgument(Arguments):
    since: Seconds | None = Field(
        None, description="mail received from then on came since the last look; absent: as the Switchboard knows it"
    )
    only_older: bool = Field(False, strict=True, description="only mail from before then is left to compare")


class CommitArguments(Arguments):
    endpoint_identity: EndpointIdentity
    fence: int = Field(ge=1, strict=True, description="the number that history.claim gave")
    history_id: HistoryId | None = Field(None, description="all changes up to it are taken in; absent: only renew")
    release: bool = Field(
        False,
        strict=True,
        description="let the next reader in at once; with a `history_id`: all changes up to now are taken in",
    )
    gap: GapArgument | None = Field(
        None, description="what is owed because the source no longer reports it; recorded together with `history_id`"
    )


class GapArguments(Arguments):
    endpoint_identity: EndpointIdentity
    step: int | None = Field(None, ge=1, strict=True, description="the step that was done; absent: only ask")
    stage: GapStageName | None = Field(None, description="where it led; absent: all of the gap is done")
    before: Seconds | None = Field(None, description="what was received then or later is done")
    mark: Cursor | None = Field(None, description="how far the stretch below `before` is done")


class SentMailArgument(Arguments):
    message_id: MessageId = Field(description="the Message-ID header")
    sent_at: Instant | None = None


class SentAddArguments(Arguments):
    endpoint_identity: EndpointIdentity
    messages: list[SentMailArgument] = Field(max_length=MOST_IDS)


class SentLookupArguments(Arguments):
    endpoint_identity: EndpointIdentity
    message_ids: list[MessageId] = Field(max_length=MOST_IDS)


class ArchivedRef(Reply):
    """Where the archive has the raw bytes."""

    key: str
    sha256: str


class HeaderLine(Reply):
    name: str
    value: str


class StoredRef(ArchivedRef):
    """Where the archive has a message that was just stored, and its headers as the archive read them."""

    headers: list[HeaderLine]


class StoredMail(Reply):
    key: str
    sha256: str
    outcome: str = ""
    trouble: str | None = None
    """Why it could not be read, if it could not; it is stored all the same."""
    headers: list[HeaderLine] | None = None
    """None: they were not asked for."""

    @property
    def ref(self) -> StoredRef:
        if self.headers is None:
            raise Fatal("The Switchboard stored a message and did not say what its headers are.")
        return StoredRef(key=self.key, sha256=self.sha256, headers=self.headers)


class StoreReply(ConnectorReply):
    stored: list[StoredMail]


class LookupReply(ConnectorReply):
    known: dict[str, ArchivedRef]


class ArchivedMail(Reply):
    gmail_id: str
    thread_id: str | None = None
    key: str
    sha256: str
    size: int = 0
    internal_date: int
    labels: list[str] = Field(default_factory=list)
    deleted_at_source: bool = False
    headers: list[HeaderLine]


class RangeReply(ConnectorReply):
    messages: list[ArchivedMail]
    cursor: str | None = None
    complete: bool = False
    """The archive holds everything that the mailbox held in these days."""


class ChangesReply(ConnectorReply):
    unknown: list[str] = Field(default_factory=list)


class RefusalDetail(Reply):
    kind: str = ""
    message: str = ""
    field: str | None = None
    problem: str | None = None
    retry_after: float | None = None


class IngestResult(Reply):
    status: Literal["accepted", "refused", "rejected"]
    request_id: str | None = None
    duplicate: bool = False
    account_id: str | None = None
    """The opaque id of the mailbox's account; None where it is no account of this Postroom."""
    job_status: str | None = None
    reason: str | None = None
    message: str | None = None
    retry_after: float | None = None
    error: RefusalDetail | None = None

    @property
    def why(self) -> str:
        reason = (self.error and self.error.message) or self.message or self.reason
        return reason or "the Switchboard gave no reason"


class IngestReply(ConnectorReply):
    """To several envelopes."""

    results: list[IngestResult]


class SingleIngestReply(IngestResult, ConnectorReply):
    """To one envelope, given field by field."""

    @classmethod
    def of(cls, result: IngestResult, backfill_enabled: bool | None) -> SingleIngestReply:
        return cls(
            **{name: getattr(result, name) for name in result.model_fields_set}, backfill_enabled=backfill_enabled
        )


class TroubleReply(ConnectorReply):
    recorded: int = 0


class OwedGap(Reply):
    """Changes that the source no longer reports, and how far the comparison in their place has come."""

    step: int
    since: int
    """Mail received from then on (seconds since 1970) came since the last look."""
    opened_at: datetime
    stage: GapStageName
    before: int | None = None
    """What was received then or later is done; None: nothing is."""
    mark: str | None = None
    """How far the stretch below `before` is done."""


class HistoryClaim(ConnectorReply):
    history_id: str | None = None
    fence: int
    lease_s: float
    gap: OwedGap | None = None


class GapReply(ConnectorReply):
    gap: OwedGap | None = None
    """What is owed now."""


class CommitReply(ConnectorReply):
    history_id: str | None = None
    released: bool = False


class SentAddReply(ConnectorReply):
    added: int = 0


class SentReply(ConnectorReply):
    known: list[str] = Field(default_factory=list)


INGEST = ToolSignature("ingest", IngestArguments, IngestReply)
ARCHIVE_STORE = ToolSignature("archive.store", StoreArguments, StoreReply)
ARCHIVE_LOOKUP = ToolSignature("archive.lookup", LookupArguments, LookupReply)
ARCHIVE_RANGE = ToolSignature("archive.range", RangeArguments, RangeReply)
ARCHIVE_CHANGES = ToolSignature("archive.changes", ChangesArguments, ChangesReply)
TROUBLE_REPORT = ToolSignature("trouble.report", TroubleArguments, TroubleReply)
HISTORY_CLAIM = ToolSignature("history.claim", ClaimArguments, HistoryClaim)
HISTORY_COMMIT = ToolSignature("history.commit", CommitArguments, CommitReply)
HISTORY_GAP = ToolSignature("history.gap", GapArguments, GapReply)
SENT_ADD = ToolSignature("sent.add", SentAddArguments, SentAddReply)
SENT_LOOKUP = ToolSignature("sent.lookup", SentLookupArguments, SentReply)


Counter = Annotated[int, Field(ge=0, le=2**53)]


class HeartbeatArguments(Arguments):
    connector_type: ConnectorType = Field(description="for example `gmail`")
    endpoint_identity: EndpointIdentity
    instance: Short = Field(description="which process this is, in words for a person")
    version: Short
    status: Short = Field(description="how it is doing, for example `running`")
    counters: dict[Short, Counter] = Field(default_factory=dict, max_length=100)
    checkpoint: JsonObject | None = Field(None, max_length=20, description="how far its live pass has come")
    capabilities: list[Short] = Field(default_factory=list, max_length=20, description="for example `backfill`")
    policy_version: Short | None = Field(None, description="the version of the rules it has; they are sent if newer")
    categories_version: Short | None = Field(None, description="the same for the owner's categories")


class ExportArguments(Arguments):
    if_newer_than: Instant | None = Field(
        None, description="the `generated_at` that you have; nothing is sent if there is no newer one"
    )


class HeartbeatReply(ConnectorReply):
    policy: dict[str, Any] | None = None
    """The tier policy's `version`; with its `rules`, in the form that `parse_policy` reads, if they are newer."""
    categories: dict[str, Any] | None = None
    """The `version` of the owner's categories; with `definitions` and `corrections` if they are newer."""
    contacts_generated_at: Moment | None = None
    time: Moment | None = None


class ContactsReply(ConnectorReply):
    generated_at: Moment | None = None
    addresses: list[str] | None = None
    """Those whose mail is served first; None where nothing newer is there."""
    without_priority: list[str] = Field(default_factory=list)
    """Contacts whom the owner excluded from priority."""
    unchanged: bool = False


HEARTBEAT = ToolSignature("connector.heartbeat", HeartbeatArguments, HeartbeatReply)
CONTACTS_EXPORT = ToolSignature("contacts.export", ExportArguments, ContactsReply)
