"""The stand-in's pages by path, what its control endpoint can change, and a journal of every request with its times."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field

from postroom.domain.clock import Clock
from postroom.sim.web import gazette as listings
from postroom.sim.web import hostile
from postroom.sim.web.gazette import Gazette, SiteReply, html, missing, redirect


@dataclass(slots=True)
class SiteVisit:
    number: int
    path: str
    agent: str
    began: float
    """Seconds on the stand-in's own clock."""
    in_flight: int
    """Requests under way when this one came, itself included."""
    status: int | None = None
    ended: float | None = None


class VisitJournal:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.visits: list[SiteVisit] = []
        self._in_flight = 0

    def begin(self, path: str, agent: str) -> SiteVisit:
        self._in_flight += 1
        visit = SiteVisit(len(self.visits) + 1, path, agent, self._clock.monotonic(), self._in_flight)
        self.visits.append(visit)
        return visit

    def end(self, visit: SiteVisit, status: int | None) -> None:
        self._in_flight -= 1
        visit.ended, visit.status = self._clock.monotonic(), status

    @property
    def most_in_flight(self) -> int:
        return max((visit.in_flight for visit in self.visits), default=0)

    def gaps(self) -> list[float]:
        """Seconds from the beginning of each request to that of the next."""
        return [later.began - earlier.began for earlier, later in zip(self.visits, self.visits[1:], strict=False)]

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(visit) for visit in self.visits]


ROBOTS = "User-agent: *\nDisallow: /private/\nSitemap: {origin}/sitemap.xml\n"


class SiteFault(BaseModel):
    """What the next requests under a path get in place of their page."""

    model_config = ConfigDict(extra="forbid")
    path: str = Field("/", description="requests whose path begins so")
    status: int = Field(503, ge=200, le=599)
    retry_after: str | None = None
    times: int = Field(1, ge=1)


class RobotsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = ROBOTS
    status: int = Field(200, ge=200, le=599)
    location: str | None = None


class DocumentChange(BaseModel):
    """A document gets a new version."""

    model_config = ConfigDict(extra="forbid")
    number: int = Field(ge=1)


@dataclass
class GazetteSite:
    gazette: Gazette
    clock: Clock
    robots: RobotsFile = field(default_factory=RobotsFile)
    faults: list[SiteFault] = field(default_factory=list)

    def change(self, change: DocumentChange) -> None:
        self.gazette.versions[change.number] = self.gazette.versions.get(change.number, 1) + 1

    def answer(self, origin: str, path: str, query: str, headers: dict[str, str]) -> SiteReply:
        fault = self._fault(path)
        if fault is not None:
            wait = (("Retry-After", fault.retry_after),) if fault.retry_after else ()
            return SiteReply(fault.status, b"<h1>Trouble</h1>", headers=wait)
        if path == "/robots.txt":
            return self._robots_txt(origin)
        asked = dict(parse_qsl(query))
        return self._found(origin, path, asked, headers) or missing()

    def _fault(self, path: str) -> SiteFault | None:
        fault = next((each for each in self.faults if path.startswith(each.path)), None)
        if fault is not None:
            fault.times -= 1
            self.faults = [each for each in self.faults if each.times > 0]
        return fault

    def _robots_txt(self, origin: str) -> SiteReply:
        if self.robots.location:
            return redirect(self.robots.location)
        text = self.robots.text.replace("{origin}", origin)
        return SiteReply(self.robots.status, text.encode(), "text/plain; charset=utf-8")

    def _found(self, origin: str, path: str, asked: dict[str, str], headers: dict[str, str]) -> SiteReply | None:
        if path in hostile.HOSTILE:
            return hostile.HOSTILE[path]()
        first = path.split("/")[1]
        page = _number(asked.get("page"), 1)
        if first.startswith("sitemap"):
            return listings.sitemap(self.gazette, origin, path)
        match first:
            case "archive":
                return listings.archive(self.gazette, path)
            case "news" | "news-loop":
                return listings.news(self.gazette, page, loops=first == "news-loop")
            case "endless":
                return listings.endless(page)
            case "documents":
                document = self.gazette.by_path(path)
                return None if document is None else self.gazette.page(document, headers)
            case _:
                return self._special(path, asked) or self._redirected(path, asked)

    def _special(self, path: str, asked: dict[str, str]) -> SiteReply | None:
        match path.split("/")[1:]:
            case [""]:
                return html("Stand-in gazette", "<h1>Službeni glasnik</h1><p><a href='/news'>Novosti</a></p>")
            case ["about" | "private", *_]:
                return html(path, f"<article><h1>{path}</h1><p>Stranica koja se rijetko mijenja.</p></article>")
            case ["slow"]:
                seconds = min(_number(asked.get("seconds"), 5), 600)
                return SiteReply(stream=hostile.slow_body(seconds, self.clock))
            case ["bombs", "endless"]:
                return SiteReply(stream=hostile.endless_body())
            case _:
                return None

    def _redirected(self, path: str, asked: dict[str, str]) -> SiteReply | None:
        match path.split("/")[1:]:
            case ["redirect", number]:
                return redirect(f"/documents/{number}", 301)
            case ["redirect-loop", name]:
                return redirect(f"/redirect-loop/{'b' if name == 'a' else 'a'}")
            case ["redirect-chain", number] if number.isdecimal():
                return redirect(f"/redirect-chain/{int(number) - 1}" if int(number) > 1 else "/about")
            case ["redirect-to"]:
                return redirect(asked.get("url", ""))
            case _:
                return None


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else otherwise
