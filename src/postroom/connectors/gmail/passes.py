"""All passes over one mailbox, put together. A timer drives them in a connector of its own, a durable job in a worker.

Each pass runs once at a time; different ones run beside each other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from postroom.connectors import instruments
from postroom.connectors.calling import Connect
from postroom.connectors.config import ConnectorConfig
from postroom.connectors.contact_cache import ContactCache
from postroom.connectors.gmail.arrivals import CHUNK, Arrivals, Tally
from postroom.connectors.gmail.backfill import BackfillPass, Selector
from postroom.connectors.gmail.changes import in_chunks
from postroom.connectors.gmail.gap import Gap
from postroom.connectors.gmail.intake import Guidance, Intake
from postroom.connectors.gmail.job_work import BackfillOutcome
from postroom.connectors.gmail.labels import LabelBook
from postroom.connectors.gmail.live import LivePass
from postroom.connectors.gmail.on_demand import MOST_RESULTS, OnDemandOutcome, OnDemandPass
from postroom.connectors.gmail.parking import Parking
from postroom.connectors.gmail.sent_filling import SentFilling
from postroom.connectors.instruments import PassName
from postroom.connectors.priority import PriorityRules, own_form
from postroom.connectors.pulse import Pulse
from postroom.connectors.sent_index import SentIndex
from postroom.connectors.switchboard import Switchboard
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.gmail.client import GmailClient
from postroom.gmail.ports import Lane


@dataclass(frozen=True)
class Mailbox:
    """What the passes of one mailbox stand on."""

    identity: str
    """Its address, which is also the `endpoint_identity`."""
    connect: Connect
    client: GmailClient
    folder: Path
    """For the few small files that a connector keeps."""
    clock: Clock
    selector: Selector
    instance: str
    config: ConnectorConfig = field(default_factory=ConnectorConfig)
    patience_s: float | None = None
    """The longest that a backfill waits for its rate limit within one run; None waits as long as it takes."""


class GmailPasses:
    def __init__(self, mailbox: Mailbox) -> None:
        config, clock, folder = mailbox.config, mailbox.clock, mailbox.folder
        self.config = config
        self.counters: Counter[str] = Counter()
        self.switchboard = Switchboard(mailbox.connect, mailbox.identity)
        self.contacts = ContactCache(folder, clock, config.contact_max_age)
        self.parking = Parking(folder, clock)
        self.pulse = Pulse(self.switchboard, self.contacts, clock, mailbox.instance, self._counted, self._checkpoint)
        sent = SentIndex(self.switchboard)
        self._guidance = Guidance(lambda: self.pulse.policy, self.contacts)
        own = frozenset(own_form(address) for address in (mailbox.identity, *config.aliases))
        self._rules = PriorityRules(own, config.contact_proof, config.receiving_servers)
        live = mailbox.client.at(Lane.LIVE)
        labels = LabelBook(live)
        intake = self._intake(live, labels, sent)
        self._arrivals = Arrivals(self.switchboard, live, intake, sent, self.parking, clock)
        self._gap = Gap(self.switchboard, live, self._arrivals, folder, clock)
        self._live = LivePass(
            self.switchboard, live, self._arrivals, labels, self.parking, self._gap, mailbox.instance, clock
        )
        behind = mailbox.client.at(Lane.BACKFILL)
        self._backfill = BackfillPass(
            self.switchboard,
            behind,
            self._intake(behind, labels, sent),
            self._guidance,
            mailbox.selector,
            clock,
            progress_interval=config.progress_interval,
            patience_s=mailbox.patience_s,
        )
        self._filling = SentFilling(behind, sent, folder, clock, config.sent_index_days)
        asked = mailbox.client.at(Lane.USER_ACTION)
        self._on_demand = OnDemandPass(self.switchboard, asked, self._intake(asked, labels, sent))
        self._one_live, self._one_backfill, self._one_filling = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()

    def _intake(self, client: GmailClient, labels: LabelBook, sent: SentIndex) -> Intake:
        return Intake(self.switchboard, client, labels, self._rules, self._guidance, sent)

    async def beat(self) -> None:
        await self.pulse.beat()

    async def live(self, *, fills_gap: bool = True) -> Tally:
        """What is new in the mailbox, once. Without `fills_gap`, a gap is only found, and told in the tally."""
        async with self._one_live, _observed(PassName.LIVE):
            await self._ensure_guidance()
            tally = await self._live.run(fills_gap=fills_gap)
            self._add(tally)
            return tally

    async def ingest(self, gmail_ids: Sequence[str]) -> Tally:
        """These messages, as if they had just arrived."""
        await self._ensure_guidance()
        tally = Tally()
        for chunk in in_chunks(gmail_ids, CHUNK):
            await self._arrivals.take(chunk, PassName.LIVE, tally)
        self._add(tally)
        if tally.waiting is not None:
            raise tally.waiting
        return tally

    async def backfill(self, budget_s: float | None = None) -> BackfillOutcome:
        """A job of recovering history, if one waits."""
        async with self._one_backfill, _observed(PassName.BACKFILL):
            await self._ensure_guidance()
            outcome = await self._backfill.run(budget_s)
            self.counters["backfill_processed"] += outcome.processed
            self.counters["backfill_skipped"] += outcome.skipped
            return outcome

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
        await self.pulse.ensure(self.config.heartbeat_s * 4)

    def _add(self, tally: Tally) -> None:
        counts = {name: value for name, value in asdict(tally).items() if isinstance(value, int)}
        self.counters.update(counts)

    def _counted(self) -> dict[str, int]:
        return {**self.counters, "parked": self.parking.count}

    def _checkpoint(self) -> dict[str, Any]:
        generated_at = self.contacts.generated_at
        return {
            "live_seen_at": self._gap.last_seen,
            "gap_open": self._gap.is_open,
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
        instruments.record_pass(self._name, outcome)
