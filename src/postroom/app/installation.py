"""An installation: its database, and the services on it, each imported and built when it is first used.

A service process that starts while its database is unavailable waits for it; a command fails at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import SecretStr

from postroom.db import Database, Tx, connect
from postroom.domain.clock import Backoff, Clock, SystemClock, retry
from postroom.domain.errors import Fatal, Retryable
from postroom.domain.jobs import CATALOGUE, Schedule
from postroom.queue import JobQueue
from postroom.reading.limited import shared_readers
from postroom.settings import DISCORD_TOKEN_ENTRY, OFF, CurrentSettings, Derived, DiscordSettings, Settings
from postroom.telemetry import logs

if TYPE_CHECKING:
    from postroom.accounts.access import GmailAccess, MailboxAccess
    from postroom.accounts.account import Account
    from postroom.accounts.observers import MailboxObserver
    from postroom.actions.mailbox_changes import LabelListing
    from postroom.app.remote_pictures import PictureLoader
    from postroom.app.server_discovery import ServerDiscovery
    from postroom.archive.service import SharedArchive
    from postroom.audit import Actor
    from postroom.mailboxes.credentials import GrantStore, StoredGrant
    from postroom.mailboxes.gmail.methods import ProfileName
    from postroom.mailboxes.imap.connection import ImapLogin
    from postroom.switchboard.backfill.operations import Backfill
    from postroom.switchboard.definitions import CategoryBook
    from postroom.switchboard.estimate import Estimator
    from postroom.switchboard.spending import ModelBudget
    from postroom.sync.archiver import ArchiverService
    from postroom.sync.service import SyncService
    from postroom.vault import Vault
    from postroom.web.web_service import WebService

T = TypeVar("T")

DATABASE_WAIT_S = 60.0
"""Longer than a restart of PostgreSQL takes. After it the service ends and logs why."""
_FEW_IDS = 20
_DATABASE_BACKOFF = Backoff(1.0, 1.0)

log = logs.get(__name__)


async def retry_while_unavailable(work: Callable[[], Awaitable[T]], patience_s: float, clock: Clock) -> T:
    def on_wait(error: Retryable, delay_s: float) -> None:
        log.warning("service.waiting", problem=error.message)

    return await retry(work, _DATABASE_BACKOFF, clock, patience_s=patience_s, on_wait=on_wait)


@dataclass(frozen=True)
class App:
    current: CurrentSettings
    database: Database
    queue: JobQueue
    clock: Clock
    resources: ExitStack
    """Closed with the installation: the archive, once it was opened."""
    patience_s: float = 0.0

    @property
    def settings(self) -> Settings:
        """As they hold now; a process that watches the files (`live_settings.py`) sees them change."""
        return self.current.now

    @cached_property
    def vault(self) -> Vault:
        return open_vault(self.settings)

    @property
    def discord(self) -> DiscordSettings:
        """With the bot's token from the vault, if the settings have none."""
        return self._discord()

    @cached_property
    def _discord(self) -> Derived[tuple[DiscordSettings, object], DiscordSettings]:
        return Derived(
            lambda: (self.settings.discord, self.vault.stamp(DISCORD_TOKEN_ENTRY)),
            lambda made_of: with_kept_token(made_of[0], self.vault),
        )

    @cached_property
    def grants(self) -> GrantStore:
        from postroom.mailboxes.credentials import GrantStore

        return GrantStore(self.vault)

    @cached_property
    def gmail(self) -> GmailAccess:
        from postroom.accounts.access import GmailAccess

        return GmailAccess(self.database, self.grants, self.clock, self.settings.sync)

    @cached_property
    def mailboxes(self) -> MailboxAccess:
        """The mailbox of any account, whatever its provider."""
        from postroom.accounts.access import ImapAccess, MailboxAccess

        return MailboxAccess(self.gmail, ImapAccess(self.database, self.grants, self.clock))

    @cached_property
    def archive(self) -> SharedArchive:
        """Opened by its first use; that connects to PostgreSQL if the archive is there."""
        from postroom.archive.service import SharedArchive, open_archive

        return SharedArchive(self.resources.enter_context(open_archive(self.settings)))

    @cached_property
    def sync(self) -> SyncService:
        from postroom.sync.service import SyncService

        return SyncService(self.database, self.mailboxes, self.archive, self.current, self.clock, self.watch)

    @cached_property
    def watch(self) -> MailboxObserver:
        """Called with what changes in mailboxes."""
        from postroom.accounts.observers import MailboxObservers, ObserverWhenNeeded

        def make() -> MailboxObserver:
            from postroom.actions.mailbox_changes import ActionsMailboxObserver
            from postroom.triage.learning.owner_labels import MailboxTeacher

            return MailboxObservers(ActionsMailboxObserver(self.queue), MailboxTeacher())

        return ObserverWhenNeeded(make)

    @cached_property
    def archiver(self) -> ArchiverService:
        from postroom.sync.archiver import ArchiverService

        return ArchiverService(self.database, self.mailboxes, self.archive, self.settings, self.clock)

    @cached_property
    def backfill(self) -> Backfill:
        from postroom.switchboard.backfill.operations import Backfill
        from postroom.triage.model import CurrentMeter

        names = self.categories.defined.selectable
        workers_poll = self.settings.recurring.backfill != OFF
        return Backfill(self.budget, names, CurrentMeter(self.current), workers_poll)

    @cached_property
    def categories(self) -> CategoryBook:
        """What is shipped, and the owner's definitions."""
        from postroom.switchboard.definitions import CategoryBook

        return CategoryBook.in_folder(self.settings.home)

    @cached_property
    def budget(self) -> ModelBudget:
        """The money of all model calls."""
        from postroom.switchboard.spending import ModelBudget

        return ModelBudget(self.queue, self.current)

    @cached_property
    def web(self) -> WebService:
        from postroom.web.web_service import WebService

        return WebService(self.current, self.queue)

    @cached_property
    def pictures(self) -> PictureLoader:
        """Remote pictures of mail, those of a while ago in memory."""
        from postroom.app.remote_pictures import PictureLoader

        return PictureLoader(self.database, self.archive.backend, self.settings, self.clock)

    @cached_property
    def discovery(self) -> ServerDiscovery:
        """Finds the servers of a mail domain."""
        from postroom.app.server_discovery import ServerDiscovery

        return ServerDiscovery(self.settings.web)

    def estimator(self) -> Estimator:
        """Estimates the messages, cost and duration of a backfill."""
        from postroom.switchboard.estimate import AccountsToCount, Estimator
        from postroom.switchboard.retention import RetentionRule
        from postroom.triage.model import CurrentMeter
        from postroom.triage.rules.trial import decided_by_rules

        mailboxes, meter = AccountsToCount(self.database, self.mailboxes), CurrentMeter(self.current)
        kept, known = RetentionRule.from_settings(self.settings.retention), self.categories.defined
        return Estimator(self.budget, self.archive.backend, mailboxes, known, meter, kept, decided_by_rules)

    async def sync_labels(self, account: Account) -> dict[str, Any]:
        """List the mailbox's labels now, and let rules follow what was renamed or deleted; says what changed."""
        from postroom.actions.mailbox_changes import plausible
        from postroom.mailboxes.ports import PriorityLane

        asked_at = self.clock.now()
        async with self.mailboxes.mailbox(account, PriorityLane.USER_ACTION) as mailbox:
            listed = plausible(await mailbox.labels())
        now, listing = self.clock.now(), label_listing()
        return await self.database.write(lambda tx: listing.take(tx, account.id, listed, asked_at, now))

    def schedules(self) -> list[Schedule]:
        """Of all recurring jobs, by the settings of now."""
        from postroom.app.schedules import schedules

        return schedules(self.settings, asks_in_discord=self.discord.bot_token is not None)

    async def declare_schedules(self) -> None:
        declared = self.schedules()
        await retry_while_unavailable(lambda: self.queue.declare_schedules(*declared), self.patience_s, self.clock)

    async def take_in(
        self, grant: StoredGrant | ImapLogin, who: Actor, quota: ProfileName | None = None
    ) -> tuple[Account, list[str]]:
        """Verify the login, add the account and enqueue its first jobs; also returns warnings about it."""
        from postroom import audit
        from postroom.accounts.account import find_account
        from postroom.accounts.enrolment import Enrolment
        from postroom.app.schedules import first_jobs
        from postroom.mailboxes.credentials import OAuthGrant
        from postroom.mailboxes.imap.connection import ImapLogin

        enrolment = Enrolment(self.database, self.grants, self.clock)
        known = await self.database.read(lambda tx: find_account(tx, grant.email))
        if isinstance(grant, ImapLogin) or (isinstance(grant, OAuthGrant) and grant.sign_in is not None):
            account, oddities = await enrolment.add_imap(grant, self._newest_ids)
        else:
            account, oddities = await enrolment.add(grant, quota)

        def begin(tx: Tx) -> None:
            self.queue.add(tx, *first_jobs(account, self.settings))
            before, after = (None if each is None else _named_in_audit(each) for each in (known, account))
            named = ("account", account.id)
            audit.record(tx, who, "account.add", named, self.clock.now(), before=before, after=after)

        await self.database.write(begin)
        return account, oddities

    async def _newest_ids(self, email: str) -> list[str]:
        """Of the last few messages that the archive has of an address, as far as they are at the source."""

        def read() -> list[str]:
            with self.archive.backend.reader() as reader:
                there = (each.gmail_id for each in reader.newest_first([email]) if each.deleted_at_source is None)
                return [*islice((each for each in there if each is not None), _FEW_IDS)]

        return await asyncio.to_thread(read)


def _named_in_audit(account: Account) -> dict[str, str]:
    return {"email": account.email, "api_base": account.api_base}


def label_listing() -> LabelListing:
    """Labels, which actions keep, and rules, which triage does, do not know each other."""
    from postroom.actions.mailbox_changes import LabelListing
    from postroom.triage.guidance import model_rules_naming
    from postroom.triage.rules.store import disable_rules_using, follow_renamed_labels

    return LabelListing(disable_rules_using, follow_renamed_labels, model_rules_naming)


def open_vault(settings: Settings) -> Vault:
    from postroom.vault import Vault

    key = settings.vault_key
    return Vault(settings.home, None if key is None else key.get_secret_value())


def with_kept_token(settings: DiscordSettings, vault: Vault) -> DiscordSettings:
    """Unchanged where the settings have a token, where the rest of them is incomplete, or where none is kept."""
    if settings.bot_token is not None or not (settings.channel_id and settings.public_key and settings.users):
        return settings
    try:
        kept = vault.get(DISCORD_TOKEN_ENTRY)
    except Fatal as error:  # as in a restored home without the vault's key
        log.warning("discord.not_used", problem=error.message)
        return settings
    if kept is None:
        return settings
    logs.learn_secrets([kept.decode()])
    return settings.model_copy(update={"bot_token": SecretStr(kept.decode())})


@asynccontextmanager
async def open_app(settings: Settings, clock: Clock | None = None, *, patience_s: float = 0.0) -> AsyncIterator[App]:
    """Open the database; everything that is opened later is closed with it when the block ends.

    A service, which has `patience_s`, also opens the archive at once: both may be unavailable when it starts.
    """
    clock, current = clock or SystemClock(), CurrentSettings(settings)
    if patience_s:
        _ = current.at_start  # before anything is waited for: what changes meanwhile is a change
    database = await retry_while_unavailable(
        lambda: connect(settings.database_url, settings.database), patience_s, clock
    )
    try:
        with shared_readers(), ExitStack() as resources:
            app = App(current, database, JobQueue(database, CATALOGUE, clock), clock, resources, patience_s)
            if patience_s:
                # In a thread: the archive may be in a database, and that far away.
                await retry_while_unavailable(lambda: asyncio.to_thread(lambda: app.archive), patience_s, clock)
            yield app
    finally:
        await database.close()
