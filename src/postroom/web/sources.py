"""The sources that an installation follows: those of `sources.toml` in its home folder, apart from all other settings,
and those that were added (`source_store.py`); and when each is checked: at the time of the sentinel, every day or every
week, or more often by itself.

A mistake in the file is refused before anything runs, and reported with its place in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from postroom.domain.errors import BadInput, NotFound
from postroom.domain.validation import problem_text, shaped
from postroom.mail.patterns import Pattern, in_any_case
from postroom.queue.schedules import parse_cadence
from postroom.reading.structured import load_toml
from postroom.web.fetching.urls import canonicalize_url, host_of, placeholders_in

FILE_NAME = "sources.toml"
LARGEST_FILE = 4_000_000


class EndpointMode(StrEnum):
    SITEMAP = "SITEMAP"
    ARCHIVE = "ARCHIVE"
    PAGINATION = "PAGINATION"
    FEED = "FEED"
    PAGE = "PAGE"


class NoticeWay(StrEnum):
    """Where news of a source is reported."""

    OVERVIEW = "overview"
    DISCORD = "discord"
    EMAIL = "email"


class CheckCadence(StrEnum):
    """How often a source is checked. Daily and weekly checks are made by the sentinel, at its time."""

    HOURLY = "hourly"
    SIX_HOURS = "6h"
    DAILY = "daily"
    WEEKLY = "weekly"


_PLAIN = "is to be written with lower-case letters, digits"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Endpoint(_Strict):
    """Where a source lists what it has. `links` are RE2 patterns: only such addresses are items."""

    name: Annotated[str, shaped(r"[a-z0-9][a-z0-9._-]{0,63}", f"{_PLAIN}, dots, hyphens and underscores, at most 64")]
    mode: EndpointMode
    url: str
    links: list[str] = []
    sentinel: bool = True
    first_day: date | None = Field(None, ge=date(1900, 1, 1))
    page_parameter: Annotated[str, shaped(r"[A-Za-z0-9_.-]{1,64}", "is not the name of a parameter")] | None = None
    first_page: int = Field(1, ge=0, le=1_000_000)

    @field_validator("mode", mode="before")
    @classmethod
    def _in_any_case(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("links")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        return _compiled(patterns)

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        _refuse(lambda: canonicalize_url(self.url.replace("{", "").replace("}", "")))
        if (self.mode is EndpointMode.ARCHIVE) != bool(placeholders_in(self.url)):
            raise ValueError("an archive's url has {yyyy}, {mm} or {dd} in it, and no other endpoint's has")
        if self.mode is EndpointMode.ARCHIVE and self.first_day is None:
            raise ValueError("first_day is needed: the day on which the archive begins")
        if self.mode is not EndpointMode.PAGINATION and self.page_parameter is not None:
            raise ValueError("page_parameter is for the mode pagination")
        return self


class WebSource(_Strict):
    """A web site. Addresses outside of its domains, their subdomains included, are never followed."""

    slug: Annotated[str, shaped(r"[a-z0-9][a-z0-9.-]{0,99}", f"{_PLAIN}, dots and hyphens, at most 100")]
    name: str = ""
    domains: list[str] = Field(min_length=1)
    endpoint: list[Endpoint] = Field(min_length=1)
    include: list[str] = []
    exclude: list[str] = []
    max_urls: int | None = Field(None, ge=1, le=1_000_000)
    min_delay_ms: int | None = Field(None, ge=0, le=3_600_000)
    max_delay_ms: int | None = Field(None, ge=0, le=3_600_000)
    max_concurrent: int | None = Field(None, ge=1, le=32)
    allow_private: bool = False
    notify: list[NoticeWay] = [NoticeWay.OVERVIEW]
    """Where new and changed pages are reported."""
    every: CheckCadence = CheckCadence.DAILY

    @field_validator("include", "exclude")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        return _compiled(patterns)

    @field_validator("domains")
    @classmethod
    def _are_hosts(cls, names: list[str]) -> list[str]:
        return [_host(name) for name in names]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [endpoint.name for endpoint in self.endpoint]
        if len(set(names)) < len(names):
            raise ValueError("two endpoints have the same name")
        for endpoint in self.endpoint:
            if not self.has_host(host_of(endpoint.url)):
                raise ValueError(f"the endpoint {endpoint.name} lies outside of the source's domains")
        if (self.min_delay_ms or 0) > (self.max_delay_ms if self.max_delay_ms is not None else 3_600_000):
            raise ValueError("min_delay_ms is more than max_delay_ms")
        return self

    def has_host(self, host: str) -> bool:
        host = host.lower()
        return any(host == domain or host.endswith(f".{domain}") for domain in self.domains)

    def endpoints(self, mode: EndpointMode) -> list[Endpoint]:
        return [endpoint for endpoint in self.endpoint if endpoint.mode is mode]


@dataclass(frozen=True)
class ItemFilter:
    """Which addresses of a page are items of an endpoint."""

    source: WebSource
    include: Pattern | None
    exclude: Pattern | None

    @classmethod
    def of(cls, source: WebSource, endpoint: Endpoint) -> ItemFilter:
        return cls(source, _either(endpoint.links or source.include), _either(source.exclude))

    def wants(self, canonical_url: str) -> bool:
        if not self.source.has_host(host_of(canonical_url)):
            return False
        if self.exclude is not None and self.exclude.found_in(canonical_url):
            return False
        return self.include is None or self.include.found_in(canonical_url)


@dataclass(frozen=True)
class ConfiguredSources:
    """All sources, by slug: those of the file in its order, then those that were added."""

    by_slug: dict[str, WebSource]
    added: frozenset[str] = frozenset()
    """Those that are not in the file."""
    outranked: frozenset[str] = frozenset()
    """Those that were added, but for which the file counts, since they are in it too."""
    paused: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[WebSource]:
        return iter(self.by_slug.values())

    def __getitem__(self, slug: str) -> WebSource:
        try:
            return self.by_slug[slug]
        except KeyError:
            known = ", ".join(self.by_slug) or "none"
            raise NotFound("source", f"there is no source {slug!r} (known: {known})") from None

    def require_active(self, slug: str) -> WebSource:
        """Raises NotFound for an unknown source, BadInput for one that is paused."""
        source = self[slug]
        if slug in self.paused:
            raise BadInput("source", f"{slug} is paused; `postroom web unpause {slug}` continues it")
        return source

    def of_host(self, host: str) -> list[WebSource]:
        return [source for source in self if source.has_host(host)]

    def may_lead(self, here: str, there: str) -> bool:
        """Whether a page of one host may redirect to the other: only within one source, or on the host itself."""
        return here == there or any(source.has_host(there) for source in self.of_host(here))


class _File(_Strict):
    source: list[WebSource] = []


def load_sources(home: Path) -> ConfiguredSources:
    """The sources of this home folder; none where there is no file."""
    path = home / FILE_NAME
    try:
        with path.open(encoding="utf-8") as file:
            return parse_sources(file.read(LARGEST_FILE + 1))
    except FileNotFoundError:
        return ConfiguredSources({})
    except UnicodeDecodeError as error:
        raise BadInput(FILE_NAME, f"is not valid UTF-8: {error}") from None
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from error


def parse_sources(text: str) -> ConfiguredSources:
    if len(text) > LARGEST_FILE:
        raise BadInput(FILE_NAME, f"has {len(text):,} characters; the most is {LARGEST_FILE:,}")
    try:
        content = load_toml(text)
    except ValueError as error:
        raise BadInput(FILE_NAME, f"is not valid TOML: {error}") from None
    try:
        sources = _File(**content).source
    except ValidationError as error:
        raise _first_problem(error, content, FILE_NAME) from None
    by_slug = {source.slug: source for source in sources}
    if len(by_slug) < len(sources):
        raise BadInput(FILE_NAME, "two sources have the same slug")
    return ConfiguredSources(by_slug)


def source_of(definition: dict[str, Any]) -> WebSource:
    """A source that is not in the file. Raises BadInput, which names what is wrong."""
    try:
        return WebSource(**definition)
    except ValidationError as error:
        raise _first_problem(error, definition, "source") from None


def _first_problem(error: ValidationError, content: dict[str, Any], whole: str) -> BadInput:
    problem = error.errors(include_input=False, include_url=False)[0]
    place, inside = [whole], content
    for part in problem["loc"]:
        inside = _within(inside, part)
        place.append(str(part) if isinstance(part, str) else _named(part, inside))
    message = "no such key" if problem["type"] == "extra_forbidden" else problem_text(problem)
    return BadInput(" ".join(place), message)


def _within(inside: Any, part: str | int) -> Any:
    try:
        return inside[part]
    except (KeyError, IndexError, TypeError):
        return None


def _named(number: int, table: Any) -> str:
    """A table of a list by what it calls itself, else by its number."""
    name = (table.get("slug") or table.get("name")) if isinstance(table, dict) else None
    return f"{name!r}" if isinstance(name, str) else f"number {number + 1}"


def _compiled(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        _refuse(lambda pattern=pattern: in_any_case(pattern, "pattern"))
    return patterns


def _either(patterns: list[str]) -> Pattern | None:
    return in_any_case("|".join(f"(?:{pattern})" for pattern in patterns), "pattern") if patterns else None


def _host(name: str) -> str:
    if any(mark in name for mark in "/:?#"):
        raise ValueError(f"{name!r} is not a host; write for example gazette.example")
    return str(_refuse(lambda: host_of(canonicalize_url(f"http://{name}/"))))


def _refuse(check: Any) -> Any:
    """Our own refusal as pydantic's, which knows the place."""
    try:
        return check()
    except BadInput as error:
        raise ValueError(error.problem) from None


_OFTEN = {CheckCadence.HOURLY: timedelta(hours=1), CheckCadence.SIX_HOURS: timedelta(hours=6)}
_WEEK = timedelta(days=6, hours=12)
"""A week, less what the check before it may have begun late."""


def is_due_by_itself(every: CheckCadence, looked_at: datetime | None, now: datetime) -> bool:
    """Whether a source that does not wait for the sentinel is to be checked. `looked_at`: when it last was."""
    interval = _OFTEN.get(every)
    return interval is not None and _has_passed(looked_at, interval, now)


def is_due_with_sentinel(every: CheckCadence, looked_at: datetime | None, now: datetime) -> bool:
    """Whether the sentinel checks it this time: of all sources it only leaves out weekly ones before their time."""
    return every is not CheckCadence.WEEKLY or _has_passed(looked_at, _WEEK, now)


def next_check(
    every: CheckCadence, looked_at: datetime | None, sentinel: datetime | None, cadence: str, now: datetime
) -> datetime | None:
    """`sentinel` is when it looks next, on this cadence; None: it is off, and then nothing is checked."""
    if sentinel is None:
        return None
    if (interval := _OFTEN.get(every)) is not None:
        return now if _has_passed(looked_at, interval, now) or looked_at is None else looked_at + interval
    if is_due_with_sentinel(every, looked_at, sentinel) or looked_at is None:
        return sentinel
    return parse_cadence(cadence).next_after(sentinel, looked_at + _WEEK)


def _has_passed(since: datetime | None, interval: timedelta, now: datetime) -> bool:
    """A moment in the future is one of a clock that was set back since."""
    return since is None or since > now or since + interval <= now
