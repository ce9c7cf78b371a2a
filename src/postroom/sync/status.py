"""What is known of an account's sync: the estimate made before it, the progress and metrics of the running engine, and
the status recorded in the database.

Metrics are by outcome only, never by account, id or text. Gmail's count includes messages that it may not list, so
an estimate may be higher than what a sync finds.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation

from postroom.accounts.account import Account
from postroom.accounts.history import LiveTrouble, changes_cursor, live_trouble, open_gap
from postroom.accounts.troubled import troubled_number
from postroom.archive.backend import ArchiveBackend
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.mailboxes.gmail.methods import MINUTE_S, PROFILES, GmailMethod, ProfileName, QuotaProfile
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.pace import Reserve
from postroom.mailboxes.protocol import Detail, Got, Mailbox, Span
from postroom.settings import SyncSettings
from postroom.sync.alerts import AlertRecord, alerts_of
from postroom.sync.fetch import bad_of
from postroom.sync.slices import Granularity, Slice, WalkPlan, plan_walk
from postroom.sync.state import SliceRow, SyncState, WalkProgress, find_state, slices_of
from postroom.telemetry.metrics import meter
from postroom.telemetry.series import RECORDER, Series

_RATE_OVER_S = 60.0
OnOutcomes = Callable[[int, int], None]
"""Called with the number of messages that were worked on, and how many of them are bad."""


class SyncPhase(StrEnum):
    PLANNING = "planning"
    WALKING = "walking"
    """Listing slices and fetching what they hold."""
    FOLLOWING = "following"
    """The walk is finished; only changes are read."""
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
    """Units a minute that the account may use; None if unknown."""
    throttles: int
    """How often the pace was cut."""
    splits: int
    retries: int
    stalls: int
    workers: int
    rps: float
    seconds_left: float | None
    """None while the rate is unknown."""

    earlier: int = 0
    """Messages whose outcome was known before this run."""

    @property
    def settled(self) -> int:
        """Messages whose outcome is known."""
        return self.stored + self.known + self.gone + self.bad

    @property
    def done(self) -> int:
        """Of `messages_total`."""
        is_over = self.phase is SyncPhase.FOLLOWING
        return self.messages_total if is_over else min(self.earlier + self.settled, self.messages_total)

    @property
    def words(self) -> str:
        return progress_words(self.done, self.messages_total, self.messages_per_second, self.seconds_left)


def progress_words(done: int, total: int, per_second: float | None, seconds_left: float | None) -> str:
    """How far a sync has come, the same words everywhere: `12,400 of 98,000 · 5/s · 4 h left`."""
    parts = [f"{done:,} of {total:,}"]
    if per_second and done < total:
        parts.append(f"{per_second:,.0f}/s" if per_second >= 1 else f"{per_second:.1f}/s")
    if seconds_left is not None and done < total:
        parts.append(f"{_about(seconds_left)} left")
    return " · ".join(parts)


def _about(seconds: float) -> str:
    for longest, unit_s, unit in ((90, 1, "s"), (5_400, 60, "min"), (172_800, 3_600, "h")):
        if seconds < longest:
            return f"{max(round(seconds / unit_s), 1)} {unit}"
    return f"{seconds / 86_400:.0f} days"


class ProgressCounters:
    """Counters that the parts of the engine add to; read through `snapshot`."""

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
        """Messages whose outcome was known before this run."""
        self._on_outcomes = on_outcomes
        self._clock = clock
        self._limiter = limiter
        self._allowance = allowance
        self._started = clock.monotonic()
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, outcomes: Mapping[str, int]) -> None:
        """Add to the numbers of stored, known, gone and bad messages."""
        self.stored += outcomes.get("stored", 0)
        self.known += outcomes.get("known", 0)
        self.gone += outcomes.get("gone", 0)
        self.bad += outcomes.get("bad", 0)
        self._on_outcomes(sum(outcomes.values()) - outcomes.get("known", 0), outcomes.get("bad", 0))
        now = self._clock.monotonic()
        self._recent.append((now, sum(outcomes.values())))  # the pace of all of them tells how long the rest takes
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
            earlier=self.earlier,
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
        return self.left / rate if rate > 0 else None

    @property
    def left(self) -> int:
        """How many messages of the mailbox are not settled yet, about."""
        return max(self.messages_total - self.earlier - self.stored - self.known - self.gone - self.bad, 0)


_processed = meter.create_counter(
    "postroom.sync.processed", unit="{message}", description="messages whose outcome is known, by outcome"
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
    RECORDER.count(Series.SYNC_MESSAGES, sum(outcomes.values()))
    for outcome, messages in outcomes.items():
        if messages:
            _processed.add(messages, {"outcome": outcome})


def record_retry() -> None:
    RECORDER.count(Series.SYNC_RETRIES)
    _retries.add(1)


def record_split(what: str) -> None:
    """`what` is `job` or `slice`."""
    RECORDER.count(Series.SYNC_SPLITS)
    _splits.add(1, {"what": what})


def record_stall() -> None:
    _stalls.add(1)


def count_bad_message() -> None:
    RECORDER.count(Series.SYNC_BAD)
    _bad.add(1)


def record_watermark(account_id: str, watermark: int) -> None:
    _watermarks[account_id] = watermark


UP_TO_DATE = "up to date"
LIVE_FAILING = "new mail fails"


@dataclass(frozen=True, slots=True)
class WalkReport:
    done: int
    total: int
    per_second: float | None
    """None: no one is at work now."""
    seconds_left: float | None
    words: str
    """`12,400 of 98,000 · 5/s · 4 h left`"""


_SILENT = timedelta(minutes=2)


def walk_report(progress: WalkProgress, now: datetime) -> WalkReport:
    """From the last sign of life of a walk, in whatever process it runs."""
    rate = progress.per_second if now - progress.at <= _SILENT else None
    left = (progress.total - progress.done) / rate if rate else None
    words = progress_words(progress.done, progress.total, rate, left)
    return WalkReport(progress.done, progress.total, rate, left, words)


@dataclass(frozen=True, slots=True)
class SyncStatus:
    account: str
    phase: str
    """`never synced`, `first sync`, `comparing again` after an expired history id, `up to date`, or `new mail fails`
    where the last attempts to take in new mail all ended early."""
    watermark: int
    slices_open: int
    slices_done: int
    """Done, but newer than an open one."""
    counters: Mapping[str, int]
    bad: int
    alerts: tuple[AlertRecord, ...]
    """Those in force."""
    history_id: str | None
    history_read_at: datetime | None
    reader: str | None
    """The process that reads the account's changes now."""
    live_trouble: str | None = None
    """Why the last attempts to take in new mail failed."""
    progress: WalkReport | None = None
    """Of a walk over the whole mailbox that is under way."""
    gap_since: datetime | None = None
    """Mail received from then on is being compared, because the source no longer reports all of its changes."""


def status_of(tx: Tx, account: Account, now: datetime) -> SyncStatus:
    state = find_state(tx, account.id)
    slices = slices_of(tx, account.id)
    cursor = changes_cursor(tx, account.id)
    trouble = live_trouble(tx, account.id)
    is_read = cursor is not None and cursor.lease_expires_at is not None and cursor.lease_expires_at > now
    gap = open_gap(tx, account.id)
    return SyncStatus(
        account=account.email,
        phase=_phase(state, slices, trouble),
        progress=_walking(state, slices, now),
        gap_since=None if gap is None else datetime.fromtimestamp(gap.since, UTC),
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
    if not _is_walking(state, slices):
        return UP_TO_DATE
    return "first sync" if state.walk == 1 else "comparing again"


def _is_walking(state: SyncState, slices: Sequence[SliceRow]) -> bool:
    """After a walk, only the time that has passed since is listed: one slice, which has an end."""
    is_proving_the_newest = len(slices) == 1 and slices[0].slice.end is not None
    return state.is_walking and not is_proving_the_newest


def _walking(state: SyncState | None, slices: Sequence[SliceRow], now: datetime) -> WalkReport | None:
    if state is None or state.progress is None or not _is_walking(state, slices):
        return None
    return walk_report(state.progress, now)


_SAMPLED_SLICES = 6
_SAMPLED_EACH = 4
_TYPICAL_BYTES = 50_000
"""Where there is neither stored mail nor a sample."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on disk that a message takes on average, and how many messages that rests on."""

    bytes_each: float
    messages: int
    basis: str


@dataclass(frozen=True, slots=True)
class SyncEstimate:
    account: str
    messages: int
    """At the source, as Gmail counts them."""
    stored: int
    """In the archive with a Gmail id, and not deleted at the source."""
    bad: int
    to_fetch: int
    watermark: int
    granularity: Granularity
    slices: int
    profile: ProfileName
    is_profile_assumed: bool
    list_units: int
    get_units: int
    units_per_minute: int
    """Of the allowance, while there is no live mail."""
    seconds: float
    seconds_when_busy: float
    """While live mail and user actions use all of the share that is kept for them."""
    sizes: Sizes
    disk_bytes: int
    free_bytes: int | None
    """None: the disk is another host's."""

    @property
    def units(self) -> int:
        return self.list_units + self.get_units

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.disk_bytes < self.free_bytes


async def estimate_sync(
    database: Database,
    account: Account,
    mailbox: Mailbox,
    settings: SyncSettings,
    archive: ArchiveBackend,
    now: datetime,
) -> SyncEstimate:
    walk = await plan_walk(mailbox, settings, now)
    state, bad = await database.read(lambda tx: (find_state(tx, account.id), len(bad_of(tx, account.id))))
    stored, sizes = await asyncio.to_thread(_in_archive, archive, account.email)
    profile = PROFILES[account.quota or ProfileName.MAY_2026]
    to_fetch = max(walk.identity.messages_total - stored - bad, 0)
    listing, getting = _units(profile, walk, to_fetch, settings.page_size)
    sizes = sizes or await _sampled(mailbox, walk.slices)
    quiet, busy = (_per_minute(profile, Reserve(), busy=is_busy) for is_busy in (False, True))
    return SyncEstimate(
        account=account.email,
        messages=walk.identity.messages_total,
        stored=stored,
        bad=bad,
        to_fetch=to_fetch,
        watermark=0 if state is None else state.watermark,
        granularity=walk.granularity,
        slices=len(walk.slices),
        profile=profile.name,
        is_profile_assumed=account.quota is None,
        list_units=listing,
        get_units=getting,
        units_per_minute=quiet,
        seconds=(listing + getting) / quiet * MINUTE_S,
        seconds_when_busy=(listing + getting) / busy * MINUTE_S,
        sizes=sizes,
        disk_bytes=math.ceil(to_fetch * sizes.bytes_each),
        free_bytes=archive.free_bytes(),
    )


def _units(profile: QuotaProfile, walk: WalkPlan, to_fetch: int, page_size: int) -> tuple[int, int]:
    """Units for listing (a page for each slice, plus the full pages) and for fetching (a get for each message)."""
    pages = len(walk.slices) + walk.identity.messages_total // page_size
    return pages * profile.cost(GmailMethod.MESSAGES_LIST), to_fetch * profile.cost(GmailMethod.MESSAGES_GET)


def _per_minute(profile: QuotaProfile, reserve: Reserve, *, busy: bool) -> int:
    used = profile.units_per_minute if busy else 0
    return profile.units_per_minute - reserve.kept(profile.units_per_minute, used)


def _in_archive(archive: ArchiveBackend, email: str) -> tuple[int, Sizes | None]:
    """How many messages of the mailbox are stored, and what a message takes on disk with its index."""
    with archive.reader() as reader:
        held = reader.holding(email)
    if held.messages < _SAMPLED_SLICES * _SAMPLED_EACH:
        return held.at_source, None
    sizes = Sizes(held.bytes / held.messages, held.messages, "what is stored already, with its index")
    return held.at_source, sizes


async def _sampled(mailbox: Mailbox, slices: Sequence[Slice]) -> Sizes:
    """The sizes of a few messages from random slices, fetched without their bodies."""
    dice = random.Random(0)  # noqa: S311 - the same sample for the same mailbox
    ids: list[str] = []
    for part in dice.sample(list(slices), min(_SAMPLED_SLICES, len(slices))):
        ids += await _some(mailbox, part, _SAMPLED_EACH)
    if not ids:  # a mailbox with little mail in many months
        ids = await _some(mailbox, None, _SAMPLED_SLICES * _SAMPLED_EACH)
    found = await mailbox.fetch(ids, Detail.FLAGS)
    sizes = [each.message.size for each in found if isinstance(each, Got) and each.message.size]
    if not sizes:
        return Sizes(_TYPICAL_BYTES, 0, "a guess: there was nothing to look at")
    return Sizes(sum(sizes) / len(sizes), len(sizes), "sampled; packed they take less, their index more")


async def _some(mailbox: Mailbox, span: Span | None, count: int) -> list[str]:
    async for page in mailbox.list(span, page_size=count):
        return [*page.ids]
    return []
