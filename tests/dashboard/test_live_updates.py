"""Open pages are told what changed, and let go when their session or the server ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2

from postroom.audit import SYSTEM
from postroom.dashboard.live_updates import TOPICS
from postroom.dashboard.security.passphrase import make_link
from postroom.dashboard.security.sessions import end_all_sessions
from postroom.queue import NewJob
from tests.support.dashboards import Site, open_site


async def events(answer: httpx2.Response) -> AsyncIterator[tuple[str, object]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def test_a_page_is_told_of_its_topics_and_of_no_others(site: Site) -> None:
    async with site.http.stream("GET", "/live?topics=queue,nonsense", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = events(answer)
        assert await anext(told) == ("ready", {})
        await site.write(lambda tx: make_link(tx, SYSTEM, site.app.clock.now()))  # changes the audit log only
        await site.app.queue.enqueue(NewJob("classify"))
        assert await anext(told) == ("changed", ["queue"])


async def test_changes_of_another_process_are_noticed_without_a_wake_up(site: Site) -> None:
    async with site.http.stream("GET", "/live?topics=audit", timeout=60) as answer:
        told = events(answer)
        await anext(told)
        await site.write(lambda tx: make_link(tx, SYSTEM, site.app.clock.now()))
        assert await anext(told) == ("changed", ["audit"])


async def test_the_stream_ends_with_the_session(site: Site) -> None:
    async with site.http.stream("GET", "/live?topics=queue", timeout=60) as answer:
        told = events(answer)
        await anext(told)
        await site.write(lambda tx: end_all_sessions(tx, site.app.clock.now()))
        await site.app.queue.enqueue(NewJob("classify"))
        assert [name async for name, _ in told] == ["over"]


async def test_open_streams_end_in_good_order_before_the_server_does(tmp_path: Path) -> None:
    """One that the server had to cut off after its patience would end in the middle of a chunk."""
    async with httpx2.AsyncClient(timeout=60) as page:
        async with open_site(tmp_path / "home") as site:
            cookies = "; ".join(f"{name}={value}" for name, value in site.cookie.items())
            request = page.build_request("GET", f"{site.url}/live?topics=queue", headers={"cookie": cookies})
            told = events(await page.send(request, stream=True))
            await anext(told)
        assert [name async for name, _ in told] == []


async def test_every_topic_can_be_looked_at(site: Site) -> None:
    await site.read(lambda tx: {topic: look(tx) for topic, look in TOPICS.items()})
