"""Tools for web sources: follow and leave them, check them, fetch failed pages again, and start, resume and cancel
runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

from postroom.audit import Actor
from postroom.contract import web as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.toolbox import Tool
from postroom.web.probing import NewSource
from postroom.web.runs import NewRun, Run
from postroom.web.sources import CheckCadence, ConfiguredSources, EndpointMode, NoticeWay, WebSource
from postroom.web.web_service import WebService

_ARGUMENTS = {"source": "sources", "from": "date_from", "to": "date_to", "as": "mode"}


class WebTools:
    def __init__(self, web: WebService) -> None:
        self._web = web

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield _tool(
            contract.LIST_SOURCES, "List the web sources that are followed.", self.list_sources, Permission.READ
        )
        yield _tool(
            contract.ADD_SOURCE,
            "Follow a web site: find out whether the address is a feed, a sitemap, an archive, a list or a page.",
            self.add_source,
        )
        yield _tool(contract.REMOVE_SOURCE, "Stop following a source. Its pages are kept.", self.remove_source)
        yield _tool(contract.PAUSE_SOURCE, "Pause a source, or continue it.", self.pause_source)
        yield _tool(contract.SET_NOTIFY, "Choose where news of a source is reported.", self.set_notify)
        yield _tool(contract.SET_SCHEDULE, "Choose how often a source is checked for new pages.", self.set_schedule)
        yield _tool(
            contract.LOOK,
            "Let a worker check all web sources for new pages. While one check waits or runs, no second is queued.",
            self.look,
        )
        yield _tool(contract.RETRY_PAGES, "Fetch pages again that could not be fetched.", self.retry)
        yield _tool(contract.CREATE_RUN, "Create a run that recovers the history of web sources.", self.create_run)
        yield _tool(contract.RESUME_RUN, "Let a worker continue a failed run where it stopped.", self.resume_run)
        yield _tool(contract.CANCEL_RUN, "Cancel a run for good. What it found stays.", self.cancel_run)
        yield Tool(
            contract.SOURCES_FOR_AGENT,
            Role.AGENT,
            Permission.READ,
            "The web sources that are followed.",
            self.list_sources,
            reads_only=True,
        )

    async def list_sources(self, caller: Caller, given: contract.ListSourcesArguments) -> contract.SourcesReply:
        sources, checks = await self._web.sources(), await self._web.next_checks()
        listed = [_followed(source, sources, checks.get(source.slug)) for source in sources]
        return contract.SourcesReply(sources=listed)

    async def add_source(self, caller: Caller, given: contract.AddSourceArguments) -> contract.AddedSourceReply:
        wanted = NewSource(
            given.url,
            None if given.mode is None else EndpointMode(given.mode),
            given.slug,
            given.name,
            given.domains,
            given.links,
            None if given.notify is None else [NoticeWay(way) for way in given.notify],
            watched=given.watched,
            every=CheckCadence(given.every),
        )
        with _named_as_arguments():
            found = await self._web.add(Actor.of(caller), wanted, dry_run=given.dry_run)
        new = ConfiguredSources({found.source.slug: found.source}, added=frozenset({found.source.slug}))
        followed = _followed(found.source, new)
        return contract.AddedSourceReply(source=followed, findings=found.findings, pages=list(found.pages))

    async def remove_source(self, caller: Caller, given: contract.SourceArguments) -> contract.SourceReply:
        await self._web.remove(Actor.of(caller), given.source)
        return contract.SourceReply(source=given.source)

    async def pause_source(self, caller: Caller, given: contract.PauseSourceArguments) -> contract.SourceReply:
        await self._web.pause(Actor.of(caller), given.source, paused=given.paused)
        return contract.SourceReply(source=given.source)

    async def set_notify(self, caller: Caller, given: contract.NotifyArguments) -> contract.SourceReply:
        await self._web.set_notify(Actor.of(caller), given.source, [NoticeWay(way) for way in given.notify])
        return contract.SourceReply(source=given.source)

    async def set_schedule(self, caller: Caller, given: contract.ScheduleSourceArguments) -> contract.SourceReply:
        await self._web.set_schedule(Actor.of(caller), given.source, CheckCadence(given.every))
        return contract.SourceReply(source=given.source)

    async def look(self, caller: Caller, given: contract.LookArguments) -> contract.LookReply:
        return contract.LookReply(job=await self._web.look_later(Actor.of(caller)))

    async def retry(self, caller: Caller, given: contract.RetryPagesArguments) -> contract.RetriedPagesReply:
        with _named_as_arguments():
            retried = await self._web.retry(Actor.of(caller), given.sources, dry_run=given.dry_run)
        return contract.RetriedPagesReply(pages=[contract.RetriedPage.model_validate(each) for each in retried])

    async def create_run(self, caller: Caller, given: contract.NewRunArguments) -> contract.RunReply:
        with _named_as_arguments():
            return _reply(await self._web.hand_over(Actor.of(caller), _new_run(given)))

    async def resume_run(self, caller: Caller, given: contract.RunArguments) -> contract.RunReply:
        return _reply(await self._web.resume_later(Actor.of(caller), given.run))

    async def cancel_run(self, caller: Caller, given: contract.RunArguments) -> contract.RunReply:
        return _reply(await self._web.cancel(Actor.of(caller), given.run))


def _tool(
    signature: ToolSignature[Any, Any],
    description: str,
    run: Callable[[Caller, Any], Awaitable[Reply]],
    permission: Permission = Permission.WEB,
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, permission, description, run)


@contextmanager
def _named_as_arguments() -> Iterator[None]:
    """The service names fields as the command line does."""
    try:
        yield
    except BadInput as error:
        field = _ARGUMENTS.get(error.field, error.field).replace("-", "_")
        raise type(error)(field, error.problem) from None


def _followed(
    source: WebSource, sources: ConfiguredSources, next_check: datetime | None = None
) -> contract.FollowedSource:
    return contract.FollowedSource(
        slug=source.slug,
        name=source.name or source.slug,
        domains=source.domains,
        modes=[endpoint.mode for endpoint in source.endpoint],
        urls=[endpoint.url for endpoint in source.endpoint],
        origin="added" if source.slug in sources.added else "file",
        paused=source.slug in sources.paused,
        notify=[str(way) for way in source.notify],
        every=source.every,
        next_check=next_check,
    )


def _reply(run: Run) -> contract.RunReply:
    return contract.RunReply(run=run.id, status=run.status)


def _new_run(given: contract.NewRunArguments) -> NewRun:
    return NewRun(
        sources=given.sources,
        mode=EndpointMode(given.mode),
        max_urls=given.max_urls,
        max_urls_per_source=given.max_urls_per_source,
        date_from=_start_of(given.date_from),
        date_to=_end_of(given.date_to, "date_to"),
        dry_run=given.dry_run,
    )


def _start_of(day: date | None) -> datetime | None:
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


def _end_of(day: date | None, field: str) -> datetime | None:
    """The last day is included."""
    start = _start_of(day)
    try:
        return None if start is None else start + timedelta(days=1)
    except OverflowError:
        raise BadInput(field, f"{day} is too late; the calendar ends there") from None
