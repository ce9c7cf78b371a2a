"""What every part of one account's sync shares: database, mailbox, archive, settings, clock, counters, and one backoff
for outages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from postroom.accounts.account import Account
from postroom.archive.service import AccountStore
from postroom.db import Database
from postroom.domain.clock import Backoff, Clock
from postroom.domain.errors import Retryable
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import SyncSettings
from postroom.sync.fetch import MailFetcher
from postroom.sync.labels import LabelFollower
from postroom.sync.status import OnOutcomes, ProgressCounters
from postroom.telemetry import logs

T = TypeVar("T")
_BACKOFF = Backoff(1.0, 60.0)
log = logs.get(__name__)


class OutageBackoff:
    """Shared by all parts that call the mailbox: when one call fails, all of them wait.

    An outage that lasts longer than `patience_s` is raised. Pauses that the service asked for do not count.
    """

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._down_since: float | None = None
        self._hold_until = clock.monotonic()
        self._failures = 0

    @property
    def is_down(self) -> bool:
        return self._down_since is not None

    async def wait(self) -> None:
        """Until the next attempt is due."""
        while (left := self._hold_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)

    def failed(self, error: Retryable) -> None:
        """A call failed. Raises the error once patience has run out."""
        now = self._clock.monotonic()
        if now < self._hold_until:
            return  # one of many calls that were under way when the outage began
        if self._down_since is None:
            self._down_since = now
        elif now - self._down_since >= self._patience_s:
            raise error
        if error.retry_after:
            self._down_since += error.retry_after.total_seconds()
        self._failures += 1
        wait_s = _BACKOFF.delay_s(self._failures, error.retry_after)
        self._hold_until = now + wait_s
        log.warning("sync.waiting", seconds=round(wait_s, 1), problem=error.message)

    def succeeded(self) -> None:
        """A call succeeded: the outage is over."""
        self._down_since = None
        self._failures = 0

    async def retry(self, work: Callable[[], Awaitable[T]], *, ends_outage: bool = True) -> T:
        """Repeat `work` until it succeeds or patience has run out.

        `ends_outage=False` is for work that does not call the mailbox: its success says nothing about the service.
        """
        while True:
            await self.wait()
            try:
                value = await work()
            except Retryable as error:
                self.failed(error)
            else:
                if ends_outage:
                    self.succeeded()
                return value


@dataclass(frozen=True, slots=True)
class SyncContext:
    database: Database
    account: Account
    fetcher: MailFetcher
    settings: SyncSettings
    clock: Clock
    counters: ProgressCounters
    outage: OutageBackoff

    @property
    def mailbox(self) -> Mailbox:
        return self.fetcher.mailbox

    @property
    def store(self) -> AccountStore:
        return self.fetcher.store


def sync_context(
    database: Database,
    account: Account,
    mailbox: Mailbox,
    store: AccountStore,
    settings: SyncSettings,
    clock: Clock,
    *,
    on_outcomes: OnOutcomes = lambda messages, bad: None,
) -> SyncContext:
    """`on_outcomes` is called with the number of messages worked on, and how many of them are bad."""
    fetcher = MailFetcher(mailbox, store, LabelNames(mailbox, LabelFollower(database, account.id, mailbox, store)))
    counters = ProgressCounters(clock, mailbox.limiter, mailbox.units_per_minute, on_outcomes)
    return SyncContext(database, account, fetcher, settings, clock, counters, OutageBackoff(clock, settings.patience_s))
