"""A worker of an installation: handlers for every job type, what they need while it runs, and how its passes reach the
Switchboard: in this process if it can own the archive, else over HTTP.

Passes call tools and nothing else, whichever transport carries the calls.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroom.accounts.access import AccountMailboxes
from postroom.accounts.account import Account, AccountStatus, Provider, list_accounts
from postroom.accounts.account_jobs import LoginWatch, account_of, each_account, job_of
from postroom.accounts.enrolment import Enrolment
from postroom.accounts.troubled import count_troubled, show_troubled
from postroom.actions import approvals
from postroom.actions.discord.client import DiscordChannel, open_channel
from postroom.actions.discord.notices import ApprovalNotifier, LoginNotifier
from postroom.actions.executor import ActionHandler, upkeep
from postroom.actions.label_changes import LabelFinder
from postroom.actions.mailbox_changes import LabelsSyncHandler
from postroom.actions.outbound.sending import MailSender, Originals
from postroom.actions.restore.restorer import RestoreHandler
from postroom.actions.scheduling import ActionIntake
from postroom.actions.snoozes import SnoozeCheckHandler, UnsnoozeHandler
from postroom.actions.undo import UndoHandler, undo_many
from postroom.actions.unsubscribing import Unreached, Unsubscriber
from postroom.app.archive_runner import conversations_handler, index_handler, vectors_handler
from postroom.app.archive_statistics import statistics_handler
from postroom.app.digest.sending import DigestSender
from postroom.app.installation import App, label_listing
from postroom.app.live_settings import Renewable
from postroom.app.schedules import gap_job, ingest_job
from postroom.app.series import pruning_series, series_upkeep
from postroom.app.serving import running_address, toolbox_of
from postroom.app.web_news import WebNotifier
from postroom.archive.service import ArchiveService
from postroom.archive.status import OwnedElsewhere
from postroom.connectors.arrivals import DEFERRED_FILE, deferred_in
from postroom.connectors.passes import DRIVERS, GAP, ConnectorContext, GmailPasses, JobResult
from postroom.connectors.state_files import FolderInUse, folder_of, held
from postroom.contract.tool import A, R, ToolSignature
from postroom.db import Tx
from postroom.domain import jobs
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.domain.roles import Caller, Role
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.reader import OUTAGE
from postroom.queue import Handler, JobContext, JobQueue, Postponed
from postroom.queue.job import Json
from postroom.queue.retention import Retention, prune_handler
from postroom.queue.worker import Worker
from postroom.settings import MODEL_KEY_ENTRY, OFF, DiscordSettings, Settings, WorkerSettings
from postroom.switchboard import contacts, retention
from postroom.switchboard.backfill.leases import has_open_jobs
from postroom.switchboard.backfill.operations import upkeep_handler
from postroom.switchboard.spending import forgetting_reservations
from postroom.switchboard.tokens import AccessToken, NewToken, create_token, revoke_token
from postroom.switchboard.toolbox import Direct
from postroom.sync import service as sync_jobs
from postroom.telemetry import logs
from postroom.triage.classify import Classifier, ClassifierOptions
from postroom.triage.learning.owner_labels import take_verdicts
from postroom.triage.learning.service import LearnedTriage, LearningKey, fit
from postroom.triage.model import model_problem, open_model
from postroom.triage.records import forgetting_prompts
from postroom.triage.rules.applying import RuleApplier
from postroom.triage.rules.engine import RuleBook
from postroom.web import web_service as web
from postroom.web.extraction.web_reader import WebReader
from postroom.web.fetching.fetcher import open_owner_requests
from postroom.web.fetching.interface import Unreachable

if TYPE_CHECKING:
    import httpx2

    from postroom.connectors.mcp_client import OverMcp

PURPOSE = "postroom worker"
_LOOK_FOR_ACCOUNTS_S = 60.0
_UNTIL_FOLLOWED_S = 0.5
_MOST_FOLLOWING = 40
_TOKEN_LIFE = timedelta(hours=12)


class SwitchboardTransport:
    """To be used in its block: it holds connections, and a token that ends with it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._stack = AsyncExitStack()
        self._name = f"worker on {socket.gethostname()[:60]}"
        self._served: tuple[ArchiveService, Direct] | None = None
        self._token: tuple[AccessToken, str] | None = None
        self._one_token = asyncio.Lock()
        self._http: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> SwitchboardTransport:
        self._search = self._stack.enter_context(self._app.archive.backend.search(self._app.clock))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._give_token_back()
        await self._stack.aclose()

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        async with AsyncExitStack() as stack:
            try:
                archive = await stack.enter_async_context(self._app.archive.owned(PURPOSE))
            except OwnedElsewhere:
                address = self._app.settings.switchboard.url or running_address(self._app.settings.home)
                if address is None:
                    raise
                return await self._elsewhere(address, await self._token_text()).call(tool, arguments)
            return await self._direct(archive).call(tool, arguments)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Own the archive for the length of a job, if this process can."""
        async with AsyncExitStack() as stack:
            with suppress(OwnedElsewhere):  # each call finds its way to the owner, or says who it is
                await stack.enter_async_context(self._app.archive.owned(PURPOSE))
            yield

    def _elsewhere(self, address: str, token: str) -> OverMcp:
        from postroom.connectors.mcp_client import http_client, over_http  # the library of MCP is slow to load

        if self._http is None:
            self._http = http_client()
            self._stack.push_async_callback(self._http.aclose)
        return over_http(address, token, self._http)

    def _direct(self, archive: ArchiveService) -> Direct:
        if self._served is None or self._served[0] is not archive:
            toolbox = toolbox_of(self._app, archive, self._search)
            self._served = archive, Direct(toolbox, Caller(Role.CONNECTOR, self._name))
        return self._served[1]

    async def _token_text(self) -> str:
        """A token of this worker's own; renewed before it ends. Passes that begin together share it."""
        async with self._one_token:
            now = self._app.clock.now()
            if self._token is None or _age(self._token[0], now) > _TOKEN_LIFE:
                await self._give_token_back()
                wanted = NewToken(Role.CONNECTOR, self._name, expires_days=1)
                self._token = await self._app.database.write(lambda tx: create_token(tx, wanted, now))
            return self._token[1]

    async def _give_token_back(self) -> None:
        if self._token is not None:
            token, self._token = self._token[0], None
            await self._app.database.write(lambda tx: revoke_token(tx, token.id, self._app.clock.now()))


def _age(token: AccessToken, now: datetime) -> timedelta:
    return now - token.created_at


log = logs.get(__name__)

_UNTIL_RETRY = timedelta(minutes=1)
_WITHOUT_FOLDER = (jobs.ON_DEMAND.name, jobs.INGEST.name)
"""These keep nothing in the connector's folder, and do not wait for a connector that holds it."""


@asynccontextmanager
async def open_worker(app: App, *, until_idle: bool = False, drain_s: float | None = None) -> AsyncIterator[Worker]:
    """A worker for every job type, with the recurring schedules declared. `drain_s` may make its end shorter."""
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(SwitchboardTransport(app))
        passes = _Passes(app, transport, stack)
        settings = app.settings
        mailboxes = AccountMailboxes(app.mailboxes, PriorityLane.USER_ACTION, stack)
        handlers: dict[str, Handler] = {
            jobs.QUEUE_PRUNE.name: pruning_series(prune_handler(Retention.from_settings(settings.queue))),
            jobs.SERIES_UPKEEP.name: series_upkeep,
            jobs.ARCHIVE_INDEX.name: index_handler(app),
            jobs.ARCHIVE_CONVERSATIONS.name: conversations_handler(app),
            jobs.ARCHIVE_VECTORS.name: vectors_handler(app),
            jobs.ARCHIVE_STATISTICS.name: statistics_handler(app.archive.backend),
            jobs.RETENTION_PRUNE.name: retention.prune_handler(
                retention.RetentionRule.from_settings(settings.retention),
                retention.certified(app.archive.backend),
                {
                    "prompts": forgetting_prompts(app.database, timedelta(days=settings.model.keep_prompts_days)),
                    "reservations": forgetting_reservations(app.database),
                },
            ),
            jobs.BACKFILL_UPKEEP.name: _counting_troubled(upkeep_handler(app.backfill)),
            jobs.CONTACTS_EXPORT.name: contacts.export_handler(app.archive.backend),
            jobs.CLASSIFY.name: (await stack.enter_async_context(_classifier(app))).handler(lambda classify: classify),
            jobs.LEARNING_FIT.name: fit,
            jobs.LEARNING_VERDICTS.name: take_verdicts,
            jobs.RULES_APPLY.name: RuleApplier(app.archive.backend, ActionIntake(app.queue, settings.safety)),
            jobs.RESTORE.name: RestoreHandler(app.archive.backend, mailboxes, settings.restore),
            jobs.EACH_ACCOUNT.name: each_account([job_type.name for job_type in jobs.OF_ACCOUNTS]),
            **_speaking_handlers(app, mailboxes, await stack.enter_async_context(_channel(app))),
            **_action_handlers(app, mailboxes),
            **sync_jobs.sync_handlers(app.sync, app.archiver, beside_live=settings.recurring.live != OFF),
            **web.handlers(app.web, WebReader()),
            **{job_type.name: passes.handle for job_type in jobs.PASSES},
        }
        watch = LoginWatch(Enrolment(app.database, app.grants, app.clock))
        handlers = watch.watched(handlers, not_waiting=[jobs.ON_DEMAND.name])
        await app.declare_schedules()
        if not until_idle and settings.recurring.live != OFF:
            await stack.enter_async_context(_running(InboxWatches(app).run()))
        own = settings.worker if drain_s is None else _draining_within(settings.worker, drain_s)
        yield Worker(app.queue, handlers, own, settings.queue, until_idle=until_idle)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Beside the block, and ended with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class InboxWatches:
    """Starts a live pass as soon as a mailbox reports new mail, where its provider does. Workers of one home share the
    work: each mailbox is watched once."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._follow_accounts()
                await self._app.clock.sleep(_LOOK_FOR_ACCOUNTS_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow_accounts(self) -> None:
        """One that ended, because its server has no IDLE or its login ended, is started again at the next look."""
        with suppress(Retryable):  # the database is away; what is watched stays watched
            accounts = {each.id: each for each in await self._app.database.read(list_accounts)}
            usable = {key for key, each in accounts.items() if each.status is not AccountStatus.LOGIN_ENDED}
            for gone in self._tasks.keys() - usable:
                self._tasks.pop(gone).cancel()
            for key in usable:
                task = self._tasks.get(key)
                if task is None or task.done():
                    self._tasks[key] = asyncio.create_task(self._watch(accounts[key]))

    async def _watch(self, account: Account) -> None:
        watch = self._app.mailboxes.watch(account)
        if watch is None:
            return
        try:
            with held(folder_of(self._app.settings.home, "idle", account.email)):
                await watch.run(partial(self._start_pass, account))
        except PostroomError as error:
            log.info("imap.not_watched", account=account.id, problem=error.message)

    async def _start_pass(self, account: Account) -> None:
        """One that runs already may have looked before the news: then another follows it."""
        job = job_of(jobs.HISTORY_SYNC.name, account)
        for _ in range(_MOST_FOLLOWING):
            [enqueued] = await self._app.queue.enqueue(job)
            if not enqueued.duplicate:
                return
            await self._app.clock.sleep(_UNTIL_FOLLOWED_S)


def _classifier(app: App) -> Renewable[object, Classifier]:
    """Made anew when the model or its key changes."""
    rules = RuleBook(app.database, app.clock)

    @asynccontextmanager
    async def opened(made_of: object) -> AsyncIterator[Classifier]:
        settings = app.settings
        problem, model = model_problem(settings.model, app.vault), None
        async with AsyncExitStack() as stack:
            if problem is None:  # else rules go on deciding, and mail that none decides waits for a person
                model = await stack.enter_async_context(open_model(settings.model, app.vault, app.clock))
            intake = ActionIntake(app.queue, settings.safety)
            ways = ClassifierOptions(settings.model, settings.safety, problem)
            yield Classifier(rules, model, app.budget, intake, ways, _learned_triage(app, settings))

    return Renewable(lambda: (app.settings.model, app.vault.stamp(MODEL_KEY_ENTRY)), opened)


def _channel(app: App) -> Renewable[DiscordSettings, DiscordChannel | None]:
    return Renewable(lambda: app.discord, open_channel)


def _learned_triage(app: App, settings: Settings) -> LearnedTriage | None:
    """None where the vault's key is not here, as in a restored home: what was learned cannot be used without it."""
    try:
        key = LearningKey.open(app.vault)
    except Fatal as error:
        log.warning("learning.not_used", problem=error.message)
        return None
    servers = settings.connector.believed_servers
    return LearnedTriage(key, settings.learning, settings.model, settings.safety, servers)


def _counting_troubled(handler: Handler) -> Handler:
    """Also records each minute how many messages are troubled."""

    async def handle(context: JobContext) -> Json:
        show_troubled(await context.queue.database.read(count_troubled))
        return await handler(context)

    return handle


def _draining_within(settings: WorkerSettings, drain_s: float) -> WorkerSettings:
    return settings.model_copy(update={"drain_s": min(settings.drain_s, drain_s)})


def _action_handlers(app: App, mailboxes: AccountMailboxes) -> dict[str, Handler]:
    labels, settings, safety = LabelFinder(app.database, app.clock), app.settings.gmail, app.settings.safety
    return {
        jobs.ACTION.name: ActionHandler(mailboxes, labels, settings, safety, _unsubscriber(app)),
        jobs.UNSNOOZE.name: UnsnoozeHandler(mailboxes, labels, settings),
        jobs.SNOOZE_CHECK.name: SnoozeCheckHandler(mailboxes),
        jobs.UNDO.name: UndoHandler(mailboxes),
        jobs.UNDO_MANY.name: undo_many,
        jobs.LABELS_SYNC.name: LabelsSyncHandler(mailboxes, label_listing()),
        jobs.ACTIONS_UPKEEP.name: upkeep,
    }


def _unsubscriber(app: App) -> Unsubscriber:
    """Sends through the fetcher of web pages, which actions do not know."""

    async def post(url: str, form: bytes) -> int:
        async with open_owner_requests(app.settings.web) as requests:
            try:
                return await requests.post_form(url, form)
            except (Unreachable, NotAllowed, BadInput) as error:
                raise Unreached(error.message.rstrip(".")) from error

    return Unsubscriber(Originals(app.archive.backend), post, app.settings.connector.believed_servers)


def _speaking_handlers(
    app: App, mailboxes: AccountMailboxes, channels: Renewable[DiscordSettings, DiscordChannel | None]
) -> dict[str, Handler]:
    """Handlers that send something out: mail in the owner's name, questions to the owner, and news."""
    return {
        jobs.OUTBOUND_SEND.name: MailSender(mailboxes, Originals(app.archive.backend)),
        jobs.DIGEST_SEND.name: lambda context: DigestSender(app.settings, mailboxes)(context),
        jobs.APPROVAL_NOTIFY.name: channels.handler(ApprovalNotifier),
        jobs.APPROVALS_EXPIRE.name: channels.handler(
            lambda channel: approvals.ApprovalUpkeep(has_channel=channel is not None)
        ),
        jobs.LOGIN_NOTIFY.name: channels.handler(lambda channel: LoginNotifier(channel, app.settings.dashboard.url)),
        jobs.WEB_NOTIFY.name: channels.handler(lambda channel: WebNotifier(app.web, channel, mailboxes)),
    }


class DeferredToJobs:
    """Hands each message that a live pass could not take in to a job of its own. While the mailbox itself cannot be
    reached, the pass waits instead."""

    def __init__(self, queue: JobQueue, account_id: str) -> None:
        self._queue = queue
        self._account_id = account_id

    def due(self) -> list[str]:
        return []

    async def failed(self, key: str, error: PostroomError, *, alone: bool) -> bool:
        if isinstance(error, OUTAGE):
            return False
        await self._queue.enqueue(ingest_job(self._account_id, key, self._queue.clock.now() + _UNTIL_RETRY))
        return True

    async def done(self, keys: Sequence[str]) -> list[str]:
        return []


async def _driven(context: JobContext, passes: GmailPasses) -> JobResult:
    """One pass, as a step of its job; what it came to is kept with both."""
    async with context.step("pass") as step:
        result = await DRIVERS[context.job.type](passes, context.job.payload)
        step.result = result
    return result


class _Passes:
    """The passes of each account, made when they are first needed: a backfill's lease stays with them. One that is read
    in another way since has others."""

    def __init__(self, app: App, transport: SwitchboardTransport, stack: AsyncExitStack) -> None:
        self._app = app
        self._transport = transport
        self._stack = stack
        self._made: dict[tuple[str, Provider], GmailPasses] = {}

    async def handle(self, context: JobContext) -> Json:
        account = await account_of(context)
        job_type = context.job.type
        passes = await self._of(account)
        async with AsyncExitStack() as stack:
            try:
                if job_type not in _WITHOUT_FOLDER:
                    stack.enter_context(held(self._folder(account), shared=True))
                await stack.enter_async_context(self._transport.held())
                if job_type == jobs.HISTORY_SYNC.name:
                    return await self._look(context, account, passes)
                if job_type == jobs.BACKFILL.name and GAP not in context.job.payload:
                    return await self._backfill(context, account, passes)
                return await _driven(context, passes)
            except (FolderInUse, OwnedElsewhere) as error:
                if job_type == jobs.INGEST.name:  # no schedule would enqueue it again
                    raise Postponed(_UNTIL_RETRY, error.message) from error
                return {"skipped": error.message}

    async def _backfill(self, context: JobContext, account: Account, passes: GmailPasses) -> Json:
        """Asks for work only while there is some, so that a job that is created after a while starts at once."""
        if not await context.queue.database.read(lambda tx: has_open_jobs(tx, account.email)):
            return {"skipped": "no backfill job of this mailbox is open"}
        if wait := passes.backfill_starts_in:
            raise Postponed(wait, "backfill work was asked for less than a minute ago")
        return await _driven(context, passes)

    async def _look(self, context: JobContext, account: Account, passes: GmailPasses) -> Json:
        """A live pass. While a gap is owed, a job of its own walks it in turns, beside the looks that follow."""
        await self._take_over(account)
        result = await _driven(context, passes)
        if not result[GAP]:
            return result

        def hand_over(tx: Tx) -> Json:
            context.queue.add(tx, gap_job(account))
            return result

        await context.complete(hand_over)
        return None

    async def _take_over(self, account: Account) -> None:
        """What is in the file of a connector, or of a worker of version 0.1, becomes jobs."""
        folder = self._folder(account)
        if waiting := deferred_in(folder):
            now = self._app.clock.now()
            await self._app.queue.enqueue(*(ingest_job(account.id, key, now) for key in waiting))
            (folder / DEFERRED_FILE).unlink()

    def _folder(self, account: Account) -> Path:
        return folder_of(self._app.settings.home, "gmail", account.email)

    async def _of(self, account: Account) -> GmailPasses:
        key = account.id, account.provider
        if key not in self._made:
            mailbox = await self._stack.enter_async_context(self._app.mailboxes.mailbox(account, PriorityLane.LIVE))
            self._made[key] = GmailPasses(
                ConnectorContext(
                    identity=account.email,
                    tools=self._transport,
                    mailbox=mailbox,
                    folder=self._folder(account),
                    clock=self._app.clock,
                    instance="worker",
                    config=self._app.settings.connector,
                    deferred=DeferredToJobs(self._app.queue, account.id),
                )
            )
        return self._made[key]
