"""All passes over one mailbox, assembled, and the job types that run them in a worker. A connector process runs them
on timers instead. Each pass runs once at a time; different passes run concurrently.

    history.sync.gmail  {"account_id"}                           live pass; the result says whether a `gap` is owed
    ingest.gmail        {"account_id", "message_ids"}            these messages, which a live pass deferred
    backfill.gmail      {"account_id"}                           backfill pass, a few minutes at a time
    backfill.gmail      {"account_id", "gap"}                    some steps of the gap that is owed, kill switch or not
    ondemand.gmail      {"account_id", "query", "max_results"?}  on-demand pass (BF-17), at most 50 messages
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from postroom.connectors import metrics
from postroom.connectors.arrivals import CHUNK, Arrivals, DeferredFile, DeferredMessages, PassTally
from postroom.connectors.backfill import BackfillOutcome, BackfillPass
from postroom.connectors.guidance import ConnectorGuidance, ConnectorHeartbeat, ContactCache
from postroom.connectors.intake import Handled, MailIntake
from postroom.connectors.live import GapWalk, LivePass, in_chunks
from postroom.connectors.metrics import Fate, PassName
from postroom.connectors.priority import ContactProof, PriorityRules, SentIndex, own_form
from postroom.connectors.source_mail import SourceMail, from_mailbox, newest_first
from postroom.connectors.switchboard_client import SwitchboardClient, failed_mail
from postroom.connectors.walking import SentFilling
from postroom.contract.mail import TroubledMailArgument
from postroom.contract.tool import Tools
from postroom.domain import jobs
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.domain.validation import MOST_RESULTS
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Detail, Mailbox
from postroom.mailboxes.reader import sort_results
from postroom.settings import ConnectorSettings

LONGEST_QUERY = 1_000


@dataclass
class OnDemandOutcome:
    """What was found, newest first, and what became of it."""

    gmail_ids: list[str] = field(default_factory=list)
    ingested: int = 0
    duplicates: int = 0
    skipped: int = 0
    failed: int = 0


class OnDemandPass:
    def __init__(self, switchboard: SwitchboardClient, mailbox: Mailbox, intake: MailIntake) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._intake = intake

    async def run(self, query: str, max_results: int = MOST_RESULTS) -> OnDemandOutcome:
        """`query` is in Gmail's search language."""
        if not query.strip() or len(query) > LONGEST_QUERY:
            raise BadInput("query", f"has 1 to {LONGEST_QUERY} characters")
        if not 1 <= max_results <= MOST_RESULTS:
            raise BadInput("max_results", f"{max_results} is not between 1 and {MOST_RESULTS}")
        outcome = OnDemandOutcome()
        mails = await self._found(query, max_results, outcome)
        handled = await self._intake.take(mails, PassName.ON_DEMAND)
        await self._switchboard.report_trouble(PassName.ON_DEMAND.lane, _troubled(handled))
        for each in handled:
            outcome.gmail_ids.append(each.mail.id)
            match each.fate:
                case Fate.FULL | Fate.METADATA:
                    outcome.ingested += 1
                case Fate.DUPLICATE:
                    outcome.duplicates += 1
                case None:
                    outcome.failed += 1
                case _:
                    outcome.skipped += 1
        return outcome

    async def _found(self, query: str, most: int, outcome: OnDemandOutcome) -> list[SourceMail]:
        ids: list[str] = []
        async for page in self._mailbox.list(query=query, everywhere=False, page_size=most):
            ids += page.ids
            if len(ids) >= most:
                break
        found = sort_results(await self._mailbox.fetch(ids[:most], Detail.HEADERS))
        if found.failed and not found.got:
            raise next(iter(found.failed.values()))
        outcome.failed = len(found.failed)
        mails = [from_mailbox(message) for message in found.got]
        return newest_first(mail for mail in mails if not mail.is_unfinished)


def _troubled(handled: Sequence[Handled]) -> list[TroubledMailArgument]:
    return [
        failed_mail(each.mail.id, each.error, archived=each.mail.archived is not None)
        for each in handled
        if each.error is not None
    ]


@dataclass(frozen=True)
class ConnectorContext:
    """What the passes of one mailbox need."""

    identity: str
    """Its address, which is also the `endpoint_identity`."""
    tools: Tools
    mailbox: Mailbox
    folder: Path
    """For the few small files that a connector keeps."""
    clock: Clock
    instance: str
    config: ConnectorSettings = field(default_factory=ConnectorSettings)
    deferred: DeferredMessages | None = None
    """None: a file in the folder."""


class GmailPasses:
    def __init__(self, context: ConnectorContext) -> None:
        config, clock, folder = context.config, context.clock, context.folder
        self.config = config
        self.counters: Counter[str] = Counter()
        self.switchboard = SwitchboardClient(context.tools, context.identity)
        self.contacts = ContactCache(folder, clock, timedelta(seconds=config.contact_max_age_s))
        deferred = context.deferred or DeferredFile(folder, clock)
        self.presence = ConnectorHeartbeat(
            self.switchboard, self.contacts, clock, context.instance, self._counted, self._checkpoint
        )
        sent = SentIndex(self.switchboard)
        self._guidance = ConnectorGuidance(
            lambda: self.presence.policy, self.contacts, lambda: self.presence.categories
        )
        own = frozenset(own_form(address) for address in (context.identity, *config.own_addresses))
        self._rules = PriorityRules(
            own, ContactProof(config.contact_proof), config.believed_servers, uses_kinds=config.use_kinds
        )
        live = context.mailbox.at(PriorityLane.LIVE)
        labels = LabelNames(live)
        intake = self._intake(live, labels, sent)
        self._arrivals = Arrivals(self.switchboard, live, intake, sent, deferred, clock)
        self._live = LivePass(self.switchboard, live, self._arrivals, labels, deferred, folder, context.instance, clock)
        behind = context.mailbox.at(PriorityLane.BACKFILL)
        late = Arrivals(self.switchboard, behind, self._intake(behind, labels, sent), sent, deferred, clock)
        self._gap = GapWalk(self.switchboard, behind, late, labels, clock)
        self.gap_is_open = False
        """As of the last pass."""
        self._backfill = BackfillPass(
            self.switchboard,
            behind,
            self._intake(behind, labels, sent),
            self._guidance,
            clock,
            progress_interval=config.progress_interval,
        )
        self._filling = SentFilling(behind, sent, folder, clock, config.sent_index_days)
        asked = context.mailbox.at(PriorityLane.USER_ACTION)
        self._on_demand = OnDemandPass(self.switchboard, asked, self._intake(asked, labels, sent))
        self._one_live, self._one_gap = asyncio.Lock(), asyncio.Lock()
        self._one_backfill, self._one_filling = asyncio.Lock(), asyncio.Lock()

    def _intake(self, mailbox: Mailbox, labels: LabelNames, sent: SentIndex) -> MailIntake:
        return MailIntake(self.switchboard, mailbox, labels, self._rules, self._guidance, sent)

    async def beat(self) -> None:
        await self.presence.beat()

    async def live(self) -> PassTally:
        """What is new in the mailbox, once."""
        async with self._one_live, _observed(PassName.LIVE):
            await self._ensure_guidance()
            tally = await self._live.run()
            self.gap_is_open = tally.gap
            self._add(tally)
            return tally

    async def walk_gap(self, budget_s: float) -> PassTally:
        """Compare some of what the history no longer reports, for so long at most."""
        async with self._one_gap, _observed(PassName.GAP):
            await self._ensure_guidance()
            tally = await self._gap.run(budget_s)
            self.gap_is_open = tally.gap
            self._add(tally)
            return tally

    async def ingest(self, gmail_ids: Sequence[str]) -> PassTally:
        """These messages, as if they had just arrived. Raises Retryable where one of them fails, whatever the
        reason: it may be read by a later version, and it is listed as troubled until then."""
        await self._ensure_guidance()
        tally = PassTally()
        for chunk in in_chunks(gmail_ids, CHUNK):
            await self._arrivals.retry(chunk, tally)
        self._add(tally)
        match tally.waiting:
            case None:
                return tally
            case Retryable() as error:
                raise error
            case error:
                raise Retryable(error.message) from error

    async def backfill(self, budget_s: float | None = None) -> BackfillOutcome:
        """A job of recovering history, if one waits."""
        async with self._one_backfill, _observed(PassName.BACKFILL):
            await self._ensure_guidance()
            outcome = await self._backfill.run(budget_s)
            self.counters["backfill_processed"] += outcome.processed
            self.counters["backfill_skipped"] += outcome.skipped
            return outcome

    @property
    def backfill_starts_in(self) -> timedelta:
        """How long until a job may start the backfill pass: however often one does, it asks for work no more often than
        a connector's timer (BF-11)."""
        return timedelta(seconds=self._backfill.polls_in(self.config.backfill_poll_s))

    async def on_demand(self, query: str, max_results: int = MOST_RESULTS) -> OnDemandOutcome:
        async with _observed(PassName.ON_DEMAND):
            await self._ensure_guidance()
            return await self._on_demand.run(query, max_results)

    async def fill_sent_index(self) -> bool:
        """Some more of the sent folder; True once all of it is in the index."""
        async with self._one_filling, _observed(PassName.SENT):
            return await self._filling.run()

    @property
    def sent_index_is_filled(self) -> bool:
        return self._filling.is_done

    async def _ensure_guidance(self) -> None:
        await self.presence.ensure(self.config.heartbeat_s * 4)

    def _add(self, tally: PassTally) -> None:
        self.counters.update(_counts(tally))

    def _counted(self) -> dict[str, int]:
        return dict(self.counters)

    def _checkpoint(self) -> dict[str, Any]:
        generated_at, seen_at = self.contacts.generated_at, self._live.seen_at
        return {
            "live_seen_at": seen_at and seen_at.isoformat(),
            "gap_open": self.gap_is_open,
            "sent_index_filled": self._filling.is_done,
            "contacts": str(self.contacts.state),
            "contacts_generated_at": generated_at and generated_at.isoformat(),
        }


class _observed:
    """Counts how a pass ended."""

    def __init__(self, name: PassName) -> None:
        self._name = name

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case None:
                outcome = "done"
            case Retryable():
                outcome = "retry"
            case PostroomError():
                outcome = "failed"
            case _:
                outcome = "stopped"
        metrics.record_pass(self._name, outcome)


BACKFILL_BUDGET_S = 240.0
"""A backfill or the walk of a gap yields after this, to stay within its time limit, and goes on in the next run."""
MOST_IDS = 500
GAP = "gap"
"""In a result: whether Gmail has forgotten a part of the history that is not compared yet. In a payload: walk it."""

JobPayload = Mapping[str, Any]
JobResult = dict[str, Any]


async def run_history_sync(passes: GmailPasses, payload: JobPayload) -> JobResult:
    tally = await passes.live()
    if not passes.sent_index_is_filled:
        await passes.fill_sent_index()
    return _counts(tally) | {GAP: tally.gap}


async def run_ingest(passes: GmailPasses, payload: JobPayload) -> JobResult:
    ids = payload.get("message_ids")
    if not isinstance(ids, list) or not 0 < len(ids) <= MOST_IDS or not all(isinstance(each, str) for each in ids):
        raise BadInput("message_ids", f"is a list of 1 to {MOST_IDS} Gmail ids")
    return _counts(await passes.ingest(ids))


async def run_backfill(passes: GmailPasses, payload: JobPayload) -> JobResult:
    if payload.get(GAP) is not None:
        tally = await passes.walk_gap(BACKFILL_BUDGET_S)
        return _counts(tally) | {GAP: tally.gap}
    if wait := passes.backfill_starts_in:
        return asdict(BackfillOutcome(retry_after=wait.total_seconds()))
    return asdict(await passes.backfill(BACKFILL_BUDGET_S))


async def run_on_demand(passes: GmailPasses, payload: JobPayload) -> JobResult:
    query, most = payload.get("query"), payload.get("max_results", MOST_RESULTS)
    if not isinstance(query, str):
        raise BadInput("query", "is missing")
    if not isinstance(most, int) or isinstance(most, bool):
        raise BadInput("max_results", "is a whole number")
    return asdict(await passes.on_demand(query, most))


def _counts(tally: PassTally) -> JobResult:
    return {name: value for name, value in asdict(tally).items() if type(value) is int}


DRIVERS: Mapping[str, Callable[[GmailPasses, JobPayload], Awaitable[JobResult]]] = {
    "history.sync.gmail": run_history_sync,
    "ingest.gmail": run_ingest,
    "backfill.gmail": run_backfill,
    jobs.ON_DEMAND.name: run_on_demand,
}
"""By job type."""
