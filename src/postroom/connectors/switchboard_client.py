"""The Switchboard's tools as a connector calls them: in batches, for one mailbox.

Every call is idempotent: what was stored, ingested or reported before is recognised and changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from postroom.connectors.mcp_client import TokenRefused
from postroom.contract import backfill, mail, presence
from postroom.contract.backfill import BackfillProgressReply, LeasedBackfill
from postroom.contract.fields import MOST_IDS
from postroom.contract.mail import MOST_STORED, ArchivedRef, HistoryClaim, IngestResult, RangeReply, StoredRef
from postroom.contract.presence import ContactsReply, HeartbeatReply
from postroom.contract.tool import A, ConnectorReply, Tools, ToolSignature
from postroom.domain.envelope import MOST_ENVELOPES, Envelope
from postroom.domain.errors import BadInput, Fatal, NotAllowed, Retryable
from postroom.domain.limits import LONGEST_REASON
from postroom.telemetry import logs

STORE_BYTES = 16 << 20
"""Raw bytes that travel together; a larger message travels alone."""

LIVE, BACKFILL, ON_DEMAND = "live", "backfill", "on demand"
"""How mail came, as the list of troubled messages tells it."""
log = logs.get(__name__)

T = TypeVar("T")
C = TypeVar("C", bound=ConnectorReply)


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
        reason = logs.clean(self.reason)[:LONGEST_REASON] or "no reason is known"
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

    def __init__(self, tools: Tools, endpoint_identity: str, *, connector_type: str = "gmail") -> None:
        self._tools = tools
        self._connector_type = connector_type
        self.endpoint_identity = endpoint_identity
        self.backfill_enabled = False
        """The kill switch as of the latest answer; off until an answer says that it is on."""

    # Mail

    async def ingest(self, envelopes: Sequence[Envelope]) -> list[IngestResult]:
        """A result for each, in order."""
        results: list[IngestResult] = []
        for batch in _batches(envelopes, MOST_ENVELOPES):
            given = [each.model_dump(mode="json", exclude_none=True) | _raw_of(each) for each in batch]
            reply = await self._call(mail.INGEST, {"envelopes": given})
            results += _as_many(reply.results, batch, "ingest")
        return results

    async def archive_store(self, mails: Sequence[RawMail], lane: str = LIVE) -> list[StoredRef]:
        """Where each lies, and its headers; they are on disk when this returns."""
        refs: list[StoredRef] = []
        for batch in _by_bytes(mails):
            given: dict[str, Any] = {"messages": [_stored(each) for each in batch], "lane": lane, "with_headers": True}
            stored = (await self._mine(mail.ARCHIVE_STORE, given)).stored
            refs += [each.ref for each in _as_many(stored, batch, "archive.store")]
        return refs

    async def report_trouble(self, lane: str, troubled: Sequence[FailedMail], settled: Sequence[str] = ()) -> None:
        """So that the owner sees them: messages that could not be fetched or taken in, and those that could after all.

        A Switchboard that does not take it is no reason to stop: the messages are known here too.
        """
        try:
            for batch in _batches(troubled, MOST_IDS):
                await self._mine(mail.TROUBLE_REPORT, {"lane": lane, "troubled": [each.wire() for each in batch]})
            for done in _batches(list(settled), MOST_IDS):
                await self._mine(mail.TROUBLE_REPORT, {"lane": lane, "settled": list(done)})
        except (Fatal, BadInput, NotAllowed) as error:
            log.warning("trouble.not_reported", problem=error.message)

    async def archive_lookup(self, gmail_ids: Sequence[str]) -> dict[str, ArchivedRef]:
        known: dict[str, ArchivedRef] = {}
        for batch in _batches(gmail_ids, MOST_IDS):
            known |= (await self._mine(mail.ARCHIVE_LOOKUP, {"gmail_ids": list(batch)})).known
        return known

    async def archive_range(
        self, first_day: str, last_day: str, cursor: str | None, limit: int, headers: Collection[str]
    ) -> RangeReply:
        given = {"date_from": first_day, "date_to": last_day, "limit": limit, "headers": sorted(headers)}
        return await self._mine(mail.ARCHIVE_RANGE, given | ({"cursor": cursor} if cursor else {}))

    async def archive_changes(self, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        for batch in _batches(sorted(labels.items()), MOST_IDS):
            changed = [{"gmail_id": gmail_id, "labels": sorted(names)} for gmail_id, names in batch]
            await self._mine(mail.ARCHIVE_CHANGES, {"labels": changed})
        for gone in _batches(list(deleted), MOST_IDS):
            await self._mine(mail.ARCHIVE_CHANGES, {"deleted": list(gone)})

    # Where the mailbox has been read to, and what the user sent

    async def history_claim(self, instance: str) -> HistoryClaim:
        return await self._mine(mail.HISTORY_CLAIM, {"instance": instance})

    async def history_commit(self, fence: int, history_id: str | None = None, *, release: bool = False) -> None:
        """Without a history id the lease is only renewed. Raises ReaderLost where the claim is no longer ours."""
        given: dict[str, Any] = {"fence": fence, "release": release}
        try:
            await self._mine(mail.HISTORY_COMMIT, given | ({"history_id": history_id} if history_id else {}))
        except TokenRefused:
            raise
        except NotAllowed as error:
            raise HistoryClaimLost(error.message) from None

    async def sent_add(self, message_ids: Collection[str]) -> None:
        for batch in _batches(sorted(message_ids), MOST_IDS):
            await self._mine(mail.SENT_ADD, {"messages": [{"message_id": each} for each in batch]})

    async def sent_lookup(self, message_ids: Collection[str]) -> frozenset[str]:
        known: set[str] = set()
        for batch in _batches(sorted(message_ids), MOST_IDS):
            known |= {*(await self._mine(mail.SENT_LOOKUP, {"message_ids": list(batch)})).known}
        return frozenset(known)

    # Coordination

    async def heartbeat(self, arguments: Mapping[str, Any]) -> HeartbeatReply:
        given = {"connector_type": self._connector_type, **arguments}
        return await self._mine(presence.HEARTBEAT, given)

    async def contacts_export(self, if_newer_than: datetime | None) -> ContactsReply:
        given = {} if if_newer_than is None else {"if_newer_than": if_newer_than.isoformat()}
        return await self._call(presence.CONTACTS_EXPORT, given)

    async def backfill_poll(self) -> LeasedBackfill | None:
        """The oldest job that waits for this mailbox, now ours under a lease; None where there is none."""
        return (await self._mine(backfill.POLL, {"connector_type": self._connector_type})).job

    async def backfill_progress(self, report: BackfillReport) -> BackfillProgressReply:
        return await self._call(backfill.PROGRESS, report.arguments())

    async def _mine(self, tool: ToolSignature[A, C], arguments: Mapping[str, Any]) -> C:
        """A tool that names its mailbox."""
        return await self._call(tool, {"endpoint_identity": self.endpoint_identity, **arguments})

    async def _call(self, tool: ToolSignature[A, C], arguments: Mapping[str, Any]) -> C:
        reply = await self._tools.call(tool, arguments)
        if reply.backfill_enabled is not None:
            self.backfill_enabled = reply.backfill_enabled
        return reply


def _raw_of(envelope: Envelope) -> dict[str, Any]:
    """`payload.raw` is sent even if it is null: only control fields may be left out."""
    payload = envelope.payload.model_dump(mode="json", exclude_none=True)
    return {"payload": payload | ({} if envelope.payload.raw else {"raw": None})}


def _stored(letter: RawMail) -> dict[str, Any]:
    return {
        "gmail_id": letter.gmail_id,
        "thread_id": letter.thread_id or None,
        "labels": sorted(letter.labels),
        "internal_date": max(0, letter.internal_date),
        "raw": base64.b64encode(letter.raw).decode("ascii"),
    }


def _batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _by_bytes(mails: Sequence[RawMail]) -> list[list[RawMail]]:
    batches: list[list[RawMail]] = []
    size = 0
    for each in mails:
        if not batches or len(batches[-1]) == MOST_STORED or size + len(each.raw) > STORE_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(each)
        size += len(each.raw)
    return batches


def _as_many(found: list[T], asked: Sequence[object], tool: str) -> list[T]:
    if len(found) != len(asked):
        raise Fatal(f"The Switchboard answered {tool} for {len(found)} of {len(asked)} messages.")
    return found
