"""The Switchboard's tools as typed calls, with their replies. Unknown keys of a newer Switchboard are ignored.

Every call is idempotent: what was stored, ingested or reported before is recognised and changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, AwareDatetime, BaseModel, ConfigDict, Field

from postroom.connectors.mcp_client import Connect, TokenRefused, call
from postroom.domain.envelope import MOST_ENVELOPES, Envelope
from postroom.domain.errors import BadInput, Fatal, NotAllowed, Retryable
from postroom.telemetry import logs


class ToolReply(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    backfill_enabled: bool | None = None
    """The kill switch, told in every answer; None where this answer says nothing of it."""


class _ReplyItem(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class HeaderLine(_ReplyItem):
    name: str
    value: str


class ArchivedRef(_ReplyItem):
    """Where raw bytes lie in the archive."""

    archive_key: str = Field(validation_alias=AliasChoices("archive_key", "key"))
    sha256: str


class StoredRef(ArchivedRef):
    """Where a message lies that was just stored, and what the archive read as its headers."""

    headers: list[HeaderLine]


class IngestResult(_ReplyItem):
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


class IngestReply(ToolReply):
    results: list[IngestResult]


class StoreReply(ToolReply):
    stored: list[StoredRef]


class LookupReply(ToolReply):
    known: dict[str, ArchivedRef]


class ArchivedMail(_ReplyItem):
    gmail_id: str
    thread_id: str | None = None
    archive_key: str
    sha256: str
    internal_date: int
    labels: list[str] = []
    deleted_at_source: bool = False
    headers: list[HeaderLine]


class RangeReply(ToolReply):
    messages: list[ArchivedMail]
    cursor: str | None = None
    complete: bool = False
    """The archive holds everything that the mailbox held in these days."""


class ChangesReply(ToolReply):
    unknown: list[str] = []


class HistoryClaim(ToolReply):
    history_id: str | None = None
    fence: int
    lease_s: float


class SentReply(ToolReply):
    known: list[str] = []


class ContactsReply(ToolReply):
    generated_at: AwareDatetime | None = None
    addresses: list[str] | None = None
    """None where nothing newer is there."""


class HeartbeatReply(ToolReply):
    policy: dict[str, Any] | None = None
    """A newer tier policy; None where the one that was named is still in force."""
    contacts_generated_at: datetime | None = None


class JobParams(_ReplyItem):
    target_categories: list[str] = []
    includes: list[str] = []
    date_from: date
    date_to: date
    rate_limit_per_hour: int = 100
    daily_cost_cap_cents: int = 500
    mode: str = "selective"


class LeasedBackfill(_ReplyItem):
    job_id: str
    fence: int
    lease_s: float = 120.0
    params: JobParams
    cursor: dict[str, Any] | None = None
    retry_after: float | None = None


class BackfillProgressReply(ToolReply):
    status: str
    reason: str | None = None
    retry_after: float | None = None


MOST_IDS = 500
MOST_STORED = 100
STORE_BYTES = 16 << 20
"""Raw bytes that travel together; a larger message travels alone."""

LIVE, BACKFILL, ON_DEMAND = "live", "backfill", "on demand"
"""How mail came, as the list of troubled messages tells it."""
_LONGEST_REASON = 300
log = logs.get(__name__)

R = TypeVar("R", bound=ToolReply)
T = TypeVar("T")


class HistoryClaimLost(Retryable):
    """Another process has taken over reading this mailbox's changes."""


@dataclass(frozen=True, slots=True)
class RawMail:
    """A message for the archive."""

    gmail_id: str
    thread_id: str
    labels: frozenset[str]
    """By name."""
    internal_date: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class FailedMail:
    """A message that could not be fetched or taken in."""

    gmail_id: str
    archived: bool
    reason: str

    def wire(self) -> dict[str, Any]:
        reason = logs.clean(self.reason)[:_LONGEST_REASON] or "no reason is known"
        return {"gmail_id": self.gmail_id, "archived": self.archived, "reason": reason}


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What a backfill has done since its last report."""

    job_id: str
    fence: int
    seq: int
    processed: int = 0
    skipped: int = 0
    cursor: Mapping[str, Any] | None = None
    status: str | None = None
    error: str | None = None

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "job_id": self.job_id,
            "fence": self.fence,
            "report_seq": self.seq,
            "rows_processed": self.processed,
            "rows_skipped": self.skipped,
            "cost_spent_cents": 0,
        }
        optional = {"cursor": self.cursor, "status": self.status, "error": self.error}
        return given | {name: value for name, value in optional.items() if value is not None}


class SwitchboardClient:
    """One a connector; many passes may call at once."""

    def __init__(self, connect: Connect, endpoint_identity: str, *, connector_type: str = "gmail") -> None:
        self._connect = connect
        self._connector_type = connector_type
        self.endpoint_identity = endpoint_identity
        self.backfill_enabled = False
        """The kill switch as the latest answer told it; off until somebody has said that it is on."""

    # Mail

    async def ingest(self, envelopes: Sequence[Envelope]) -> list[IngestResult]:
        """A result for each, in order."""
        results: list[IngestResult] = []
        for batch in _batches(envelopes, MOST_ENVELOPES):
            given = [each.model_dump(mode="json", exclude_none=True) | _raw_of(each) for each in batch]
            reply = await self._call("ingest", {"envelopes": given}, IngestReply)
            results += _as_many(reply.results, batch, "ingest")
        return results

    async def archive_store(self, mails: Sequence[RawMail], lane: str = LIVE) -> list[StoredRef]:
        """Where each lies, and its headers; they are on disk when this returns."""
        refs: list[StoredRef] = []
        for batch in _by_bytes(mails):
            given = {"messages": [_stored(mail) for mail in batch], "lane": lane, "with_headers": True}
            refs += _as_many((await self._mine("archive.store", given, StoreReply)).stored, batch, "archive.store")
        return refs

    async def report_trouble(self, lane: str, troubled: Sequence[FailedMail], settled: Sequence[str] = ()) -> None:
        """So that the owner sees them: messages that could not be fetched or taken in, and those that could after all.

        A Switchboard that does not take it is no reason to stop: the messages are known here too.
        """
        try:
            for batch in _batches(troubled, MOST_IDS):
                await self._mine(
                    "trouble.report", {"lane": lane, "troubled": [each.wire() for each in batch]}, ToolReply
                )
            for done in _batches(list(settled), MOST_IDS):
                await self._mine("trouble.report", {"lane": lane, "settled": list(done)}, ToolReply)
        except (Fatal, BadInput, NotAllowed) as error:
            log.warning("trouble.not_reported", problem=error.message)

    async def archive_lookup(self, gmail_ids: Sequence[str]) -> dict[str, ArchivedRef]:
        known: dict[str, ArchivedRef] = {}
        for batch in _batches(gmail_ids, MOST_IDS):
            known |= (await self._mine("archive.lookup", {"gmail_ids": list(batch)}, LookupReply)).known
        return known

    async def archive_range(
        self, first_day: str, last_day: str, cursor: str | None, limit: int, headers: Collection[str]
    ) -> RangeReply:
        given = {"date_from": first_day, "date_to": last_day, "limit": limit, "headers": sorted(headers)}
        return await self._mine("archive.range", given | ({"cursor": cursor} if cursor else {}), RangeReply)

    async def archive_changes(self, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        for batch in _batches(sorted(labels.items()), MOST_IDS):
            changed = [{"gmail_id": gmail_id, "labels": sorted(names)} for gmail_id, names in batch]
            await self._mine("archive.changes", {"labels": changed}, ChangesReply)
        for gone in _batches(list(deleted), MOST_IDS):
            await self._mine("archive.changes", {"deleted": list(gone)}, ChangesReply)

    # Where the mailbox has been read to, and what the user sent

    async def history_claim(self, instance: str) -> HistoryClaim:
        return await self._mine("history.claim", {"instance": instance}, HistoryClaim)

    async def history_commit(self, fence: int, history_id: str | None = None, *, release: bool = False) -> None:
        """Without a history id the lease is only renewed. Raises ReaderLost where the claim is no longer ours."""
        given: dict[str, Any] = {"fence": fence, "release": release}
        try:
            await self._mine("history.commit", given | ({"history_id": history_id} if history_id else {}), ToolReply)
        except TokenRefused:
            raise
        except NotAllowed as error:
            raise HistoryClaimLost(error.message) from None

    async def sent_add(self, message_ids: Collection[str]) -> None:
        for batch in _batches(sorted(message_ids), MOST_IDS):
            await self._mine("sent.add", {"messages": [{"message_id": each} for each in batch]}, ToolReply)

    async def sent_lookup(self, message_ids: Collection[str]) -> frozenset[str]:
        known: set[str] = set()
        for batch in _batches(sorted(message_ids), MOST_IDS):
            known |= {*(await self._mine("sent.lookup", {"message_ids": list(batch)}, SentReply)).known}
        return frozenset(known)

    # Coordination

    async def heartbeat(self, arguments: Mapping[str, Any]) -> HeartbeatReply:
        given = {"connector_type": self._connector_type, **arguments}
        return await self._mine("connector.heartbeat", given, HeartbeatReply)

    async def contacts_export(self, if_newer_than: datetime | None) -> ContactsReply:
        given = {} if if_newer_than is None else {"if_newer_than": if_newer_than.isoformat()}
        return await self._call("contacts.export", given, ContactsReply)

    async def backfill_poll(self) -> LeasedBackfill | None:
        """The oldest job that waits for this mailbox, now ours under a lease; None where there is none."""
        arguments = {**self._identity(), "connector_type": self._connector_type}
        answer = await call(self._connect, "backfill.poll", arguments)
        self._note(_read(ToolReply, answer, "backfill.poll"))
        return _read(LeasedBackfill, answer, "backfill.poll") if answer.get("job_id") else None

    async def backfill_progress(self, report: BackfillReport) -> BackfillProgressReply:
        return await self._call("backfill.progress", report.arguments(), BackfillProgressReply)

    def _identity(self) -> dict[str, Any]:
        return {"endpoint_identity": self.endpoint_identity}

    async def _mine(self, tool: str, arguments: Mapping[str, Any], form: type[R]) -> R:
        return await self._call(tool, {**self._identity(), **arguments}, form)

    async def _call(self, tool: str, arguments: Mapping[str, Any], form: type[R]) -> R:
        reply = _read(form, await call(self._connect, tool, arguments), tool)
        self._note(reply)
        return reply

    def _note(self, reply: ToolReply) -> None:
        if reply.backfill_enabled is not None:
            self.backfill_enabled = reply.backfill_enabled


M = TypeVar("M", bound=BaseModel)


def _read(form: type[M], answer: Mapping[str, Any], tool: str) -> M:
    try:
        return form.model_validate(answer)
    except ValueError:
        raise Fatal(
            f"The Switchboard's answer to {tool} is not as agreed; the two may be of different versions."
        ) from None


def _raw_of(envelope: Envelope) -> dict[str, Any]:
    """`payload.raw` is told also where it is null: only control fields may be left out."""
    payload = envelope.payload.model_dump(mode="json", exclude_none=True)
    return {"payload": payload | ({} if envelope.payload.raw else {"raw": None})}


def _stored(mail: RawMail) -> dict[str, Any]:
    return {
        "gmail_id": mail.gmail_id,
        "thread_id": mail.thread_id or None,
        "labels": sorted(mail.labels),
        "internal_date": max(0, mail.internal_date),
        "raw": base64.b64encode(mail.raw).decode("ascii"),
    }


def _batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _by_bytes(mails: Sequence[RawMail]) -> list[list[RawMail]]:
    batches: list[list[RawMail]] = []
    size = 0
    for mail in mails:
        if not batches or len(batches[-1]) == MOST_STORED or size + len(mail.raw) > STORE_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(mail)
        size += len(mail.raw)
    return batches


def _as_many(found: list[T], asked: Sequence[object], tool: str) -> list[T]:
    if len(found) != len(asked):
        raise Fatal(f"The Switchboard answered {tool} for {len(found)} of {len(asked)} messages.")
    return found
