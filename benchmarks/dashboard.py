"""How long the server takes for every page of the dashboard, on both databases, with very much in them.

    python -m benchmarks.dashboard [--quick] [--folder PATH] [--asked N] [--only sqlite|postgresql]

Pages are found as a person finds them, from the navigation along links and filters, so that a new page is measured
without being listed here. A page's time runs from the arrival of the request to the last byte of
the answer, without the browser. The data set takes some minutes to make and is kept with `--folder`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx2
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from benchmarks.dashboard_archive import NOW, OWNER, extremes
from benchmarks.dashboard_data import DataSet, Size
from benchmarks.report import Verdict, machine_facts, verdict_table
from postroom import eventloop
from postroom.app import open_app
from postroom.app.serving import SharedServices, open_switchboard
from postroom.dashboard.display.rendering import sections
from postroom.dashboard.security.sessions import begin_session
from postroom.dashboard.server import Dashboard
from postroom.db import Dialect
from postroom.domain.clock import ManualClock
from postroom.settings import DatabaseSettings, Settings, SwitchboardSettings
from postroom.telemetry import logs

_NOT_PAGES = ("/api/", "/static/", "/live", "/login", "/welcome", "/manifest.webmanifest", "/archive/upload")
_OF_A_KIND = 3
_PAGES_DEEP = 12
MOST = 6
PLACE = ("after", "before")
"""What an address says of how far down a list one is."""


class _Links(HTMLParser):
    """Where a page leads: its links, and its forms that only ask, with each choice by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._asks: str | None = None
        self._said: dict[str, str] = {}
        self._choices: list[tuple[str, str]] = []
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag in ("a", "iframe") and (said.get("href") or said.get("src")):
            self.found.append(said.get("href") or said["src"])
        elif tag == "form":
            self._asks = said.get("action", "") if said.get("method", "get").lower() == "get" else None
            self._said, self._choices = {}, []
        elif tag == "input" and said.get("type") == "hidden":
            self._said[said.get("name", "")] = said.get("value", "")
        elif tag == "select":
            self._select = said.get("name", "")
        elif tag == "option" and self._asks is not None and self._select and said.get("value"):
            self._choices.append((self._select, said["value"]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._asks is not None:
            self.found += [f"{self._asks}?{urlencode(self._said | {name: value})}" for name, value in self._choices]
            self._asks = None
        elif tag == "select":
            self._select = ""


def links_of(html: str, base: str) -> list[str]:
    """Addresses on the same site, without their fragments."""
    parser = _Links()
    parser.feed(html)
    here = urlsplit(base)
    found = []
    for part in (urlsplit(urljoin(base, link)) for link in parser.found):
        if (part.scheme, part.netloc) == (here.scheme, here.netloc):
            found.append(f"{part.path}?{part.query}" if part.query else part.path)
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Kind:
    """Pages that one function makes, narrowed by the same means."""

    route: str
    narrowed_by: tuple[str, ...]
    is_deep: bool

    def __str__(self) -> str:
        means = f" by {', '.join(self.narrowed_by)}" if self.narrowed_by else ""
        return f"{self.route}{means}{', a later page' if self.is_deep else ''}"


@dataclass
class Plan:
    """Which addresses are worth a visit. `depths` counts how many pages of a list lie before an address."""

    routes: Sequence[str]
    most: int = MOST
    """Addresses of a kind."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    _taken: Counter[object] = field(default_factory=Counter)
    _depths: dict[str, int] = field(default_factory=dict)

    def offer(self, address: str, seen_on: str | None = None) -> Kind | None:
        """Its kind, if it is to be visited; None if there were enough of them."""
        route = self._route_of(address)
        if route is None or address in self.kinds:
            return None
        query = dict(parse_qsl(urlsplit(address).query))
        means = tuple(sorted(name for name in query if name not in PLACE))
        is_deep = any(query.get(name) for name in PLACE)
        depth = self._depths.get(seen_on or "", 0) + 1 if is_deep else 0
        kind = Kind(route, means, is_deep)
        choice = (kind, tuple(sorted(query.items())) if means and not is_deep else depth if is_deep else "")
        if depth > _PAGES_DEEP or self._taken[kind] >= self.most or self._taken[choice] >= _OF_A_KIND:
            return None
        self._taken.update((kind, choice))
        self._depths[address] = depth
        self.kinds[address] = kind
        return kind

    def unreached(self) -> list[str]:
        reached = {kind.route for kind in self.kinds.values()}
        return sorted(set(self.routes) - reached)

    def _route_of(self, address: str) -> str | None:
        path = urlsplit(address).path
        return next((route for route in self.routes if compile_path(route)[0].match(path)), None)


def pages_of(app: FastAPI) -> list[str]:
    """The paths of all pages that can be looked at, in the order in which they are tried."""
    contexts = iter_route_contexts(app.routes)
    paths = [context.path for context in contexts if context.path is not None and "GET" in (context.methods or ())]
    return [path for path in paths if not path.startswith(_NOT_PAGES)]


def by_kind(kinds: dict[str, Kind]) -> Iterator[tuple[Kind, Sequence[str]]]:
    for kind in sorted(set(kinds.values()), key=str):
        yield kind, [address for address, each in kinds.items() if each == kind]


RESULTS = Path(__file__).parent / "results" / "dashboard.json"
FULL, QUICK = Size(1_000_000, 100_000), Size(1_100, 400)
MOST_P95_MS = 100.0
MOST_TRIAL_MS = 60.0
TRIAL = "/rules/{rule_id:uuid}/try"
"""Over the newest 1,000 messages."""
SEARCHES = (
    "invoice",
    "the",
    "invoice OR receipt -newsletter",
    '"your order"',
    "from:ann subject:meeting",
    "label:Travel has:attachment",
    "larger:50K order",
    "older_than:5y invoice",
    "zzzzzz",
    "in:anywhere is:unread",
)

TYPED = ("/audit?subject_type=message", "/audit?subject_type=unheard", "/audit?action=unheard")
"""What a person may write into a field that offers no choice."""


class Timed:
    """The dashboard, with the time of every request."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self.wall_ms = 0.0
        self.cpu_ms = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        await self.dashboard(scope, receive, send)
        self.wall_ms, self.cpu_ms = (time.perf_counter() - wall) * 1_000, (time.process_time() - cpu) * 1_000

    def running(self) -> Any:
        return self.dashboard.running()


@dataclass(frozen=True, slots=True)
class Effort:
    asked: int
    """How often each address is asked for."""
    most: int = MOST
    """Addresses of a kind of page."""


@dataclass(frozen=True, slots=True)
class PageTime:
    database: str
    page: str
    addresses: int
    p50_ms: float
    p95_ms: float
    cpu_p95_ms: float
    slowest: str
    """The address that took the longest, typically."""


class Visitor:
    def __init__(self, http: httpx2.AsyncClient, timed: Timed, url: str) -> None:
        self._http = http
        self._timed = timed
        self._url = url

    async def read(self, address: str) -> str | None:
        """The page; None for a choice that makes sense only together with a field that a person fills in."""
        answer = await self._http.get(address)
        if answer.status_code == 422 and "?" in address:
            return None
        if answer.status_code != 200:
            raise RuntimeError(f"{address} was answered with {answer.status_code}: {answer.text[:500]}")
        return answer.text if answer.headers["content-type"].startswith("text/html") else ""

    async def time(self, address: str) -> tuple[float, float]:
        await self.read(address)
        return self._timed.wall_ms, self._timed.cpu_ms

    async def walk(self, besides: Sequence[str], most: int) -> Plan:
        """Every kind of page, found from the navigation on, and these."""
        plan = Plan(pages_of(self._timed.dashboard.pages), most)
        waiting = deque[tuple[str, str | None]](
            (address, None) for address in (*besides, *(section.path for section in sections()))
        )
        while waiting:
            address, seen_on = waiting.popleft()
            if plan.offer(address, seen_on) is not None:
                html = await self.read(address)
                if html is None:
                    del plan.kinds[address]
                    continue
                waiting += [(link, address) for link in links_of(html, f"{self._url}{address}")]
        return plan


@asynccontextmanager
async def visitor(home: Path, database_url: str) -> AsyncIterator[Visitor]:
    """Logged in, at the time of the data set."""
    database = DatabaseSettings(url=SecretStr(database_url), synchronous="normal")
    settings = Settings(home=home, database=database, switchboard=SwitchboardSettings(port=0))
    made: list[Timed] = []

    def front(house: SharedServices) -> Timed:
        made.append(Timed(Dashboard(house)))
        return made[0]

    async with open_app(settings, ManualClock(NOW)) as app, open_switchboard(app, front) as running:
        secret = await app.database.write(lambda tx: begin_session(tx, settings.dashboard, "bench", "127.0.0.1", NOW))
        cookies = {f"postroom_{running.url.rpartition(':')[2]}": secret}
        async with httpx2.AsyncClient(base_url=running.url, cookies=cookies, timeout=120) as http:
            yield Visitor(http, made[0], running.url)


async def measure(home: Path, database_url: str, database: str, effort: Effort) -> tuple[list[PageTime], list[str]]:
    """The times of all kinds of pages, and the pages that no link led to."""
    async with visitor(home, database_url) as someone:
        searches = [f"/mail?{urlencode({'query': query})}" for query in SEARCHES]
        letters = [f"/mail/{OWNER}/{key}" for key in extremes(home / "archive")]
        plan = await someone.walk([*letters, *searches, *TYPED], effort.most)
        times = []
        for kind, addresses in by_kind(plan.kinds):
            samples = {address: [await someone.time(address) for _ in range(effort.asked)] for address in addresses}
            times.append(_page_time(database, str(kind), samples))
    return times, plan.unreached()


def _page_time(database: str, page: str, samples: dict[str, list[tuple[float, float]]]) -> PageTime:
    wall = [wall for each in samples.values() for wall, _ in each]
    cpu = [cpu for each in samples.values() for _, cpu in each]
    slowest = max(samples, key=lambda address: median(wall for wall, _ in samples[address]))
    return PageTime(database, page, len(samples), median(wall), _p95(wall), _p95(cpu), slowest)


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def judge(times: Sequence[PageTime], unreached: Sequence[str]) -> list[Verdict]:
    goal = f"at most {MOST_P95_MS:g} ms"
    verdicts = []
    for database in dict.fromkeys(each.database for each in times):
        here = [each for each in times if each.database == database]
        worst = max(here, key=lambda each: each.p95_ms)
        what = f"{database}: p95 of the slowest page ({worst.page})"
        verdicts.append(Verdict(what, worst.p95_ms, goal, worst.p95_ms <= MOST_P95_MS, " ms"))
        for trial in (each for each in here if each.page == TRIAL):
            what, met = f"{database}: p95 of a rule's trial over 1,000 messages", trial.p95_ms <= MOST_TRIAL_MS
            verdicts.append(Verdict(what, trial.p95_ms, f"at most {MOST_TRIAL_MS:g} ms", met, " ms"))
    if unreached:
        verdicts.append(Verdict(f"not measured, no link leads there: {', '.join(unreached)}", None, goal, None))
    return verdicts


def page_table(times: Sequence[PageTime]) -> Table:
    table = Table(title="Server time of pages, ms, the slowest first", title_justify="left")
    table.add_column("database")
    table.add_column("page")
    for column in ("addresses", "p50", "p95", "CPU p95"):
        table.add_column(column, justify="right")
    table.add_column("slowest address", overflow="fold")
    for each in sorted(times, key=lambda each: -each.p95_ms):
        figures = (each.p50_ms, each.p95_ms, each.cpu_p95_ms)
        table.add_row(each.database, each.page, str(each.addresses), *(f"{ms:.1f}" for ms in figures), each.slowest)
    return table


def run(folder: Path, size: Size, databases: Sequence[Dialect], effort: Effort, console: Console) -> dict[str, Any]:
    data = DataSet(folder, size, console)
    times, unreached = list[PageTime](), set[str]()
    for dialect in databases:
        with data.database(dialect) as url:
            console.print(f"visiting every page on {dialect}")
            found, missed = eventloop.run(measure(data.home, url, str(dialect), effort))
        times += found
        unreached |= set(missed)
    verdicts = judge(times, sorted(unreached))
    console.print(page_table(times))
    console.print(verdict_table(verdicts))
    return {
        "pages": [asdict(each) for each in times],
        "not_reached": sorted(unreached),
        "goals": [asdict(verdict) for verdict in verdicts],
    }


@contextmanager
def _place(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny data set, to see that it runs")
    parser.add_argument("--folder", type=Path, help="keep the data set there, and use again what is there")
    parser.add_argument("--asked", type=int, default=10, help="how often every address is asked for")
    parser.add_argument("--only", choices=[*Dialect], help="one database only")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    options = parser.parse_args()
    logs.configure(level="error", format="console")
    size = QUICK if options.quick else FULL
    databases = [Dialect(options.only)] if options.only else list(Dialect)
    console = Console(width=max(Console().width, 140))
    facts = machine_facts("-") | asdict(size)
    with _place(options.folder) as folder:
        figures = {"machine": facts} | run(
            folder, size, databases, Effort(options.asked, 2 if options.quick else MOST), console
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
