"""The archiver: removes mail at the source that the archive provably has. For every batch, in this order: read the
watermark and the bad messages again, ask the source for protecting labels, read every message back from disk and hash
it, commit the certificates, then remove.

Every removal can be repeated safely. After a crash the next run first asks the source what became of the certified
removals. Nothing is removed without a certificate on disk, and anything unexpected ends the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from postroom.accounts.access import MailboxAccess
from postroom.accounts.account import Account
from postroom.accounts.troubled import troubled_of
from postroom.archive.backend import ArchiveBackend, CertificateBook, StillAlone
from postroom.archive.certificates import Certificate, RemovalAction, RemovalResult
from postroom.archive.messages import ArchivedMessage, Provenance
from postroom.archive.service import SharedArchive
from postroom.archive.status import OwnedElsewhere
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import NotAllowed, PostroomError
from postroom.domain.ids import new_id
from postroom.mailboxes.errors import CallRefused, PermissionMissing
from postroom.mailboxes.gmail.methods import missing_scope
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import Settings
from postroom.sync.fetch import require_mailbox
from postroom.sync.removal import (
    ArchivePlan,
    KeepReason,
    RemovalGrounds,
    RemovalPolicy,
    RemovalSource,
    UnsafeToRemove,
    compare_with_source,
    find_messages,
    is_removed,
    keep_reason,
    make_plan,
    open_source,
    policy_of,
    read_back,
    require_enabled,
    with_retries,
)
from postroom.sync.state import get_state
from postroom.telemetry import logs
from postroom.telemetry.metrics import meter

_removed = meter.create_counter(
    "postroom.archiver.removed", unit="{message}", description="messages removed at the source, by action"
)
_stops = meter.create_counter("postroom.archiver.stops", unit="{run}", description="runs that ended with an error")


def record_removed(action: RemovalAction, count: int) -> None:
    _removed.add(count, {"action": str(action)})


def record_stop() -> None:
    _stops.add(1)


MOST_IN_A_BATCH = 300
log = logs.get(__name__)


@dataclass(slots=True)
class ArchiveReport:
    """What a run has done so far."""

    removed: int = 0
    bytes: int = 0
    batches: int = 0
    resumed: int = 0
    """Removals of an interrupted run that were checked at the source."""
    compared: int = 0
    replaced: int = 0
    """Imported messages whose bytes differed from the source's and were replaced."""
    stays: Counter[KeepReason] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = False
    """False: stopped before the end, by a person or by an error."""


@dataclass(frozen=True)
class ArchiverContext:
    """What every run of the archiver works with."""

    database: Database
    clock: Clock
    archive: SharedArchive
    batch_size: int = MOST_IN_A_BATCH

    @property
    def backend(self) -> ArchiveBackend:
        return self.archive.backend


class Archiver:
    """Made by `open_archiver`. `report` is up to date at any moment, also after an error."""

    def __init__(
        self,
        context: ArchiverContext,
        account: Account,
        policy: RemovalPolicy,
        source: RemovalSource,
        certificates: CertificateBook,
        still_alone: StillAlone,
    ) -> None:
        self.report = ArchiveReport()
        self._context = context
        self._account = account
        self._policy = policy
        self._source = source
        self._certificates = certificates
        self._still_alone = still_alone
        self._waits_for_owner: str | None = None
        for name in source.unknown_labels:
            self.report.notes.append(f"The mailbox has no label {name!r} (archiver.keep_labels), so it keeps nothing.")

    async def run(
        self, stop: Callable[[], bool] = lambda: False, progress: Callable[[ArchiveReport], None] = lambda report: None
    ) -> ArchiveReport:
        """Remove what may be removed. `stop` is asked between batches."""
        try:
            await self._resume()
            async for chosen in self._candidates():
                if stop():
                    return self.report
                await self._batch(chosen)
                progress(self.report)
        except PostroomError as error:
            record_stop()
            log.warning("archiver.stopped", account=self._account.id, problem=error.message)
            raise
        self.report.is_complete = True
        log.info("archiver.over", account=self._account.id, removed=self.report.removed)
        return self.report

    # What an interrupted run left behind

    async def _resume(self) -> None:
        opened = await asyncio.to_thread(self._certificates.open)
        for start in range(0, len(opened), self._context.batch_size):
            await self._settle_interrupted(opened[start : start + self._context.batch_size])

    async def _settle_interrupted(self, opened: Sequence[Certificate]) -> None:
        """Messages still at the source go through a batch again, unless the policy now names another action."""
        still_there = await self._sort_out(opened)
        self.report.resumed += len(opened)
        others = [certificate for certificate in still_there if certificate.removal != self._policy.removal]
        await self._settle(others, RemovalResult.LEFT, "interrupted; another action was chosen")
        if again := [certificate for certificate in still_there if certificate.removal == self._policy.removal]:
            await self._take_up(again)

    async def _sort_out(self, certificates: Sequence[Certificate]) -> list[Certificate]:
        """Record what became of them at the source; returns those that were not removed."""
        labels = await self._source.labels_now([certificate.proof.gmail_id for certificate in certificates])
        still_there: list[Certificate] = []
        gone: list[Certificate] = []
        removed: list[Certificate] = []
        for certificate in certificates:
            now = labels[certificate.proof.gmail_id]
            if now is None:
                gone.append(certificate)
            elif is_removed(certificate.removal, now):
                removed.append(certificate)
            else:
                still_there.append(certificate)
        await self._settle(gone, RemovalResult.GONE, "no longer at the source when it was asked")
        await self._settle(removed, RemovalResult.REMOVED, "found removed when the source was asked")
        self.report.removed += len(gone) + len(removed)
        return still_there

    async def _take_up(self, certificates: Sequence[Certificate]) -> None:
        keys = [certificate.proof.key for certificate in certificates]
        found = await asyncio.to_thread(find_messages, self._context.backend, self._account.email, keys)
        if lost := next((key for key in keys if key not in found), None):
            raise UnsafeToRemove(
                f"Message {lost} was certified and is not in the archive any more. Run `postroom verify`."
            )
        counted = self.report.stays.copy()
        await self._batch(list(found.values()))
        self.report.stays = counted  # the walk over all messages counts them
        still_open = {certificate.number for certificate in await asyncio.to_thread(self._certificates.open)}
        left = [certificate for certificate in certificates if certificate.number in still_open]
        await self._settle(
            left, RemovalResult.LEFT, "interrupted; it may not be removed any more, or its bytes changed"
        )

    # Choosing

    async def _candidates(self) -> AsyncIterator[list[ArchivedMessage]]:
        """Batches of messages that may be removed as far as the archive knows; each batch is checked again before it
        is removed."""
        watermark = (await self._grounds(())).watermark
        walk = self._context.backend.portions(self._account.email, watermark)
        chosen: list[ArchivedMessage] = []
        while portion := await asyncio.to_thread(next, walk, None):
            grounds = await self._grounds(portion)
            chosen += self._choose(portion, grounds)
            while len(chosen) >= self._context.batch_size:
                yield chosen[: self._context.batch_size]
                chosen = chosen[self._context.batch_size :]
        if chosen:
            yield chosen

    async def _grounds(self, messages: Sequence[ArchivedMessage]) -> RemovalGrounds:
        """Read from the databases anew at every call."""
        account_id, email, removal = self._account.id, self._account.email, self._policy.removal
        watermark, bad = await self._context.database.read(
            lambda tx: (get_state(tx, account_id).watermark, {each.key for each in troubled_of(tx, account_id)})
        )
        ids = [message.gmail_id for message in messages if message.gmail_id]
        ledger = self._context.backend.ledger(email)
        return RemovalGrounds(watermark, bad, await asyncio.to_thread(ledger.removed_among, removal, ids))

    def _choose(self, messages: Sequence[ArchivedMessage], grounds: RemovalGrounds) -> list[ArchivedMessage]:
        """Messages that may be removed, or that only need a comparison with the source first."""
        chosen = []
        for message in messages:
            reason = keep_reason(message, self._policy, grounds)
            if reason is None or (reason is KeepReason.NOT_COMPARED and self._waits_for_owner is None):
                chosen.append(message)
            else:
                self._stay(reason, 1)
        return chosen

    # One batch

    async def _batch(self, messages: Sequence[ArchivedMessage]) -> None:
        grounds = await self._grounds(messages)
        chosen = await self._compared(self._choose(messages, grounds), grounds)
        chosen = await self._confirmed(await self._without_kept(chosen))
        if not chosen:
            return
        proofs = await asyncio.to_thread(read_back, self._context.backend, chosen)
        batch, now = new_id(), self._context.clock.now()
        certificates = await asyncio.to_thread(
            self._certificates.certify, batch, self._policy.removal, proofs, grounds.watermark, now
        )
        await self._require_on_disk(certificates)
        await asyncio.to_thread(self._still_alone)
        await self._remove(certificates)
        self.report.batches += 1
        self.report.removed += len(certificates)
        self.report.bytes += sum(proof.size for proof in proofs)
        record_removed(self._policy.removal.action, len(certificates))
        log.info("archiver.batch", account=self._account.id, batch=batch, removed=len(certificates))

    async def _compared(self, chosen: Sequence[ArchivedMessage], grounds: RemovalGrounds) -> list[ArchivedMessage]:
        """Compare imported messages with the source, and choose again by the source's dates and labels."""
        foreign = [message for message in chosen if message.provenance is not Provenance.API]
        if not foreign:
            return list(chosen)
        ours = [message for message in chosen if message.provenance is Provenance.API]
        email = self._account.email
        try:
            compared = await compare_with_source(self._source, self._context.archive, email, foreign)
        except OwnedElsewhere as error:
            self._waits_for_owner = error.message
            self._stay(KeepReason.NOT_COMPARED, len(foreign))
            self.report.notes.append(f"Mail from a Takeout or an import was left for a later run. {error.message}")
            return ours
        self.report.compared += len(compared.found)
        self.report.replaced += compared.replaced
        self._stay(KeepReason.GONE, len(compared.gone))
        self._stay(KeepReason.NOT_COMPARED, len(foreign) - len(compared.gone) - len(compared.found))
        found = await asyncio.to_thread(
            find_messages, self._context.backend, email, [message.key for message in foreign]
        )
        as_there = [
            replace(message, date=there.date, labels=tuple(sorted(there.labels)))
            for message in found.values()
            if message.gmail_id and (there := compared.found.get(message.gmail_id))
        ]
        return ours + self._choose(as_there, grounds)

    async def _without_kept(self, chosen: Sequence[ArchivedMessage]) -> list[ArchivedMessage]:
        """Without messages that got a keeping label since the last sync."""
        if not chosen:
            return []
        dates = [message.date for message in chosen]
        kept = await self._source.with_keeping_label(min(dates), max(dates))
        going = [message for message in chosen if message.gmail_id not in kept]
        self._stay(KeepReason.LABEL, len(chosen) - len(going))
        return going

    async def _confirmed(self, chosen: Sequence[ArchivedMessage]) -> list[ArchivedMessage]:
        """Without messages that the mailbox found again and could not read: they are not certified."""
        if not chosen:
            return []
        doubtful = await self._source.unconfirmed([message.gmail_id for message in chosen if message.gmail_id])
        self._stay(KeepReason.NOT_CONFIRMED, len(doubtful))
        return [message for message in chosen if message.gmail_id not in doubtful]

    async def _require_on_disk(self, certificates: Sequence[Certificate]) -> None:
        """Read the certificates back through the file's name: a file that was moved or deleted meanwhile still accepts
        writes, which are lost."""
        ids = [certificate.proof.gmail_id for certificate in certificates]
        ledger = self._context.backend.ledger(self._account.email)
        found = await asyncio.to_thread(ledger.intended_among, self._policy.removal, ids)
        if lost := next((each for each in certificates if each.number not in found), None):
            raise UnsafeToRemove(
                f"Stopped before removing message {lost.proof.gmail_id}: its certificate was written and is not in "
                f"{self._context.backend.ledger_name}. Nothing of its batch was removed. Was it moved or deleted "
                "while this ran?"
            )

    async def _remove(self, certificates: Sequence[Certificate]) -> None:
        try:
            await self._source.remove([certificate.proof.gmail_id for certificate in certificates])
        except (PermissionMissing, CallRefused) as error:
            # A refusal may follow an attempt that went through and whose answer was lost.
            left = await self._sort_out(certificates)
            await self._settle(left, RemovalResult.LEFT, error.message)
            raise self._stopped(certificates, error, f"{len(left):,} of them are still there.") from error
        except PostroomError as error:
            again = "Their certificates are kept: the next run first asks the mailbox what became of them."
            raise self._stopped(certificates, error, again) from error
        await self._settle(certificates, RemovalResult.REMOVED, "")

    def _stopped(self, certificates: Sequence[Certificate], error: PostroomError, what_now: str) -> UnsafeToRemove:
        first, count = certificates[0].proof.gmail_id, len(certificates)
        removal = self._policy.removal
        return UnsafeToRemove(
            f"Stopped at a batch of {count} messages from {first} on ({removal}): {error.message} {what_now}"
        )

    def _stay(self, reason: KeepReason, count: int) -> None:
        if count:
            self.report.stays[reason] += count

    async def _settle(self, certificates: Sequence[Certificate], result: RemovalResult, detail: str) -> None:
        if certificates:
            now = self._context.clock.now()
            await asyncio.to_thread(self._certificates.settle, certificates, result, detail, now)


@asynccontextmanager
async def open_archiver(
    context: ArchiverContext, account: Account, policy: RemovalPolicy, mailbox: Mailbox
) -> AsyncIterator[Archiver]:
    """The one archiver of this account. Raises before anything changes if it cannot work."""
    require_permission(account, policy.removal.action)
    require_mailbox(await with_retries(context.clock, mailbox.identity), account)
    with context.backend.one_archiver(account.email) as still_alone:
        source = await open_source(mailbox, context.clock, policy)
        with context.backend.certificates(account.email) as certificates:
            yield Archiver(context, account, policy, source, certificates, still_alone)


def require_permission(account: Account, action: RemovalAction) -> None:
    """Deleting needs full access. The scopes of a bare token are unknown, so it is not refused here."""
    problem = missing_scope(account.scopes, account.email, full_access=action is RemovalAction.DELETE)
    if account.scopes and problem:
        raise NotAllowed(problem)


@dataclass(frozen=True)
class ArchiverService:
    """Starts archivers, for the command line and for the recurring job."""

    database: Database
    mailboxes: MailboxAccess
    archive: SharedArchive
    settings: Settings
    clock: Clock

    def require_enabled(self, *, enabled_now: bool = False) -> None:
        """Raises NotAllowed while the archiver is off."""
        require_enabled(self.settings.archiver, enabled_now=enabled_now)

    def policy(self, action: RemovalAction | None = None, label: str | None = None) -> RemovalPolicy:
        """From the arguments, else from the settings."""
        return policy_of(self.settings.archiver, self.clock.now(), action=action, label=label)

    async def plan(
        self,
        account: Account,
        policy: RemovalPolicy,
        *,
        verify: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> ArchivePlan:
        """What a run would do. Reads the archive only; makes no call to the mailbox and changes nothing."""
        watermark, bad = await self.database.read(
            lambda tx: (get_state(tx, account.id).watermark, {each.key for each in troubled_of(tx, account.id)})
        )
        return await asyncio.to_thread(
            make_plan, self.archive.backend, account.email, policy, watermark, bad, verify=verify, progress=progress
        )

    @asynccontextmanager
    async def opened(self, account: Account, policy: RemovalPolicy) -> AsyncIterator[Archiver]:
        """The archiver of a synced account. The caller has checked that it is enabled."""
        await self.database.read(lambda tx: get_state(tx, account.id))
        context = ArchiverContext(self.database, self.clock, self.archive, self.settings.archiver.batch_size)
        async with (
            self.mailboxes.mailbox(account, PriorityLane.SYNC) as mailbox,
            open_archiver(context, account, policy, mailbox) as archiver,
        ):
            yield archiver
