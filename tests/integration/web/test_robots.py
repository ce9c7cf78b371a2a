"""robots.txt by RFC 9309."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.sim.web.server import RobotsFile, SiteSim, running_site
from postroom.web.fetching.interface import Disallowed, ForbiddenAddress, Purpose, Unavailable
from postroom.web.fetching.robots import ASK_AGAIN
from postroom.web.web_service import WebClient
from tests.support.web_fetching import web_client_to

pytestmark = pytest.mark.req("WB-3")


@pytest.fixture
async def sim() -> AsyncIterator[SiteSim]:
    async with running_site(5) as site:
        yield site


@pytest.fixture
async def client(database: Database, clock: ManualClock) -> AsyncIterator[WebClient]:
    async with web_client_to(database, clock) as opened:
        yield opened


async def _get(client: WebClient, url: str) -> int:
    return (await client.fetcher.get(url, purpose=Purpose.EVIDENCE)).status


def _asked(sim: SiteSim, path: str) -> int:
    return sum(visit.path == path for visit in sim.journal.visits)


async def test_what_is_disallowed_is_not_asked_for(sim: SiteSim, client: WebClient) -> None:
    assert await _get(client, f"{sim.url}/about") == 200
    with pytest.raises(Disallowed, match="/private/draft"):
        await _get(client, f"{sim.url}/private/draft")
    assert _asked(sim, "/private/draft") == 0


async def test_our_own_group_goes_before_the_one_for_all(sim: SiteSim, client: WebClient) -> None:
    sim.site.robots = RobotsFile(
        text="User-agent: *\nAllow: /\n\nUser-agent: Postroom\nDisallow: /about\nAllow: /about$\n"
    )
    assert await _get(client, f"{sim.url}/about") == 200
    with pytest.raises(Disallowed):
        await _get(client, f"{sim.url}/about?x=1")


async def test_a_redirect_into_the_forbidden_is_not_followed(sim: SiteSim, client: WebClient) -> None:
    with pytest.raises(Disallowed):
        await _get(client, f"{sim.url}/redirect-to?url=/private/x")
    assert _asked(sim, "/private/x") == 0


async def test_it_is_asked_for_once_a_day(
    sim: SiteSim, client: WebClient, clock: ManualClock, database: Database
) -> None:
    for _ in range(3):
        await _get(client, f"{sim.url}/about")
    async with web_client_to(database, clock) as another:
        await _get(another, f"{sim.url}/about")
    assert _asked(sim, "/robots.txt") == 1
    clock.advance(timedelta(hours=24.5).total_seconds())
    await _get(client, f"{sim.url}/about")
    assert _asked(sim, "/robots.txt") == 2


@pytest.mark.parametrize("status", [404, 410, 401, 403])
async def test_without_a_robots_txt_everything_is_allowed(sim: SiteSim, client: WebClient, status: int) -> None:
    sim.site.robots = RobotsFile(status=status, text="User-agent: *\nDisallow: /")
    assert await _get(client, f"{sim.url}/private/x") == 200


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_while_it_cannot_be_had_nothing_is_fetched(
    sim: SiteSim, client: WebClient, clock: ManualClock, status: int
) -> None:
    sim.site.robots = RobotsFile(status=status)
    for _ in range(2):
        with pytest.raises(Unavailable, match=rf"robots\.txt (answered with status {status}|could not be fetched)"):
            await _get(client, f"{sim.url}/about")
    assert _asked(sim, "/about") == 0
    assert _asked(sim, "/robots.txt") == 1
    sim.site.robots = RobotsFile()
    clock.advance(ASK_AGAIN.total_seconds() + 1)
    assert await _get(client, f"{sim.url}/about") == 200


async def test_an_older_one_stays_in_force_while_the_new_cannot_be_had(
    sim: SiteSim, client: WebClient, clock: ManualClock
) -> None:
    await _get(client, f"{sim.url}/about")
    sim.site.robots = RobotsFile(status=500)
    clock.advance(timedelta(hours=30).total_seconds())
    assert await _get(client, f"{sim.url}/about") == 200
    with pytest.raises(Disallowed):
        await _get(client, f"{sim.url}/private/x")


async def test_a_site_that_does_not_answer_is_left_alone(client: WebClient) -> None:
    async with running_site(1) as gone:
        url = gone.url
    with pytest.raises(Unavailable, match="robots"):
        await _get(client, f"{url}/about")


async def test_its_redirects_are_followed(sim: SiteSim, client: WebClient) -> None:
    async with running_site(1) as other:
        other.site.robots = RobotsFile(text="User-agent: *\nDisallow: /about")
        sim.site.robots = RobotsFile(location=f"{other.url}/robots.txt")
        with pytest.raises(Disallowed):
            await _get(client, f"{sim.url}/about")


async def test_redirects_without_end_count_as_none(sim: SiteSim, client: WebClient) -> None:
    sim.site.robots = RobotsFile(location="/robots.txt")
    assert await _get(client, f"{sim.url}/about") == 200
    assert _asked(sim, "/robots.txt") == 6


@pytest.mark.req("WB-13")
async def test_it_leads_nobody_inside(sim: SiteSim, client: WebClient) -> None:
    sim.site.robots = RobotsFile(location="http://169.254.169.254/robots.txt")
    with pytest.raises(Unavailable):
        await _get(client, f"{sim.url}/about")
    with pytest.raises(ForbiddenAddress):
        await _get(client, "http://10.0.0.1/about")


@pytest.mark.parametrize(
    ("text", "seconds"), [("Crawl-delay: 20", 20), ("Crawl-delay: 0.5", 0.5), ("Request-rate: 1/40s", 40)]
)
async def test_its_delay_is_kept(
    sim: SiteSim, client: WebClient, clock: ManualClock, text: str, seconds: float
) -> None:
    sim.site.robots = RobotsFile(text=f"User-agent: *\n{text}\n")
    await _get(client, f"{sim.url}/about")
    before = clock.monotonic()
    await _get(client, f"{sim.url}/about")
    assert clock.monotonic() - before == pytest.approx(seconds, abs=0.01)


@pytest.mark.req("WB-13")
@pytest.mark.parametrize(
    "text", ["\0\ufffd" * 1_000, "User-agent: *\nDisallow: /" + "*a" * 5_000, "x" * 600_000, "Crawl-delay: -1\n"]
)
async def test_a_hostile_one_is_survived(sim: SiteSim, client: WebClient, text: str) -> None:
    sim.site.robots = RobotsFile(text=text)
    assert await _get(client, f"{sim.url}/about") == 200
