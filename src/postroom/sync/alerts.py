"""When a sync needs attention (too many bad messages, metadata near its budget, throttling), the record of it, and the
monitor that checks the sync of one account.

Each threshold is a condition of its own; of two thresholds for the same thing only the more severe one is in force.
The same condition is announced at most once an hour.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from sqlalchemy import Row, func, select, update

from postroom.accounts.account import Account
from postroom.accounts.troubled import TroubledMessage
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_alerts, sync_windows, troubled_messages
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import SyncSettings
from postroom.sync.fetch import bad_of
from postroom.sync.state import SyncState, find_state, get_state, slices_of
from postroom.telemetry import logs
from postroom.telemetry.metrics import meter

log = logs.get(__name__)
_FEWEST_BAD = 3
"""One or two bad messages are no rate, however few others there were."""
_PARTS = 100


class AlertLevel(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


class AlertCondition(StrEnum):
    BAD_RATE_HIGH = "bad_rate_high"
    BAD_RATE_CRITICAL = "bad_rate_critical"
    BAD_SPIKE = "bad_spike"
    METADATA_HIGH = "metadata_high"
    METADATA_CRITICAL = "metadata_critical"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Alert:
    condition: AlertCondition
    level: AlertLevel
    message: str


@dataclass(frozen=True, slots=True)
class SyncSigns:
    """The figures that alerts are decided from."""

    messages: int = 0
    """The last messages processed, as many as the window holds."""
    bad: int = 0
    """How many of those are bad."""
    bad_in_an_hour: int = 0
    metadata_bytes: int = 0
    cuts: int = 0
    """How often the pace was cut lately."""


def alerts_in_force(signs: SyncSigns, settings: SyncSettings) -> list[Alert]:
    """Every condition that is in force."""
    return [alert for rule in (_bad_rate, _bad_spike, _metadata, _throttling) for alert in rule(signs, settings)]


def _bad_rate(signs: SyncSigns, settings: SyncSettings) -> Iterator[Alert]:
    if signs.bad < _FEWEST_BAD or not signs.messages:
        return
    rate = signs.bad / signs.messages
    text = (
        f"{signs.bad:,} of the last {signs.messages:,} messages ({rate:.2%}) could not be stored. "
        "`postroom sync bad list` names them with their reasons; they are tried again by themselves."
    )
    if rate >= settings.bad_rate_critical:
        yield Alert(AlertCondition.BAD_RATE_CRITICAL, AlertLevel.CRITICAL, text)
    elif rate >= settings.bad_rate_warn:
        yield Alert(AlertCondition.BAD_RATE_HIGH, AlertLevel.WARNING, text)


def _bad_spike(signs: SyncSigns, settings: SyncSettings) -> Iterator[Alert]:
    if signs.bad_in_an_hour > settings.bad_per_hour_critical:
        text = f"{signs.bad_in_an_hour:,} messages went bad within an hour. `postroom sync bad list` tells why."
        yield Alert(AlertCondition.BAD_SPIKE, AlertLevel.CRITICAL, text)


def _metadata(signs: SyncSigns, settings: SyncSettings) -> Iterator[Alert]:
    share = signs.metadata_bytes / settings.metadata_budget_bytes
    text = (
        f"What is kept about this account's sync takes {signs.metadata_bytes:,} bytes, {share:.0%} of its budget. At "
        "100 % the sync stops: see `postroom sync bad list`, or raise sync.metadata_budget_bytes."
    )
    if share >= settings.metadata_critical:
        yield Alert(AlertCondition.METADATA_CRITICAL, AlertLevel.CRITICAL, text)
    elif share >= settings.metadata_warn:
        yield Alert(AlertCondition.METADATA_HIGH, AlertLevel.WARNING, text)


def _throttling(signs: SyncSigns, settings: SyncSettings) -> Iterator[Alert]:
    if signs.cuts >= settings.throttle_cuts_warn:
        text = (
            f"Gmail made the sync slow down {signs.cuts} times in {settings.throttle_window_s / 60:g} minutes. Other "
            "programs may be using the same quota; the sync goes on at the pace that is left."
        )
        yield Alert(AlertCondition.THROTTLED, AlertLevel.WARNING, text)


@dataclass(frozen=True, slots=True)
class OutcomeWindow:
    """The outcomes of the last messages. Old ones are dropped in portions, so it holds slightly more than `size`."""

    size: int
    parts: tuple[tuple[int, int], ...] = ()
    """Messages and how many of them are bad, oldest first."""

    @property
    def messages(self) -> int:
        return sum(messages for messages, _ in self.parts)

    @property
    def bad(self) -> int:
        return sum(bad for _, bad in self.parts)

    def with_more(self, messages: int, bad: int) -> OutcomeWindow:
        parts = deque(self.parts)
        if parts and parts[-1][0] + messages <= max(self.size // _PARTS, 1):
            last = parts.pop()
            messages, bad = last[0] + messages, last[1] + bad
        parts.append((messages, bad))
        total = sum(each for each, _ in parts)
        while total - parts[0][0] >= self.size:
            total -= parts.popleft()[0]
        return OutcomeWindow(self.size, tuple(parts))

    def with_bad(self, most: int) -> OutcomeWindow:
        """The same messages, of which so many at most are still bad: the newest ones."""
        parts: deque[tuple[int, int]] = deque()
        for messages, bad in reversed(self.parts):
            kept = min(bad, most)
            most -= kept
            parts.appendleft((messages, kept))
        return OutcomeWindow(self.size, tuple(parts))


class RecentCuts:
    """How often the pace was cut in the last `window_s` seconds, from a total that only grows."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._totals: deque[tuple[float, int]] = deque()

    def see(self, total: int, now: float) -> int:
        """Record the total as of now; returns how much of it is recent."""
        self._totals.append((now, total))
        while len(self._totals) > 1 and self._totals[1][0] <= now - self._window_s:
            self._totals.popleft()
        return total - self._totals[0][1]


_ABOUT_BAD = (AlertCondition.BAD_RATE_HIGH, AlertCondition.BAD_RATE_CRITICAL, AlertCondition.BAD_SPIKE)
QUIET = timedelta(hours=1)
"""An alert is not repeated for the same condition within this time."""
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class AlertRecord:
    condition: AlertCondition
    level: AlertLevel
    message: str
    raised_at: datetime
    last_seen_at: datetime
    last_told_at: datetime | None
    cleared_at: datetime | None

    @property
    def is_in_force(self) -> bool:
        return self.cleared_at is None


@dataclass(frozen=True, slots=True)
class AlertChanges:
    """Alerts to send now, and those that are over."""

    to_send: tuple[Alert, ...]
    over: tuple[AlertCondition, ...]


def alerts_of(tx: Tx, account_id: str) -> list[AlertRecord]:
    """Every alert that the account ever had, each condition once; those in force first, the newest first."""
    query = select(sync_alerts).where(sync_alerts.c.account_id == account_id)
    rows = tx.shared(("sync alerts", account_id), lambda: tx.execute(query).all())
    records = sorted((_record(row) for row in rows), key=lambda each: each.raised_at, reverse=True)
    return sorted(records, key=lambda each: not each.is_in_force)


def settle(tx: Tx, account_id: str, in_force: Sequence[Alert], now: datetime) -> AlertChanges:
    """Record which alerts are in force, and return those to send, which count as sent from now on.

    Call `add_outcomes` first in the same transaction: its lock keeps other processes from raising the same alert.
    """
    query = tx.locking(select(sync_alerts).where(sync_alerts.c.account_id == account_id))
    known = {record.condition: record for record in map(_record, tx.execute(query).all())}
    to_send = tuple(alert for alert in in_force if _is_news(known.get(alert.condition), now))
    for alert in in_force:
        _record_alert(tx, account_id, alert, known.get(alert.condition), now, is_sent=alert in to_send)
    still = {alert.condition for alert in in_force}
    over = tuple(each.condition for each in known.values() if each.is_in_force and each.condition not in still)
    if over:
        tx.execute(update(sync_alerts).where(_is(account_id, over)).values(cleared_at=now))
    return AlertChanges(to_send, over)


def add_outcomes(tx: Tx, account_id: str, size: int, messages: int, bad: int, now: datetime) -> OutcomeWindow:
    """Add outcomes to the stored window, and return it."""
    mine = sync_windows.c.account_id == account_id
    tx.insert_missing(sync_windows, {"account_id": account_id, "outcomes": "[]", "updated_at": now})
    text = tx.execute(tx.locking(select(sync_windows.c.outcomes).where(mine))).scalar_one()
    window = OutcomeWindow(size, tuple((each[0], each[1]) for each in json.loads(text)))
    if messages:
        window = window.with_more(messages, bad)
        tx.execute(update(sync_windows).where(mine).values(outcomes=json.dumps(window.parts), updated_at=now))
    return window


def bad_within_an_hour(tx: Tx, account_id: str, now: datetime) -> int:
    query = select(func.count()).where(
        troubled_messages.c.account_id == account_id, troubled_messages.c.first_seen > now - HOUR
    )
    return int(tx.execute(query).scalar_one())


def _is_news(known: AlertRecord | None, now: datetime) -> bool:
    """True also if the last sending time lies in the future, because the clock was set back."""
    if known is None or known.last_told_at is None:
        return True
    return not timedelta() <= now - known.last_told_at < QUIET


def _record_alert(
    tx: Tx, account_id: str, alert: Alert, known: AlertRecord | None, now: datetime, *, is_sent: bool
) -> None:
    values: dict[str, Any] = {"level": alert.level, "message": alert.message, "last_seen_at": now, "cleared_at": None}
    if known is None or not known.is_in_force:
        values["raised_at"] = now
    if is_sent:
        values["last_told_at"] = now
    if known is None:
        tx.execute(sync_alerts.insert().values(account_id=account_id, condition=alert.condition, **values))
    else:
        tx.execute(update(sync_alerts).where(_is(account_id, [alert.condition])).values(**values))


def _is(account_id: str, conditions: Sequence[AlertCondition]) -> Any:
    return (sync_alerts.c.account_id == account_id) & sync_alerts.c.condition.in_(conditions)


def _record(row: Row[*tuple[Any, ...]]) -> AlertRecord:
    return AlertRecord(
        condition=AlertCondition(row.condition),
        level=AlertLevel(row.level),
        message=row.message,
        raised_at=row.raised_at,
        last_seen_at=row.last_seen_at,
        last_told_at=row.last_told_at,
        cleared_at=row.cleared_at,
    )


Document = Mapping[str, Any]

_LIMITS = (
    "metadata_budget_bytes",
    "metadata_warn",
    "metadata_critical",
    "bad_rate_warn",
    "bad_rate_critical",
    "bad_window",
    "bad_per_hour_critical",
    "throttle_window_s",
    "throttle_cuts_warn",
)


class MetadataFull(Fatal):
    """The sync metadata of this account has reached its budget."""


def account_document(tx: Tx, account_id: str, settings: SyncSettings) -> Document:
    """The sync metadata of an account. Slices are pairs of start and end; those that are done are left out, since the
    frontier covers them."""
    state = get_state(tx, account_id)
    return {
        "watermark": state.watermark,
        "walk": _walk(state),
        "slices": [[row.slice.start, row.slice.end] for row in slices_of(tx, account_id) if not row.is_done],
        "bad_messages": {each.key: _bad(each) for each in bad_of(tx, account_id)},
        "counters": dict(state.counters),
        "limits": {name: getattr(settings, name) for name in _LIMITS},
        "alerts": {each.condition: _alert(each) for each in alerts_of(tx, account_id)},
    }


def serialised(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def size_of(document: Document) -> int:
    """How many bytes of the budget it takes."""
    return len(serialised(document).encode("utf-8", "surrogatepass"))


def require_room(size: int, settings: SyncSettings) -> None:
    """Raises MetadataFull at the budget. Open slices stay open and the watermark stays, so nothing is lost."""
    budget = settings.metadata_budget_bytes
    if size >= budget:
        raise MetadataFull(
            f"What is remembered of this account's sync takes {size:,} bytes and has reached its budget of {budget:,}. "
            "Nearly always that is the list of bad messages: `postroom sync bad list` tells what is wrong with them, "
            "`postroom sync bad retry` tries them again. Or raise sync.metadata_budget_bytes, then run the sync again."
        )


def _walk(state: SyncState) -> Document:
    return {
        "number": state.walk,
        "started_at": _time(state.walk_started_at),
        "finished_at": _time(state.walked_at),
        "granularity": state.granularity,
        "frontier": state.frontier,
        "until": state.until,
    }


def _bad(message: TroubledMessage) -> Document:
    return {
        "reason": message.reason,
        "first_seen": _time(message.first_seen),
        "last_tried": _time(message.last_tried),
        "tries": message.tries,
    }


def _alert(alert: AlertRecord) -> Document:
    return {
        "level": alert.level,
        "message": alert.message,
        "raised_at": _time(alert.raised_at),
        "last_told_at": _time(alert.last_told_at),
        "cleared_at": _time(alert.cleared_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


_metadata_usage: dict[str, float] = {}


def _fullest_metadata(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(max(_metadata_usage.values()))] if _metadata_usage else []


meter.create_observable_gauge(
    "postroom.sync.metadata_usage",
    [_fullest_metadata],
    unit="1",
    description="share of the budget, the fullest account",
)


def record_metadata(account_id: str, usage: float) -> None:
    """The share of its budget that an account's metadata document takes."""
    _metadata_usage[account_id] = usage


def recheck_bad(tx: Tx, account_id: str, settings: SyncSettings, now: datetime) -> None:
    """Clear the alerts about bad messages that no longer hold, at once after a retry and not with the next sync."""
    if find_state(tx, account_id) is None:
        return
    bad = len(bad_of(tx, account_id))
    window = add_outcomes(tx, account_id, settings.bad_window, 0, 0, now).with_bad(bad)
    mine = sync_windows.c.account_id == account_id
    tx.execute(update(sync_windows).where(mine).values(outcomes=json.dumps(window.parts), updated_at=now))
    signs = SyncSigns(window.messages, window.bad, bad_within_an_hour(tx, account_id, now))
    still = {alert.condition for alert in alerts_in_force(signs, settings)}
    over = [each for each in _ABOUT_BAD if each not in still]
    in_force = _is(account_id, over) & sync_alerts.c.cleared_at.is_(None)
    tx.execute(update(sync_alerts).where(in_force).values(cleared_at=now))


class SyncMonitor:
    """`cuts` returns how often the pace was cut since the process began; alerts are mailed to `mailbox`."""

    def __init__(
        self,
        database: Database,
        account: Account,
        settings: SyncSettings,
        clock: Clock,
        *,
        mailbox: Mailbox | None = None,
        cuts: Callable[[], int] = lambda: 0,
    ) -> None:
        self._database = database
        self._account = account
        self._settings = settings
        self._clock = clock
        self._mailbox = mailbox
        self._cuts = cuts
        self._recent_cuts = RecentCuts(settings.throttle_window_s)
        self._recent_cuts.see(cuts(), clock.monotonic())
        self._messages = self._bad = 0

    def note(self, messages: int, bad: int = 0) -> None:
        """Count messages that were processed and how many of them are bad. Cheap; `check` writes them down."""
        self._messages += messages
        self._bad += bad

    async def check(self) -> None:
        """Decide which alerts are in force, record and send them. Raises MetadataFull, after sending, at the budget."""
        messages, bad = self._messages, self._bad
        cuts = self._recent_cuts.see(self._cuts(), self._clock.monotonic())
        settled, size = await self._database.write(lambda tx: self._settle(tx, messages, bad, cuts))
        self._messages -= messages
        self._bad -= bad
        record_metadata(self._account.id, size / self._settings.metadata_budget_bytes)
        for condition in settled.over:
            log.info("sync.alert_over", account=self._account.id, condition=condition)
        for alert in settled.to_send:
            await self._send(alert)
        require_room(size, self._settings)

    def _settle(self, tx: Tx, messages: int, bad: int, cuts: int) -> tuple[AlertChanges, int]:
        now, account_id = self._clock.now(), self._account.id
        window = add_outcomes(tx, account_id, self._settings.bad_window, messages, bad, now)
        size = size_of(account_document(tx, account_id, self._settings))
        in_an_hour = bad_within_an_hour(tx, account_id, now)
        in_force = alerts_in_force(SyncSigns(window.messages, window.bad, in_an_hour, size, cuts), self._settings)
        return settle(tx, account_id, in_force, now), size

    async def _send(self, alert: Alert) -> None:
        say = log.error if alert.level is AlertLevel.CRITICAL else log.warning
        say("sync.alert", account=self._account.id, condition=alert.condition, detail=alert.message)
        if self._settings.self_email and self._mailbox is not None:
            try:
                await self._mailbox.append(self._mail_of(alert), {"INBOX", "UNREAD"})
            except PostroomError as error:
                # The alert is in the log and in the database; the sync does not stop because it cannot be mailed.
                log.warning("sync.alert_not_mailed", account=self._account.id, problem=error.message)

    def _mail_of(self, alert: Alert) -> bytes:
        from postroom.mail.addresses import Address
        from postroom.mail.composing import OutgoingMail  # few syncs ever send one

        owner = self._account.email
        return OutgoingMail(
            from_=Address(owner, "Postroom"),
            to=(Address(owner),),
            subject=f"Postroom: {alert.level} about the sync of this mailbox",
            text=f"{alert.message}\n\nYou get this at most once an hour while it lasts.\n",
            extra_headers=(("X-Postroom-Alert", alert.condition),),
            date=self._clock.now(),
        ).to_bytes()
