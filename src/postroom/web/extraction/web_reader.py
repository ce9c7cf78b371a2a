"""Has everything that comes from web sites read by a limited child: documents, lists of pages, robots.txt.

A document always gets an answer, if only a note on why it cannot be read; a list that cannot be read is an error.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from postroom.domain.errors import Retryable
from postroom.reading.limited import Failure, LimitedReader, ReadingFailed, ReadingLimits, shared_reader
from postroom.telemetry import logs
from postroom.web.fetching.interface import BadAnswer, Disallowed, TooLarge, Unavailable
from postroom.web.strategies import ListReading

if TYPE_CHECKING:
    from postroom.web.fetching.interface import Fetched
    from postroom.web.strategies import WalkPlace, WalkStrategy


LONGEST_TEXT = 2_000_000
"""Characters that are kept of a document."""


@dataclass(frozen=True, slots=True)
class WebDocument:
    body: bytes
    content_type: str
    charset: str | None
    url: str


@dataclass(frozen=True, slots=True)
class Extracted:
    extractor: str
    title: str | None = None
    text: str = ""
    published_on: date | None = None
    language: str | None = None
    problem: str | None = None
    """Why text is missing, for people."""

    def encoded(self) -> tuple[dict[str, Any], bytes]:
        fields = asdict(self)
        fields["published_on"] = None if self.published_on is None else self.published_on.isoformat()
        return fields, fields.pop("text").encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, fields: dict[str, Any], text: bytes) -> Extracted:
        published = fields.pop("published_on")
        return cls(
            **fields,
            text=text.decode("utf-8", "surrogatepass"),
            published_on=None if published is None else date.fromisoformat(published),
        )


class DocumentReader(Protocol):
    async def extract(self, document: WebDocument) -> Extracted:
        """What the document says; every document gets an answer, if only a note on why it cannot be read."""


log = logs.get(__name__)

PAGE_LIMITS = ReadingLimits(cpu_seconds=20.0, wall_seconds=60.0, memory_bytes=1024 * 1024 * 1024)
ROBOTS_LIMITS = ReadingLimits(cpu_seconds=2.0, wall_seconds=30.0, memory_bytes=256 * 1024 * 1024)
_TASKS = "postroom.web.extraction.child_tasks"
_ERRORS = {"BadAnswer": BadAnswer, "TooLarge": TooLarge, "Unavailable": Unavailable}


@dataclass(frozen=True, slots=True)
class RobotsVerdict:
    allowed: bool
    delay_s: float


class ListKind(StrEnum):
    """What an address turned out to be."""

    FEED = "feed"
    SITEMAP = "sitemap"
    PAGE = "page"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ListSummary:
    """What a document lists, as far as is needed to follow it."""

    kind: ListKind
    title: str = ""
    total: int = 0
    pages: tuple[str, ...] = ()
    """The first of those that it lists."""
    is_index: bool = False
    """A sitemap of sitemaps."""
    feeds: tuple[str, ...] = ()
    next_url: str | None = None
    problem: str | None = None
    """Why it is no list."""

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> ListSummary:
        texts = {name: tuple(map(str, fields[name])) for name in ("pages", "feeds")}
        return cls(**{**fields, **texts, "kind": ListKind(fields["kind"])})


class WebReader:
    def __init__(self, limits: ReadingLimits | None = None, reader: LimitedReader | None = None) -> None:
        """`limits` are for one page. Without `reader`, the reader shared by this process is used."""
        self._limits = limits or PAGE_LIMITS
        self._own = reader

    async def extract(self, document: WebDocument) -> Extracted:
        header = {"content_type": document.content_type, "charset": document.charset, "url": document.url}
        try:
            answer = await self._reader.run_async(f"{_TASKS}:document", header, document.body, self._limits)
            return Extracted.decode(*answer)
        except ReadingFailed as error:
            if error.kind is Failure.START:
                raise Retryable(f"The page cannot be read now: {error.reason}") from error
            return _given_up(document, error)

    async def read_list(self, strategy: WalkStrategy, place: WalkPlace, page: Fetched) -> ListReading:
        """The contents of a page of a list. Raises BadAnswer if it cannot be read within the limits."""
        header = {
            "strategy": strategy.described(),
            "page": place.page,
            "url": page.url,
            "final_url": page.final_url,
            "charset": page.charset,
        }
        try:
            problem, found = await self._reader.run_async(f"{_TASKS}:list_page", header, page.body, self._limits)
        except ReadingFailed as error:
            if error.kind is Failure.START:
                raise Retryable(f"The list cannot be read now: {error.reason}") from error
            raise BadAnswer(f"The list cannot be read: {error.reason}.") from error
        if problem:
            _raise(problem)
        return await asyncio.to_thread(lambda: strategy.trusted(ListReading.decode(found)))

    async def summarize(self, page: Fetched) -> ListSummary:
        """What kind of list a page is. Raises BadAnswer if it cannot be read within the limits."""
        header = {"url": page.final_url, "charset": page.charset, "content_type": page.content_type}
        try:
            fields, _ = await self._reader.run_async(f"{_TASKS}:summary", header, page.body, self._limits)
            return ListSummary.decode(fields)
        except ReadingFailed as error:
            if error.kind is Failure.START:
                raise Retryable(f"The page cannot be read now: {error.reason}") from error
            raise BadAnswer(f"The page cannot be read: {error.reason}.") from error

    async def robots(self, origin: str, text: str, url: str, agent: str) -> RobotsVerdict:
        """Raises Disallowed if the file cannot be read within its limits, since it may forbid anything."""
        header = {"url": url, "agent": agent}
        try:
            verdict, _ = await self._reader.run_async(
                f"{_TASKS}:robots", header, text.encode("utf-8", "replace"), ROBOTS_LIMITS
            )
            return RobotsVerdict(verdict["allowed"] is True, float(verdict["delay"]))
        except ReadingFailed as error:
            if error.kind is Failure.START:
                raise Unavailable(f"robots.txt of {origin} cannot be read now: {error.reason}") from error
            raise Disallowed(f"robots.txt of {origin} cannot be read ({error.reason}), so it is not fetched") from error

    @property
    def _reader(self) -> LimitedReader:
        return self._own or shared_reader("web")


def _raise(problem: dict[str, object]) -> NoReturn:
    raise _ERRORS.get(str(problem.get("error")), BadAnswer)(str(problem.get("message"))[:1_000])


def _given_up(document: WebDocument, error: ReadingFailed) -> Extracted:
    log.warning(
        "web.extraction_given_up",
        content_type=document.content_type,
        bytes=len(document.body),
        kind=error.kind,
        reason=error.reason,
    )
    if error.kind is Failure.ERROR:
        return Extracted("none", problem=f"cannot be read: {error.reason}")
    why = "it breaks whatever reads it" if error.kind is Failure.CRASH else error.reason
    return Extracted("none", problem=f"given up: {why}")
