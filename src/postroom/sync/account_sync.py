"""The sync of one account with everything that belongs to it: walk, changes, retries, comparison, alerts."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.accounts.history import Reader
from postroom.accounts.mailstate import NobodyWatches, SourceWatch
from postroom.accounts.store import Account
from postroom.archive.account_store import AccountStore
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient
from postroom.settings import SyncSettings
from postroom.sync.alarm import Alarm
from postroom.sync.bad import BadRetry
from postroom.sync.bringing import Bringer
from postroom.sync.deltas import DeltaReader, Deltas
from postroom.sync.engine import Chore, SyncEngine
from postroom.sync.reconcile import Reconciliation


def account_sync(
    database: Database,
    account: Account,
    client: GmailClient,
    store: AccountStore,
    settings: SyncSettings,
    clock: Clock,
    *,
    follows: bool = True,
    watch: SourceWatch = NobodyWatches(),  # noqa: B008 - holds nothing
) -> SyncEngine:
    """`follows`: it reads the account's changes too, and tells `watch`, where no connector does."""
    alarm = Alarm(database, account, settings, clock, client=client, cuts=lambda: client.limiter.gate.tuner.cuts)

    def note_page(page: Deltas) -> None:
        alarm.note(page.stored + page.gone + page.bad, page.bad)

    def deltas(reader: Reader, bringer: Bringer) -> DeltaReader:
        return DeltaReader(database, reader, bringer, clock, note_page, watch)

    def chores(reader: Reader, bringer: Bringer) -> Sequence[Chore]:
        retry = BadRetry(database, account.id, bringer, settings, clock)
        return retry.retry_due, Reconciliation(database, account.id, bringer, clock), alarm.check

    return SyncEngine(
        database,
        account,
        client,
        store,
        settings,
        clock,
        holder=store.place.sync_holder,
        deltas=deltas if follows else None,
        chores=chores,
        note=alarm.note,
    )
