"""Watches the sync of one account: counts outcomes, measures its metadata document against the byte budget, and raises
or clears alerts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from postroom.accounts.account import Account
from postroom.accounts.troubled import TroubledMessage
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError
from postroom.mail.addresses import Address
from postroom.mail.composing import OutgoingMail
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import SyncSettings
from postroom.sync import alerts, status
from postroom.sync.alerts import (
    Alert,
    AlertChanges,
    AlertLevel,
    AlertRecord,
    RecentCuts,
    SyncSigns,
    alerts_in_force,
    alerts_of,
)
from postroom.sync.state import SyncState, bad_of, get_state, slices_of
from postroom.telemetry import logs

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
    """What is remembered of this account's sync has reached its budget."""


def account_document(tx: Tx, account_id: str, settings: SyncSettings) -> Document:
    """Slices that are done are left out, since the frontier speaks for them; the others are pairs of start and end."""
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
    """A sync stops here, with its slices unfinished and so its watermark where it was: nothing is lost by it."""
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


log = logs.get(__name__)


class SyncMonitor:
    """`cuts` tells how often the pace was cut since the process began; `mailbox` brings alerts into the mailbox."""

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
        """So many messages were worked on, so many of them in vain. Costs nothing; `check` writes it down."""
        self._messages += messages
        self._bad += bad

    async def check(self) -> None:
        """Judge, record, tell. Raises MetadataFull, after telling, where nothing more may be remembered."""
        messages, bad = self._messages, self._bad
        cuts = self._recent_cuts.see(self._cuts(), self._clock.monotonic())
        settled, size = await self._database.write(lambda tx: self._settle(tx, messages, bad, cuts))
        self._messages -= messages
        self._bad -= bad
        status.record_metadata(self._account.id, size / self._settings.metadata_budget_bytes)
        for condition in settled.over:
            log.info("sync.alert_over", account=self._account.id, condition=condition)
        for alert in settled.to_tell:
            await self._tell(alert)
        require_room(size, self._settings)

    def _settle(self, tx: Tx, messages: int, bad: int, cuts: int) -> tuple[AlertChanges, int]:
        now, account_id = self._clock.now(), self._account.id
        window = alerts.add_outcomes(tx, account_id, self._settings.bad_window, messages, bad, now)
        size = size_of(account_document(tx, account_id, self._settings))
        in_an_hour = alerts.bad_within_an_hour(tx, account_id, now)
        in_force = alerts_in_force(SyncSigns(window.messages, window.bad, in_an_hour, size, cuts), self._settings)
        return alerts.settle(tx, account_id, in_force, now), size

    async def _tell(self, alert: Alert) -> None:
        say = log.error if alert.level is AlertLevel.CRITICAL else log.warning
        say("sync.alert", account=self._account.id, condition=alert.condition, detail=alert.message)
        if self._settings.self_email and self._mailbox is not None:
            try:
                await self._mailbox.append(self._letter(alert), {"INBOX", "UNREAD"})
            except PostroomError as error:
                # It stands in the log and in the database; the sync does not stop for its letter.
                log.warning("sync.alert_not_mailed", account=self._account.id, problem=error.message)

    def _letter(self, alert: Alert) -> bytes:
        owner = self._account.email
        return OutgoingMail(
            from_=Address(owner, "Postroom"),
            to=(Address(owner),),
            subject=f"Postroom: {alert.level} about the sync of this mailbox",
            text=f"{alert.message}\n\nYou are told at most once an hour while this lasts.\n",
            extra_headers=(("X-Postroom-Alert", alert.condition),),
            date=self._clock.now(),
        ).to_bytes()
