"""Watches over one account's sync: counts how it goes, judges it now and then, and tells a person when it matters."""

from __future__ import annotations

from collections.abc import Callable

from postroom.accounts.store import Account
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.gmail.client import GmailClient
from postroom.mail.addresses import Address
from postroom.mail.composing import OutgoingMail
from postroom.settings import SyncSettings
from postroom.sync import alert_store, instruments
from postroom.sync.alert_store import Settled
from postroom.sync.alerts import Alert, Level, RecentCuts, Signs, judge
from postroom.sync.document import account_document, require_room, size_of
from postroom.telemetry import logs

log = logs.get(__name__)


class Alarm:
    """`cuts` tells how often the pace was cut since the process began; `client` brings alerts into the mailbox."""

    def __init__(
        self,
        database: Database,
        account: Account,
        settings: SyncSettings,
        clock: Clock,
        *,
        client: GmailClient | None = None,
        cuts: Callable[[], int] = lambda: 0,
    ) -> None:
        self._database = database
        self._account = account
        self._settings = settings
        self._clock = clock
        self._client = client
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
        instruments.record_metadata(self._account.id, size / self._settings.metadata_budget_bytes)
        for condition in settled.over:
            log.info("sync.alert_over", account=self._account.id, condition=condition)
        for alert in settled.to_tell:
            await self._tell(alert)
        require_room(size, self._settings)

    def _settle(self, tx: Tx, messages: int, bad: int, cuts: int) -> tuple[Settled, int]:
        now, account_id = self._clock.now(), self._account.id
        window = alert_store.add_outcomes(tx, account_id, self._settings.bad_window, messages, bad, now)
        size = size_of(account_document(tx, account_id, self._settings))
        in_an_hour = alert_store.bad_within_an_hour(tx, account_id, now)
        in_force = judge(Signs(window.messages, window.bad, in_an_hour, size, cuts), self._settings)
        return alert_store.settle(tx, account_id, in_force, now), size

    async def _tell(self, alert: Alert) -> None:
        say = log.error if alert.level is Level.CRITICAL else log.warning
        say("sync.alert", account=self._account.id, condition=alert.condition, detail=alert.message)
        if self._settings.self_email and self._client is not None:
            try:
                await self._client.insert_message(self._letter(alert), label_ids={"INBOX", "UNREAD"})
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
