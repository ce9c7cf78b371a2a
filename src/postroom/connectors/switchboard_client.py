"""The Switchboard's tools as a connector calls them: in batches, for one mailbox.

Every call is idempotent: what was stored, ingested or reported before is recognised and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import date, datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

from postroom import __version__
from postroom.contract import backfill, mail
from postroom.contract import mail as contract
from postroom.contract.backfill import BackfillProgressReply, LeasedBackfill, ProgressArguments
from postroom.contract.tool import MOST_IDS, A, ConnectorReply, Tools, ToolSignature
from postroom.domain.envelope import MOST_ENVELOPES, Envelope, field_problem
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.domain.validation import LONGEST_REASON
from postroom.telemetry import logs

STORE_BYTES = 16 << 20
"""Raw bytes that travel together; a larger message travels alone."""

CAPABILITIES = ("live", "backfill", "on_demand")
log = logs.get(__name__)

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=ConnectorReply)


class SwitchboardAway(Retryable):
    """The Switchboard cannot be reached."""


class TokenRefused(NotAllowed):
    """The Switchboard refuses this connector's token. Make one with `postroom token create --role connector` and set it
    as CONNECTOR_TOKEN."""


class HistoryClaimLost(Retryable):
    """Another process has taken over reading this mailbox's changes."""


def failed_mail(gmail_id: str, error: PostroomError, *, archived: bool) -> contract.TroubledMailArgument:
    """A message that could not be fetched or taken in, as `report_trouble` takes it."""
    reason = logs.clean(error.message)[:LONGEST_REASON] or "no reason is known"
    return contract.TroubledMailArgument(gmail_id=gmail_id, archived=archived, reason=reason)


def _checked(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Raises BadInput for arguments that no tool takes, such as labels with control characters."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except ValidationError as error:
            raise field_problem(error, "arguments") from None

    return call


class SwitchboardClient:
    """One a connector; many passes may call at once."""

    def __init__(self, tools: Tools, endpoint_identity: str, *, connector_type: str = "gmail") -> None:
        self._tools = tools
        self._connector_type = connector_type
        self.endpoint_identity = endpoint_identity
        self.backfill_enabled = False
        """The kill switch as of the latest answer; off until an answer says that it is on."""

    # Mail

    async def ingest(self, envelopes: Sequence[Envelope]) -> list[contract.IngestResult]:
        """A result for each, in order."""
        results: list[contract.IngestResult] = []
        for batch in _batches(envelopes, MOST_ENVELOPES):
            reply = await self._call(mail.INGEST, mail.IngestArguments(envelopes=list(batch)))
            results += _as_many(reply.results, batch, "ingest")
        return results

    @_checked
    async def archive_store(
        self, mails: Sequence[contract.RawMailArgument], lane: contract.MailLane
    ) -> list[contract.StoredRef]:
        """Where each lies, and its headers; they are on disk when this returns."""
        refs: list[contract.StoredRef] = []
        for batch in _by_bytes(mails):
            given = mail.StoreArguments(
                endpoint_identity=self.endpoint_identity, messages=batch, lane=lane, with_headers=True
            )
            stored = (await self._call(mail.ARCHIVE_STORE, given)).stored
            refs += [each.ref for each in _as_many(stored, batch, "archive.store")]
        return refs

    async def report_trouble(
        self, lane: contract.MailLane, troubled: Sequence[contract.TroubledMailArgument], settled: Sequence[str] = ()
    ) -> None:
        """List messages that could not be fetched or taken in, and remove those that could after all.

        A refusal is only logged: the messages are known here too.
        """
        mine = self.endpoint_identity
        try:
            for batch in _batches(troubled, MOST_IDS):
                given = mail.TroubleArguments(endpoint_identity=mine, lane=lane, troubled=list(batch))
                await self._call(mail.TROUBLE_REPORT, given)
            for done in _batches(settled, MOST_IDS):
                given = mail.TroubleArguments(endpoint_identity=mine, lane=lane, settled=list(done))
                await self._call(mail.TROUBLE_REPORT, given)
        except (Fatal, BadInput, NotAllowed) as error:
            log.warning("trouble.not_reported", problem=error.message)

    @_checked
    async def archive_lookup(self, gmail_ids: Sequence[str]) -> dict[str, contract.ArchivedRef]:
        known: dict[str, contract.ArchivedRef] = {}
        for batch in _batches(gmail_ids, MOST_IDS):
            given = mail.LookupArguments(endpoint_identity=self.endpoint_identity, gmail_ids=list(batch))
            known |= (await self._call(mail.ARCHIVE_LOOKUP, given)).known
        return known

    @_checked
    async def archive_range(
        self, first_day: date, last_day: date, cursor: str | None, limit: int, headers: Collection[str]
    ) -> contract.RangeReply:
        given = mail.RangeArguments(
            endpoint_identity=self.endpoint_identity,
            date_from=first_day,
            date_to=last_day,
            cursor=cursor,
            limit=limit,
            headers=sorted(headers),
        )
        return await self._call(mail.ARCHIVE_RANGE, given)

    @_checked
    async def archive_changes(self, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        mine = self.endpoint_identity
        for batch in _batches(sorted(labels.items()), MOST_IDS):
            changed = [contract.ChangedLabelsArgument(gmail_id=key, labels=sorted(names)) for key, names in batch]
            await self._call(mail.ARCHIVE_CHANGES, mail.ChangesArguments(endpoint_identity=mine, labels=changed))
        for gone in _batches(deleted, MOST_IDS):
            given = mail.ChangesArguments(endpoint_identity=mine, deleted=list(gone))
            await self._call(mail.ARCHIVE_CHANGES, given)

    # Where the mailbox has been read to, and what the user sent

    @_checked
    async def history_claim(self, instance: str) -> contract.HistoryClaim:
        given = mail.ClaimArguments(endpoint_identity=self.endpoint_identity, instance=instance)
        return await self._call(mail.HISTORY_CLAIM, given)

    @_checked
    async def history_commit(
        self,
        fence: int,
        history_id: str | None = None,
        *,
        release: bool = False,
        gap: contract.GapArgument | None = None,
    ) -> None:
        """Without a history id the lease is only renewed. Raises HistoryClaimLost where the claim is no longer ours."""
        owed = {} if gap is None else {"gap": gap}  # not even named otherwise: an older Switchboard does not know it
        given = mail.CommitArguments(
            endpoint_identity=self.endpoint_identity, fence=fence, history_id=history_id, release=release, **owed
        )
        try:
            await self._call(mail.HISTORY_COMMIT, given)
        except TokenRefused:
            raise
        except NotAllowed as error:
            raise HistoryClaimLost(error.message) from None

    @_checked
    async def history_gap(self, **reached: Any) -> contract.OwedGap | None:
        """What is owed now; `reached` is a step that was done, and where it led."""
        given = mail.GapArguments(endpoint_identity=self.endpoint_identity, **reached)
        return (await self._call(mail.HISTORY_GAP, given)).gap

    @_checked
    async def sent_add(self, message_ids: Collection[str]) -> None:
        for batch in _batches(sorted(message_ids), MOST_IDS):
            sent = [contract.SentMailArgument(message_id=each) for each in batch]
            given = mail.SentAddArguments(endpoint_identity=self.endpoint_identity, messages=sent)
            await self._call(mail.SENT_ADD, given)

    @_checked
    async def sent_lookup(self, message_ids: Collection[str]) -> frozenset[str]:
        known: set[str] = set()
        for batch in _batches(sorted(message_ids), MOST_IDS):
            given = mail.SentLookupArguments(endpoint_identity=self.endpoint_identity, message_ids=list(batch))
            known |= {*(await self._call(mail.SENT_LOOKUP, given)).known}
        return frozenset(known)

    # Coordination

    @_checked
    async def heartbeat(
        self,
        instance: str,
        status: str,
        counters: Mapping[str, int],
        checkpoint: Mapping[str, Any],
        policy_version: str | None,
        categories_version: str | None = None,
    ) -> contract.HeartbeatReply:
        given = mail.HeartbeatArguments(
            connector_type=self._connector_type,
            endpoint_identity=self.endpoint_identity,
            instance=instance,
            version=__version__,
            status=status,
            counters=dict(counters),
            checkpoint=dict(checkpoint),
            capabilities=list(CAPABILITIES),
            policy_version=policy_version,
            categories_version=categories_version,
        )
        return await self._call(mail.HEARTBEAT, given)

    @_checked
    async def contacts_export(self, if_newer_than: datetime | None) -> contract.ContactsReply:
        return await self._call(mail.CONTACTS_EXPORT, mail.ExportArguments(if_newer_than=if_newer_than))

    @_checked
    async def backfill_poll(self) -> LeasedBackfill | None:
        """The oldest job that waits for this mailbox, now ours under a lease; None where there is none."""
        given = backfill.PollArguments(connector_type=self._connector_type, endpoint_identity=self.endpoint_identity)
        return (await self._call(backfill.POLL, given)).job

    async def backfill_progress(self, report: ProgressArguments) -> BackfillProgressReply:
        return await self._call(backfill.PROGRESS, report)

    async def _call(self, tool: ToolSignature[A, C], arguments: A) -> C:
        reply = await self._tools.call(tool, arguments)
        if reply.backfill_enabled is not None:
            self.backfill_enabled = reply.backfill_enabled
        return reply


def _batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _by_bytes(mails: Sequence[contract.RawMailArgument]) -> list[list[contract.RawMailArgument]]:
    batches: list[list[contract.RawMailArgument]] = []
    size = 0
    for each in mails:
        if not batches or len(batches[-1]) == contract.MOST_STORED or size + len(each.raw) > STORE_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(each)
        size += len(each.raw)
    return batches


def _as_many(found: list[T], asked: Sequence[object], tool: str) -> list[T]:
    if len(found) != len(asked):
        raise Fatal(f"The Switchboard answered {tool} for {len(found)} of {len(asked)} messages.")
    return found
