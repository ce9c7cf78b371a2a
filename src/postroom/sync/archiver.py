"""The archiver: removes mail at the source that the archive provably has. For every batch, in this order: read the
watermark and the bad messages again, ask the source for protecting labels, read every message back from disk and hash
it, commit the certificates, then remove.

Every removal can be repeated safely. After a crash the next run first asks the source what became of the certified
removals. Nothing is removed without a certificate on disk, and anything unexpected ends the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from postroom.accounts.access import GmailAccess
from postroom.accounts.account import Account
from postroom.accounts.troubled import troubled_of
from postroom.archive.backend import ArchiveBackend, CertificateBook, StillAlone
from postroom.archive.certificates import Certificate, Removal, RemovalAction, RemovalResult
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance, StoreOutcome
from postroom.archive.service import AccountStore, SharedArchive
from postroom.archive.status import OwnedElsewhere
from postroom.db import Database
from postroom.domain.backoff import EQUAL_JITTER, Backoff, retry
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotAllowed, PostroomError
from postroom.domain.ids import new_id
from postroom.mailboxes.errors import CallRefused, Gone, PermissionMissing
from postroom.mailboxes.gmail.permissions import missing_scope
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Detail, Mailbox, MailboxChange, Move, RemoteMessage, Span
from postroom.mailboxes.reader import sort_results
from postroom.settings import Settings
from postroom.sync.archiver_plan import (
    ALWAYS_KEPT,
    ArchivePlan,
    KeepReason,
    RemovalGrounds,
    RemovalPolicy,
    UnsafeToRemove,
    find_messages,
    is_removed,
    keep_reason,
    make_plan,
    policy_of,
    read_back,
    require_enabled,
)
from postroom.sync.fetch import require_mailbox
from postroom.sync.state import get_state
from postroom.telemetry import logs
from postroom.telemetry.metrics import meter

_removed = meter.create_counter(
    "postroom.archiver.removed", unit="{message}", description="messages removed at the source, by action"
)
_stops = meter.create_counter("postroom.archiver.stops", unit="{run}", description="runs that a doubt has ended")


def record_removed(action: RemovalAction, count: int) -> None:
    _removed.add(count, {"action": str(action)})


def record_stop() -> None:
    _stops.add(1)


MOST_IN_A_BATCH = 300
log = logs.get(__name__)


T = TypeVar("T")
ATTEMPTS = 6
_BACKOFF = Backoff(1.0, 60.0, jitter=EQUAL_JITTER, longest_asked_s=60.0)


class RemovalSource:
    """One account's mailbox, for one policy."""

    def __init__(self, mailbox: Mailbox, clock: Clock, policy: RemovalPolicy, ids: Mapping[str, str]) -> None:
        self.mailbox = mailbox
        self.names = LabelNames(mailbox)
        self._clock = clock
        self._change = _change_for(policy.removal, ids.get(policy.removal.label.casefold(), ""))
        kept = policy.keep_labels | ALWAYS_KEPT
        self._kept_ids = sorted({ids[name.casefold()] for name in kept if name.casefold() in ids})
        self.unknown_labels = sorted(name for name in kept if name.casefold() not in ids)
        """Labels that should keep mail here and that this mailbox does not have."""

    async def with_a_label_that_keeps(self, oldest: datetime, newest: datetime) -> set[str]:
        """Messages of this time that have such a label now, whatever the archive last heard. Cheap: listed, not got."""
        span = Span(int(oldest.timestamp()), int(newest.timestamp()) + 2)
        kept: set[str] = set()
        for label_id in self._kept_ids:
            kept |= await with_retries(self._clock, partial(self._listed, span, label_id))
        return kept

    async def _listed(self, span: Span, label_id: str) -> set[str]:
        return {each async for page in self.mailbox.list(span, label_id=label_id) for each in page.ids}

    async def labels_now(self, gmail_ids: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The names of each message's labels at this moment; None for one that is no longer there."""
        found = sort_results(await self.mailbox.fetch(gmail_ids, Detail.FLAGS))
        for message_id, error in found.failed.items():
            raise UnsafeToRemove(
                f"Stopped: Gmail could not say what became of message {message_id}: {error.message} Its "
                "certificate is kept; the next run asks again."
            ) from error
        labels = {message.id: await self.names.names(message.label_ids) for message in found.got}
        return {**labels, **dict.fromkeys(found.gone)}

    async def remove(self, gmail_ids: Sequence[str]) -> None:
        """Returns once the mailbox has said that it is done; ids that are not there any more count as done."""
        try:
            await with_retries(self._clock, partial(self.mailbox.modify, gmail_ids, self._change))
        except Gone:  # one of them was, and nobody says which
            for gmail_id in gmail_ids:
                with suppress(Gone):
                    await with_retries(self._clock, partial(self.mailbox.modify, [gmail_id], self._change))


def _change_for(removal: Removal, label_id: str) -> MailboxChange:
    match removal.action:
        case RemovalAction.LABEL:
            return MailboxChange(remove=frozenset({label_id}))
        case RemovalAction.TRASH:
            return MailboxChange(move=Move.TRASH)
        case RemovalAction.DELETE:
            return MailboxChange(move=Move.DELETE)


async def with_retries(clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Again after what may pass; an answer that was lost is asked for again, because repeating is harmless."""
    return await retry(call, _BACKOFF, clock, attempts=ATTEMPTS)


async def open_source(mailbox: Mailbox, clock: Clock, policy: RemovalPolicy) -> RemovalSource:
    """Find the labels that the policy names; one to be removed has to exist."""
    labels = await with_retries(clock, mailbox.labels)
    ids = {label.name.casefold(): label.id for label in labels}
    _require_label(policy.removal, ids)
    return RemovalSource(mailbox, clock, policy, ids)


def _require_label(removal: Removal, ids: Collection[str]) -> None:
    if removal.action is RemovalAction.LABEL and removal.label.casefold() not in ids:
        raise BadInput("label", f"the mailbox has no label {removal.label!r}; INBOX is the usual choice")


@dataclass(frozen=True, slots=True)
class AtSource:
    """What Gmail says of a message, which a Takeout may say otherwise."""

    date: datetime
    labels: frozenset[str]


@dataclass(slots=True)
class ComparedMail:
    """What was found for each message that was asked for."""

    found: dict[str, AtSource] = field(default_factory=dict)
    """Those that are stored now as Gmail holds them."""
    gone: list[str] = field(default_factory=list)
    failed: dict[str, PostroomError] = field(default_factory=dict)
    replaced: int = 0


async def compare(
    source: RemovalSource, archive: SharedArchive, email: str, messages: Sequence[ArchivedMessage]
) -> ComparedMail:
    """Raises OwnedElsewhere, before anything is fetched, while another process writes to the archive."""
    compared = ComparedMail()
    ids = [message.gmail_id for message in messages if message.gmail_id]
    size = source.mailbox.batch_size
    async with archive.store(email, "postroom archive run") as store:
        for start in range(0, len(ids), size):
            await _compare_some(source, store, ids[start : start + size], compared)
    return compared


async def _compare_some(source: RemovalSource, store: AccountStore, ids: Sequence[str], compared: ComparedMail) -> None:
    fetched = sort_results(await source.mailbox.fetch(ids))
    compared.gone += fetched.gone
    compared.failed |= fetched.failed
    stored = await store.store([_incoming(message) for message in fetched.got])
    compared.replaced += sum(each.outcome is StoreOutcome.REPLACED for each in stored)
    for message in fetched.got:
        if message.received is not None:
            labels = await source.names.names(message.label_ids)
            compared.found[message.id] = AtSource(message.received, labels)


def _incoming(message: RemoteMessage) -> IncomingMail:
    """The bytes alone: what labels there are now is the sync's to record."""
    return IncomingMail(
        raw=message.raw or b"",
        provenance=Provenance.API,
        gmail_id=message.id,
        thread_id=message.thread_id or None,
        received=message.received,
    )


@dataclass(slots=True)
class ArchiveReport:
    """What a run did, as far as it came."""

    removed: int = 0
    bytes: int = 0
    batches: int = 0
    resumed: int = 0
    """Removals of an interrupted run whose outcome the source was asked for."""
    compared: int = 0
    replaced: int = 0
    """Bytes of a Takeout that differed from Gmail's, and were replaced by Gmail's."""
    stays: Counter[KeepReason] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = False
    """False: stopped before the end, by a person or by a doubt."""


@dataclass(frozen=True)
class ArchiverContext:
    """Where the archiver works."""

    database: Database
    clock: Clock
    archive: SharedArchive
    batch_size: int = MOST_IN_A_BATCH

    @property
    def place(self) -> ArchiveBackend:
        return self.archive.place


class Archiver:
    """Use `archiving`; `report` is true at every moment, also after an error."""

    def __init__(
        self,
        site: ArchiverContext,
        account: Account,
        policy: RemovalPolicy,
        source: RemovalSource,
        certificates: CertificateBook,
        still_alone: StillAlone,
    ) -> None:
        self.report = ArchiveReport()
        self._site = site
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
        for start in range(0, len(opened), self._site.batch_size):
            await self._settle_interrupted(opened[start : start + self._site.batch_size])

    async def _settle_interrupted(self, opened: Sequence[Certificate]) -> None:
        """Those still there are proved anew, like any other; those of another action stay, since it was not chosen."""
        still_there = await self._sort_out(opened)
        self.report.resumed += len(opened)
        others = [certificate for certificate in still_there if certificate.removal != self._policy.removal]
        await self._settle(others, RemovalResult.LEFT, "interrupted; another action was chosen")
        if again := [certificate for certificate in still_there if certificate.removal == self._policy.removal]:
            await self._take_up(again)

    async def _sort_out(self, certificates: Sequence[Certificate]) -> list[Certificate]:
        """Ask the source what became of them, and write it down; returns those that are still where they were."""
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
        found = await asyncio.to_thread(find_messages, self._site.place, self._account.email, keys)
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
        """Batches of messages that may go as far as the archive tells; each batch is looked at again when its turn
        comes."""
        watermark = (await self._grounds(())).watermark
        walk = self._site.place.portions(self._account.email, watermark)
        chosen: list[ArchivedMessage] = []
        while portion := await asyncio.to_thread(next, walk, None):
            grounds = await self._grounds(portion)
            chosen += self._choose(portion, grounds)
            while len(chosen) >= self._site.batch_size:
                yield chosen[: self._site.batch_size]
                chosen = chosen[self._site.batch_size :]
        if chosen:
            yield chosen

    async def _grounds(self, messages: Sequence[ArchivedMessage]) -> RemovalGrounds:
        """Read again, every time."""
        account_id, email, removal = self._account.id, self._account.email, self._policy.removal
        watermark, bad = await self._site.database.read(
            lambda tx: (get_state(tx, account_id).watermark, {each.key for each in troubled_of(tx, account_id)})
        )
        ids = [message.gmail_id for message in messages if message.gmail_id]
        ledger = self._site.place.ledger(email)
        return RemovalGrounds(watermark, bad, await asyncio.to_thread(ledger.removed_among, removal, ids))

    def _choose(self, messages: Sequence[ArchivedMessage], grounds: RemovalGrounds) -> list[ArchivedMessage]:
        """Those that may go, and those of which only a comparison with the source is missing."""
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
        chosen = await self._without_kept(chosen)
        if not chosen:
            return
        proofs = await asyncio.to_thread(read_back, self._site.place, chosen)
        batch, now = new_id(), self._site.clock.now()
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
        """Replace those from elsewhere by what Gmail holds, dated and labelled as it is there, and choose again."""
        foreign = [message for message in chosen if message.provenance is not Provenance.API]
        if not foreign:
            return list(chosen)
        ours = [message for message in chosen if message.provenance is Provenance.API]
        email = self._account.email
        try:
            compared = await compare(self._source, self._site.archive, email, foreign)
        except OwnedElsewhere as error:
            self._waits_for_owner = error.message
            self._stay(KeepReason.NOT_COMPARED, len(foreign))
            self.report.notes.append(f"Mail from a Takeout or an import was left for a later run. {error.message}")
            return ours
        self.report.compared += len(compared.found)
        self.report.replaced += compared.replaced
        self._stay(KeepReason.GONE, len(compared.gone))
        self._stay(KeepReason.NOT_COMPARED, len(foreign) - len(compared.gone) - len(compared.found))
        found = await asyncio.to_thread(find_messages, self._site.place, email, [message.key for message in foreign])
        as_there = [
            replace(message, date=there.date, labels=tuple(sorted(there.labels)))
            for message in found.values()
            if message.gmail_id and (there := compared.found.get(message.gmail_id))
        ]
        return ours + self._choose(as_there, grounds)

    async def _without_kept(self, chosen: Sequence[ArchivedMessage]) -> list[ArchivedMessage]:
        """The archive may not have heard yet what was starred a minute ago."""
        if not chosen:
            return []
        dates = [message.date for message in chosen]
        kept = await self._source.with_a_label_that_keeps(min(dates), max(dates))
        going = [message for message in chosen if message.gmail_id not in kept]
        self._stay(KeepReason.LABEL, len(chosen) - len(going))
        return going

    async def _require_on_disk(self, certificates: Sequence[Certificate]) -> None:
        """Read anew by whoever has only the file: one that was moved or deleted meanwhile still takes what is written,
        and keeps it from everybody."""
        ids = [certificate.proof.gmail_id for certificate in certificates]
        ledger = self._site.place.ledger(self._account.email)
        found = await asyncio.to_thread(ledger.intended_among, self._policy.removal, ids)
        if lost := next((each for each in certificates if each.number not in found), None):
            raise UnsafeToRemove(
                f"Stopped before removing message {lost.proof.gmail_id}: its certificate was written and is not in "
                f"{self._site.place.ledger_name}. Nothing of its batch was removed. Was it moved or deleted while this "
                "ran?"
            )

    async def _remove(self, certificates: Sequence[Certificate]) -> None:
        try:
            await self._source.remove([certificate.proof.gmail_id for certificate in certificates])
        except (PermissionMissing, CallRefused) as error:
            # A refusal may follow an attempt that went through and whose answer was lost.
            left = await self._sort_out(certificates)
            await self._settle(left, RemovalResult.LEFT, error.message)
            raise self._doubt(certificates, error, f"{len(left):,} of them are still there.") from error
        except PostroomError as error:
            again = "Their certificates are kept: the next run first asks Gmail what became of them."
            raise self._doubt(certificates, error, again) from error
        await self._settle(certificates, RemovalResult.REMOVED, "")

    def _doubt(self, certificates: Sequence[Certificate], error: PostroomError, what_now: str) -> UnsafeToRemove:
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
            now = self._site.clock.now()
            await asyncio.to_thread(self._certificates.settle, certificates, result, detail, now)


@asynccontextmanager
async def open_archiver(
    site: ArchiverContext, account: Account, policy: RemovalPolicy, mailbox: Mailbox
) -> AsyncIterator[Archiver]:
    """The one archiver of this account, ready to run. Refuses what cannot work before anything is touched."""
    require_permission(account, policy.removal.action)
    require_mailbox(await with_retries(site.clock, mailbox.identity), account)
    with site.place.one_archiver(account.email) as still_alone:
        source = await open_source(mailbox, site.clock, policy)
        with site.place.certificates(account.email) as certificates:
            yield Archiver(site, account, policy, source, certificates, still_alone)


def require_permission(account: Account, action: RemovalAction) -> None:
    """Deleting needs full access. What a bare token may do is not known before Gmail says so."""
    problem = missing_scope(account.scopes, account.email, full_access=action is RemovalAction.DELETE)
    if account.scopes and problem:
        raise NotAllowed(problem)


@dataclass(frozen=True)
class ArchiverService:
    database: Database
    gmail: GmailAccess
    archive: SharedArchive
    settings: Settings
    clock: Clock

    def require_enabled(self, *, enabled_now: bool = False) -> None:
        """Refused while nobody has turned it on."""
        require_enabled(self.settings.archiver, enabled_now=enabled_now)

    def policy(self, action: RemovalAction | None = None, label: str | None = None) -> RemovalPolicy:
        """What was asked for, else what the settings say."""
        return policy_of(self.settings.archiver, self.clock.now(), action=action, label=label)

    async def plan(
        self,
        account: Account,
        policy: RemovalPolicy,
        *,
        verify: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> ArchivePlan:
        """What a run would do. Nothing is asked of the source, and nothing is changed."""
        watermark, bad = await self.database.read(
            lambda tx: (get_state(tx, account.id).watermark, {each.key for each in troubled_of(tx, account.id)})
        )
        return await asyncio.to_thread(
            make_plan, self.archive.place, account.email, policy, watermark, bad, verify=verify, progress=progress
        )

    @asynccontextmanager
    async def opened(self, account: Account, policy: RemovalPolicy) -> AsyncIterator[Archiver]:
        """The archiver of an account that has been synced, for whoever has made sure that it may run."""
        await self.database.read(lambda tx: get_state(tx, account.id))
        site = ArchiverContext(self.database, self.clock, self.archive, self.settings.archiver.batch_size)
        async with (
            self.gmail.mailbox(account, PriorityLane.SYNC) as mailbox,
            open_archiver(site, account, policy, mailbox) as archiver,
        ):
            yield archiver
