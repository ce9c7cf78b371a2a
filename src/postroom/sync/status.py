"""How a sync is doing: counters of the running engine, metrics, and the status that the database shows to those who did
not start it. Metrics are by outcome only, never by account, id or text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation
from sqlalchemy import select

from postroom.accounts.account import Account
from postroom.accounts.history_cursor import Duty, LiveTrouble, live_trouble
from postroom.accounts.troubled import troubled_number
from postroom.db import Tx
from postroom.db.tables.accounts import history_cursors
from postroom.domain.clock import Clock
from postroom.mailboxes.limiter import Limiter
from postroom.sync.alerts import AlertRecord, alerts_of
from postroom.sync.state import SliceRow, SyncState, find_state, slices_of
from postroom.telemetry.metrics import meter

_RATE_OVER_S = 60.0
OnOutcomes = Callable[[int, int], None]
"""Called with the number of messages that were worked on, and how many of them are bad."""


class SyncPhase(StrEnum):
    PLANNING = "planning"
    WALKING = "walking"
    """Listing slices and fetching what they hold."""
    FOLLOWING = "following"
    """Everything is there; only changes are read."""
    WAITING = "waiting"
    """Gmail cannot be reached, or asked for a pause."""


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """One moment of a sync."""

    phase: SyncPhase
    slices_done: int
    slices_total: int
    watermark: int
    """Seconds since 1970: all older mail is stored, listed as bad, or gone at the source."""
    stored: int
    known: int
    """Listed, and in the archive already."""
    gone: int
    bad: int
    messages_total: int
    """Of the mailbox, as Gmail counted them at the start."""
    messages_per_second: float
    units_per_minute: int
    """Quota units that this process used in the last minute."""
    allowance: int | None
    """Units a minute that the account may use; None where nobody knows."""
    throttles: int
    """How often the pace was cut."""
    splits: int
    retries: int
    stalls: int
    workers: int
    rps: float
    seconds_left: float | None
    """None while there is nothing to judge by."""

    @property
    def settled(self) -> int:
        """Messages of which it is known what became of them."""
        return self.stored + self.known + self.gone + self.bad


class ProgressCounters:
    """Counted by the parts of the engine as they go; read through `snapshot`."""

    def __init__(
        self,
        clock: Clock,
        limiter: Limiter,
        allowance: int | None,
        on_outcomes: OnOutcomes = lambda messages, bad: None,
    ) -> None:
        self.phase = SyncPhase.PLANNING
        self.slices_done = self.slices_total = self.watermark = self.messages_total = 0
        self.stored = self.known = self.gone = self.bad = 0
        self.splits = self.retries = self.stalls = 0
        self.earlier = 0
        """Messages whose fate was settled before this run."""
        self._on_outcomes = on_outcomes
        self._clock = clock
        self._limiter = limiter
        self._allowance = allowance
        self._started = clock.monotonic()
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, outcomes: Mapping[str, int]) -> None:
        """So many more messages were stored, known, gone or bad."""
        self.stored += outcomes.get("stored", 0)
        self.known += outcomes.get("known", 0)
        self.gone += outcomes.get("gone", 0)
        self.bad += outcomes.get("bad", 0)
        self._on_outcomes(sum(outcomes.values()) - outcomes.get("known", 0), outcomes.get("bad", 0))

    def fetched(self, messages: int) -> None:
        """So many messages came through just now; what the rate is made of."""
        now = self._clock.monotonic()
        self._recent.append((now, messages))
        self._forget(now)

    def snapshot(self, *, is_waiting: bool = False) -> SyncProgress:
        now = self._clock.monotonic()
        gate = self._limiter.gate
        rate = self._rate(now)
        return SyncProgress(
            phase=SyncPhase.WAITING if is_waiting else self.phase,
            slices_done=self.slices_done,
            slices_total=self.slices_total,
            watermark=self.watermark,
            stored=self.stored,
            known=self.known,
            gone=self.gone,
            bad=self.bad,
            messages_total=self.messages_total,
            messages_per_second=rate,
            units_per_minute=gate.used(now),
            allowance=self._allowance,
            throttles=gate.tuner.cuts,
            splits=self.splits,
            retries=self.retries,
            stalls=self.stalls,
            workers=gate.tuner.workers,
            rps=gate.tuner.rps,
            seconds_left=self._seconds_left(rate),
        )

    def _rate(self, now: float) -> float:
        self._forget(now)
        over = min(_RATE_OVER_S, now - self._started)
        return sum(messages for _, messages in self._recent) / over if over > 0 else 0.0

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - _RATE_OVER_S:
            self._recent.popleft()

    def _seconds_left(self, rate: float) -> float | None:
        if self.phase is SyncPhase.FOLLOWING:
            return 0.0
        left = self.messages_total - self.earlier - self.stored - self.known - self.gone - self.bad
        return max(left, 0) / rate if rate > 0 else None


_processed = meter.create_counter(
    "postroom.sync.processed", unit="{message}", description="messages whose fate is known, by outcome"
)
_retries = meter.create_counter("postroom.sync.retries", unit="{job}", description="jobs that are tried once more")
_splits = meter.create_counter("postroom.sync.splits", unit="{split}", description="jobs and slices cut in two")
_stalls = meter.create_counter("postroom.sync.stalls", unit="{job}", description="jobs cancelled for their silence")
_bad = meter.create_counter("postroom.sync.bad", unit="{message}", description="messages listed as bad")
_watermarks: dict[str, int] = {}


def _oldest_watermark(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(min(_watermarks.values()))] if _watermarks else []


meter.create_observable_gauge(
    "postroom.sync.watermark", [_oldest_watermark], unit="s", description="of the account that is furthest behind"
)


def record_processed(outcomes: Mapping[str, int]) -> None:
    for outcome, messages in outcomes.items():
        if messages:
            _processed.add(messages, {"outcome": outcome})


def record_retry() -> None:
    _retries.add(1)


def record_split(what: str) -> None:
    """`what` is `job` or `slice`."""
    _splits.add(1, {"what": what})


def record_stall() -> None:
    _stalls.add(1)


def count_bad_message() -> None:
    _bad.add(1)


def record_watermark(account_id: str, watermark: int) -> None:
    _watermarks[account_id] = watermark


UP_TO_DATE = "up to date"
LIVE_FAILING = "new mail fails"


@dataclass(frozen=True, slots=True)
class SyncStatus:
    account: str
    phase: str
    """`never synced`, `first sync`, `comparing again` after an expired history id, `up to date`, or `new mail fails`
    where the last attempts to take in new mail all ended early."""
    watermark: int
    slices_open: int
    slices_done: int
    """Done, but beyond one that is not."""
    counters: Mapping[str, int]
    bad: int
    alerts: tuple[AlertRecord, ...]
    """Those in force."""
    history_id: str | None
    history_read_at: datetime | None
    reader: str | None
    """Who reads the account's changes now."""
    live_trouble: str | None = None
    """Why new mail is not taken in to the end, again and again."""


def status_of(tx: Tx, account: Account, now: datetime) -> SyncStatus:
    state = find_state(tx, account.id)
    slices = slices_of(tx, account.id)
    cursor = tx.execute(
        select(history_cursors).where(
            history_cursors.c.account_id == account.id, history_cursors.c.duty == Duty.CHANGES
        )
    ).one_or_none()
    trouble = live_trouble(tx, account.id)
    is_read = cursor is not None and cursor.lease_expires_at is not None and cursor.lease_expires_at > now
    return SyncStatus(
        account=account.email,
        phase=_phase(state, slices, trouble),
        live_trouble=None if trouble is None else trouble.message,
        watermark=0 if state is None else state.watermark,
        slices_open=sum(not row.is_done for row in slices),
        slices_done=sum(row.is_done for row in slices),
        counters={} if state is None else state.counters,
        bad=troubled_number(tx, account.id),
        alerts=tuple(alert for alert in alerts_of(tx, account.id) if alert.is_in_force),
        history_id=None if cursor is None else cursor.history_id,
        history_read_at=None if cursor is None else cursor.moved_at or cursor.updated_at,
        reader=cursor.holder if cursor is not None and is_read else None,
    )


def _phase(state: SyncState | None, slices: Sequence[SliceRow], trouble: LiveTrouble | None) -> str:
    if trouble is not None:
        return LIVE_FAILING
    if state is None:
        return "never synced"
    # After a walk, only the time that has passed since is listed: one slice, which has an end.
    is_proving_the_newest = len(slices) == 1 and slices[0].slice.end is not None
    if not state.is_walking or is_proving_the_newest:
        return UP_TO_DATE
    return "first sync" if state.walk == 1 else "comparing again"
