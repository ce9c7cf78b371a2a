"""Everything that attacks `postroom up` at once: hostile mail, a hostile followed site, unauthenticated clients, and an
agent with a token. Each attack goes on until it is cancelled and ignores refusals.

As a program it is the clients alone: `python -m tests.support.attackers URL AGENT_TOKEN`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

from postroom.sim.web.hostile import HOSTILE
from tests.hostile.corpus import corpus
from tests.support.deployment import StandIn
from tests.support.mail import encoded
from tests.support.web_servers import Page, TinySite, tiny_site
from tests.support.web_sources import sources_file

MB = 1 << 20
_SIZES = (5_000, 40_000, 200_000)
_LARGE = 8 * MB
_SILENT = 300
_PAUSE_S = 0.05
_AGAIN_S = 1.0
"""An attacker that was thrown out comes back after this long."""


def hostile_mails() -> Iterator[tuple[str, bytes]]:
    """The mail of the corpus in several sizes, without end; every fortieth is large."""
    kinds = [kind for kind in corpus().values() if "mail" in kind.readers]
    large = cycle(_large())
    for number, kind in enumerate(cycle(kinds)):
        yield kind.name, kind.sized(_SIZES[number % len(_SIZES)])
        if number % 40 == 0:
            yield next(large)


def _large() -> list[tuple[str, bytes]]:
    wanted = {
        "transfer.base64-between-junk": _LARGE,
        "structure.many-parts": _LARGE // 8,  # the stand-in takes it apart too, with the standard library: 1 s per MB
        "nesting.divs": _LARGE,
        "attributes.many-distinct": _LARGE,
    }
    kinds = corpus()
    return [(name, kinds[name].sized(size)) for name, size in wanted.items()]


@dataclass
class Attack:
    """Hostile mail from here, attacks at the door from a process of their own, so that neither holds up the other."""

    gmail: StandIn
    url: str
    pid: int
    agent_token: str
    sent: dict[str, bytes] = field(default_factory=dict)
    """Hostile mail by its Gmail id."""
    peak: int = 0
    """Of the process's memory, in bytes."""

    @asynccontextmanager
    async def under_way(self, mails_a_second: float) -> AsyncIterator[None]:
        command = (sys.executable, "-m", "tests.support.attackers", self.url, self.agent_token)
        attackers = await asyncio.create_subprocess_exec(*command)
        tasks = [asyncio.create_task(self._post(mails_a_second)), asyncio.create_task(self._watch())]
        try:
            yield
            assert attackers.returncode is None, "the attackers gave up"
            assert not [task for task in tasks if task.done()], "no more hostile mail was sent"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            attackers.kill()
            await attackers.wait()

    async def _post(self, mails_a_second: float) -> None:
        for _, raw in hostile_mails():
            self.sent[await delivered(self.gmail, raw)] = raw
            await asyncio.sleep(1 / mails_a_second)

    async def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, resident(self.pid))
            await asyncio.sleep(0.2)


async def delivered(gmail: StandIn, raw: bytes) -> str:
    at_ms = int(time.time() * 1_000)
    given = {"raw": encoded(raw), "label_ids": ["INBOX", "UNREAD"], "internal_date": at_ms}
    return str((await gmail.control("deliver", **given))["id"])


@dataclass(frozen=True)
class Attackers:
    """At the front door of `url`: strangers, and an agent with a token."""

    url: str
    agent_token: str

    async def attack(self) -> None:
        """Everything at once, until the process is killed."""
        attacks = (
            *(self._silent_connections, self._header_flood, self._endless_header, self._slow_request),
            *(self._body_bombs, self._nested_bodies),
        )
        await asyncio.gather(*map(self._again_and_again, attacks))

    async def _again_and_again(self, attack: Callable[[], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(OSError):
                await attack()
            await asyncio.sleep(_AGAIN_S)

    # At the front door.

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = urlsplit(self.url)
        return await asyncio.open_connection(where.hostname, where.port)

    async def _send(self, head: bytes, pieces: Iterator[bytes]) -> None:
        """Send until everything is sent or the server hangs up."""
        _, writer = await self._connect()
        try:
            writer.write(head)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            writer.close()

    async def _silent_connections(self) -> None:
        """Opened, and held for as long as the server lets them."""
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(_SILENT):
                _, writer = await self._connect()
                stack.callback(writer.close)
            await asyncio.sleep(5)

    async def _header_flood(self) -> None:
        line = b"X-Flood: " + b"a" * 1_000 + b"\r\n"
        await self._send(b"GET / HTTP/1.1\r\nHost: a\r\n", (line * 100 for _ in range(1_200)))

    async def _endless_header(self) -> None:
        await self._send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Endless: ", (b"a" * 10_000 for _ in range(3_000)))

    async def _slow_request(self) -> None:
        _, writer = await self._connect()
        try:
            for byte in b"GET /mail HTTP/1.1\r\nHost: a\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(_PAUSE_S)
        finally:
            writer.close()

    async def _body_bombs(self) -> None:
        await self._bomb(b"[" + b"{}," * 100, b"{}," * 30_000, 800)

    async def _nested_bodies(self) -> None:
        await self._bomb(b"", b"[" * 60_000, 1_000)

    async def _bomb(self, start: bytes, piece: bytes, times: int) -> None:
        """72 MB of JSON from an agent with a token."""
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.agent_token}\r\n"
            f"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"Content-Length: {len(start) + len(piece) * times}\r\n\r\n"
        )
        await self._send(head.encode() + start, (piece for _ in range(times)))


def resident(pid: int) -> int:
    """Bytes that the process has in memory now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1_024
    return 0


# The site that is followed.


def _attributes() -> Page:
    return Page(b"<html><a href=/x" + b"".join(b" a%d=b" % n for n in range(230_000)) + b">x</a></html>")


def _nested_sitemap() -> Page:
    return Page(gzip.compress(b"<urlset>" + b"<a>" * 4_000_000, 9), "application/gzip")


@asynccontextmanager
async def hostile_site() -> AsyncIterator[TinySite]:
    """Lists that exhaust who reads them, and pages of every kind that web sites do wrong."""
    async with tiny_site() as site:
        site.pages["/robots.txt"] = Page(b"User-agent: *\nAllow: /\n", "text/plain")
        site.pages["/nested.xml.gz"] = _nested_sitemap()
        site.pages["/attributes"] = _attributes()
        for path, make in HOSTILE.items():
            reply = make()
            if reply.announced_length is None:
                site.pages[path] = Page(reply.body, reply.content_type or "text/html", headers=dict(reply.headers))
        site.sitemap("/all.xml", list(HOSTILE))
        yield site


def followed(site: TinySite) -> str:
    """What `sources.toml` says of it."""
    return (
        sources_file(site.url, "nested", url=f"{site.url}/nested.xml.gz")
        + sources_file(site.url, "attributes", url=f"{site.url}/attributes", mode="pagination")
        + sources_file(site.url, "all", url=f"{site.url}/all.xml")
    )


if __name__ == "__main__":
    os.nice(5)  # what they cost themselves is not what they cost us
    asyncio.run(Attackers(*sys.argv[1:]).attack())
