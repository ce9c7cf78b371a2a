"""Small web servers on this machine: one that gives every request the same answer, and a site of a few pages that
remembers what it was asked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from postroom.webserver import listening, serving


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The address of a server on this machine that sends these bytes to every request and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        except (OSError, EOFError):
            return  # a probe that only connects
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def page(body: bytes, status: str = "200 OK", content_type: str = "text/html", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


@dataclass(frozen=True)
class Page:
    body: bytes
    content_type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SeenRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    async def of(cls, scope: dict[str, Any], path: str, receive: Any) -> SeenRequest:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body, more = b"", scope["method"] == "POST"
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        return cls(scope["method"], path, headers, body)


@dataclass
class TinySite:
    """Pages by path with query; `gate` holds every answer back while it is closed."""

    url: str = ""
    pages: dict[str, Page | Callable[[str], Page]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    requests: list[SeenRequest] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    gated: frozenset[str] = frozenset()
    guarded: set[str] = field(default_factory=set)
    """Paths that are answered with 304 to those who name their ETag."""
    not_modified: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return "127.0.0.1"

    def times(self, path: str) -> int:
        return Counter(self.asked)[path]

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        self.asked.append(path)
        self.requests.append(await SeenRequest.of(scope, path, receive))
        if path in self.gated:
            await self.gate.wait()
        found = self.pages.get(path) or self.pages.get("*") or Page(b"no such page", status=404)
        page = found(path) if callable(found) else found
        headers = {"content-type": page.content_type, **page.headers}
        if path in self.guarded:
            headers["etag"] = f'"{hashlib.sha256(page.body).hexdigest()}"'
            if dict(scope["headers"]).get(b"if-none-match") == headers["etag"].encode():
                self.not_modified.append(path)
                page = Page(b"", status=304)
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": page.status, "headers": encoded})
        await send({"type": "http.response.body", "body": page.body})

    # What a site is made of.

    def sitemap(self, path: str, urls: Iterable[str], lastmod: Mapping[str, str] | None = None) -> None:
        self.pages[path] = Page(self._xml("urlset", "url", urls, lastmod), "application/xml")

    def sitemap_index(self, path: str, children: Iterable[str], lastmod: Mapping[str, str] | None = None) -> None:
        self.pages[path] = Page(self._xml("sitemapindex", "sitemap", children, lastmod), "application/xml")

    def list_page(self, path: str, links: Iterable[str], following: str | None = None) -> None:
        anchors = "".join(f'<li><a href="{escape(link)}">{escape(link)}</a></li>' for link in links)
        turn = f'<a rel="next" href="{escape(following)}">Next</a>' if following else ""
        self.pages[path] = Page(f"<html><body><ul>{anchors}</ul>{turn}</body></html>".encode())

    def feed(self, path: str, entries: Mapping[str, str], older: str | None = None) -> None:
        """Atom, with the time at which each entry was last changed."""
        listed = "".join(
            f'<entry><link href="{escape(self.url + entry)}"/><updated>{updated}</updated></entry>'
            for entry, updated in entries.items()
        )
        following = f'<link rel="next" href="{escape(older)}"/>' if older else ""
        body = f'<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title>{following}{listed}</feed>'
        self.pages[path] = Page(body.encode(), "application/atom+xml")

    def _xml(self, root: str, entry: str, paths: Iterable[str], lastmod: Mapping[str, str] | None) -> bytes:
        def one(path: str) -> str:
            age = (lastmod or {}).get(path)
            tail = f"<lastmod>{age}</lastmod>" if age else ""
            return f"<{entry}><loc>{escape(self.url + path)}</loc>{tail}</{entry}>"

        entries = "".join(map(one, paths))
        return f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</{root}>'.encode()


@asynccontextmanager
async def tiny_site() -> AsyncIterator[TinySite]:
    listener = listening("127.0.0.1", 0)
    site = TinySite(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
    async with serving(site, listener, patience_s=0.1):
        yield site
