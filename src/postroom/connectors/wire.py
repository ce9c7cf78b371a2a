"""What the Switchboard's tools answer to a connector, in types. Keys that a newer Switchboard adds are passed over."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

from pydantic import AliasChoices, AwareDatetime, BaseModel, ConfigDict, Field


class Reply(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    backfill_enabled: bool | None = None
    """The kill switch, told in every answer; None where this answer says nothing of it."""


class _Item(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ArchivedRef(_Item):
    """Where raw bytes lie in the archive."""

    archive_key: str = Field(validation_alias=AliasChoices("archive_key", "key"))
    sha256: str


class IngestResult(_Item):
    status: Literal["accepted", "refused", "rejected"]
    request_id: str | None = None
    duplicate: bool = False
    account_id: str | None = None
    """The opaque id of the mailbox's account; None where it is no account of this Postroom."""
    reason: str | None = None
    message: str | None = None
    retry_after: float | None = None
    error: dict[str, Any] | None = None

    @property
    def why(self) -> str:
        told = (self.error or {}).get("message") or self.message or self.reason
        return str(told or "the Switchboard gave no reason")


class IngestReply(Reply):
    results: list[IngestResult]


class StoreReply(Reply):
    stored: list[ArchivedRef]


class LookupReply(Reply):
    known: dict[str, ArchivedRef]


class HeaderLine(_Item):
    name: str
    value: str


class ArchivedMail(_Item):
    gmail_id: str
    thread_id: str | None = None
    archive_key: str
    sha256: str
    internal_date: int
    labels: list[str] = []
    deleted_at_source: bool = False
    headers: list[HeaderLine]


class RangeReply(Reply):
    messages: list[ArchivedMail]
    cursor: str | None = None
    complete: bool = False
    """The archive holds everything that the mailbox held in these days."""


class ChangesReply(Reply):
    unknown: list[str] = []


class HistoryClaim(Reply):
    history_id: str | None = None
    fence: int
    lease_s: float


class SentReply(Reply):
    known: list[str] = []


class ContactsReply(Reply):
    generated_at: AwareDatetime | None = None
    addresses: list[str] | None = None
    """None where nothing newer is there."""


class HeartbeatReply(Reply):
    policy: dict[str, Any] | None = None
    """A newer tier policy; None where the one that was named is still in force."""
    contacts_generated_at: datetime | None = None


class JobParams(_Item):
    target_categories: list[str] = []
    includes: list[str] = []
    date_from: date
    date_to: date
    rate_limit_per_hour: int = 100
    daily_cost_cap_cents: int = 500
    mode: str = "selective"


class BackfillJob(_Item):
    job_id: str
    fence: int
    lease_s: float = 120.0
    params: JobParams
    cursor: dict[str, Any] | None = None
    retry_after: float | None = None


class ProgressReply(Reply):
    status: str
    reason: str | None = None
    retry_after: float | None = None
