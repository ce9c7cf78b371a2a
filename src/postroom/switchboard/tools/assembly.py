"""Builds the toolbox: from the services to the tools that every transport serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from postroom.accounts.observers import MailboxObserver, NoObserver
from postroom.archive.backend import ArchiveBackend
from postroom.archive.search import Search
from postroom.archive.service import ArchiveService
from postroom.contract.tool import ConnectorReply, Reply
from postroom.db import Database
from postroom.domain.roles import Caller, Role
from postroom.queue import JobQueue
from postroom.switchboard.backfill.operations import Backfill
from postroom.switchboard.definitions import CategoryBook
from postroom.switchboard.ingest import Ingest
from postroom.switchboard.mail_service import MailService
from postroom.switchboard.spending import ModelBudget
from postroom.switchboard.toolbox import Tool, Toolbox
from postroom.switchboard.tools.agent import OnDemand, OnDemandTools, ReadingTools
from postroom.switchboard.tools.backfill import BackfillEstimator, BackfillTools
from postroom.switchboard.tools.mail import MailTools, PresenceTools
from postroom.switchboard.tools.senders import CategoryTools, ContactTools
from postroom.switchboard.tools.steering import Enrol, InstallationTools, SyncLabels, TokenTools


@dataclass(frozen=True)
class Services:
    queue: JobQueue
    archive: ArchiveService
    search: Search
    backfill: Backfill
    budget: ModelBudget
    estimator: BackfillEstimator | None = None
    on_demand: OnDemand | None = None
    enrol: Enrol | None = None
    sync_labels: SyncLabels | None = None
    watch: MailboxObserver = NoObserver()  # noqa: RUF009 - holds nothing
    book: CategoryBook = field(default_factory=CategoryBook)


def build_toolbox(services: Services, more: Iterable[Tool[Any, Any]] = ()) -> Toolbox:
    """`more` are the tools of other rooms."""
    queue, archive = services.queue, services.archive
    database, clock = queue.database, queue.clock
    ingest = Ingest(database, archive, queue, services.backfill.settings, services.book)
    tools = chain(
        MailTools(ingest, MailService(database, archive, clock, services.watch)).tools(),
        PresenceTools(database, clock, services.book).tools(),
        BackfillTools(services.backfill, database, services.estimator).tools(),
        agent_tools(database, archive.backend, services.search, services.on_demand),
        TokenTools(queue).tools(),
        InstallationTools(queue, services.budget, services.enrol, services.sync_labels).tools(),
        ContactTools(database, clock).tools(),
        CategoryTools(database, clock, services.book).tools(),
        more,
    )
    return Toolbox(_telling(tool, services.backfill) for tool in tools)


def agent_tools(
    database: Database, archive: ArchiveBackend, search: Search, on_demand: OnDemand | None
) -> Iterator[Tool[Any, Any]]:
    """Those of an assistant. They only read the archive, so that no process needs to own it for them."""
    yield from ReadingTools(database, archive, search).tools()
    yield from OnDemandTools(on_demand).tools()


def _telling(tool: Tool[Any, Any], backfill: Backfill) -> Tool[Any, Any]:
    """Every reply to a connector says whether backfill is on, so that a connector learns of the switch at its next
    call."""
    return replace(tool, run=_with_switch(tool.run, backfill)) if tool.role is Role.CONNECTOR else tool


def _with_switch(
    run: Callable[[Caller, Any], Awaitable[Reply]], backfill: Backfill
) -> Callable[[Caller, Any], Awaitable[Reply]]:
    async def call(caller: Caller, given: Any) -> Reply:
        reply = await run(caller, given)
        if not isinstance(reply, ConnectorReply) or reply.backfill_enabled is not None:
            return reply
        return reply.model_copy(update={"backfill_enabled": (await backfill.switch()).in_force})

    return call
