"""Requests that the owner asks for one by one: the pictures of a message, and unsubscribing from a list.

They go over the same wire as pages, so to public addresses only and within bounds. They carry no cookie, no referrer
and no name of this program. robots.txt is for programs that walk sites; here a person asked for one thing.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroom.settings import WebSettings
from postroom.web.fetching.fetcher import HttpAnswer, PinnedTransport
from postroom.web.fetching.interface import BadAnswer, FetchLimits, Refused
from postroom.web.fetching.targets import AddressGuard, Resolver, SystemResolver, Target, read_target, redirected

_UNNAMED = "Mozilla/5.0"
"""Says nothing about the program or the machine."""
_PICTURES = "image/png, image/jpeg, image/gif, image/webp"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 3
_LIMITS = FetchLimits(largest_body=4 << 20, total_s=10.0, connect_s=5.0, read_s=5.0, most_redirects=_MOST_REDIRECTS)


class OwnerRequests:
    def __init__(self, wire: PinnedTransport) -> None:
        self._wire = wire

    async def picture(self, url: str, *, largest: int) -> bytes:
        """The body behind the address, through a few redirects, each checked anew. What it is has to be looked at."""
        target = read_target(url)
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._wire.exchange(target, {"Accept": _PICTURES}, largest=largest)
            if answer.status not in _REDIRECTS:
                return _body(target, answer)
            target = redirected(target, answer.headers.get("location", ""))
        raise BadAnswer(f"{target.shown} redirects on after {_MOST_REDIRECTS} redirects.")

    async def post_form(self, url: str, form: bytes) -> int:
        """Send a form once; the status of the answer. Redirects are not followed."""
        answer = await self._wire.exchange(read_target(url), {"Accept": "*/*"}, form=form)
        return answer.status


def _body(target: Target, answer: HttpAnswer) -> bytes:
    if answer.status != 200:
        raise Refused(f"{target.shown} answered with status {answer.status}", status=answer.status)
    return answer.body


@asynccontextmanager
async def open_owner_requests(
    settings: WebSettings, *, resolver: Resolver | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[OwnerRequests]:
    """Hosts that `web.allow_private_hosts` names may have private addresses, as for web sources."""
    guard = AddressGuard(resolver or SystemResolver(), settings.private_hosts)
    wire = PinnedTransport(guard, _LIMITS, _UNNAMED, tls)
    try:
        yield OwnerRequests(wire)
    finally:
        await wire.close()
