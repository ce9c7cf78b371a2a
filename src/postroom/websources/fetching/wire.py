"""One request, one answer, on a connection of its own to an address that was checked a moment before.

The name is looked up once, and the connection goes to the address itself: a name that answers differently a moment
later leads nowhere else. TLS and the `Host` header still speak of the name. There are no cookies, no proxies from the
environment, and no connections that outlive an answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from postroom.tls import trusted
from postroom.websources.fetching.addresses import Address
from postroom.websources.fetching.decoding import decode_body
from postroom.websources.fetching.errors import BadAnswer, TooLarge, Unavailable
from postroom.websources.fetching.ports import FetchLimits
from postroom.websources.fetching.resolving import AddressGuard
from postroom.websources.fetching.targets import Target

_ACCEPT = "text/html, application/xhtml+xml, application/xml;q=0.9, application/pdf;q=0.9, */*;q=0.5"
_SMALL = 64 * 1024
"""Less than this is decompressed on the spot."""
_NO_BODY = frozenset({204, 304, *range(300, 304), 307, 308})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire:
    def __init__(
        self,
        guard: AddressGuard,
        limits: FetchLimits,
        user_agent: str,
        tls: ssl.SSLContext | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._guard = guard
        self._limits = limits
        self._user_agent = user_agent
        connections = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = transport or httpx2.AsyncHTTPTransport(
            verify=tls or trusted(), trust_env=False, limits=connections
        )

    async def close(self) -> None:
        await self._transport.aclose()

    async def exchange(self, target: Target, headers: Mapping[str, str], *, largest: int | None = None) -> Answer:
        """Ask, and read the whole answer within the limits."""
        most = self._limits.largest_body if largest is None else largest
        try:
            async with asyncio.timeout(self._limits.total_s):
                addresses = await self._guard.addresses(target)
                async with self._asked(target, addresses, headers) as response:
                    return await _read(target, response, most)
        except TimeoutError:
            raise Unavailable(f"{target.shown} took longer than {self._limits.total_s:g} s") from None
        except httpx2.TimeoutException as error:
            raise Unavailable(f"{target.shown} did not answer in time ({type(error).__name__})") from None
        except httpx2.RemoteProtocolError as error:
            raise Unavailable(f"{target.shown} broke off or does not speak HTTP: {error}") from None
        except httpx2.HTTPError as error:
            raise Unavailable(f"{target.shown} cannot be reached: {error or type(error).__name__}") from None

    @asynccontextmanager
    async def _asked(
        self, target: Target, addresses: list[Address], headers: Mapping[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        response = await self._first_that_answers(target, addresses, headers)
        try:
            yield response
        finally:
            await response.aclose()

    async def _first_that_answers(
        self, target: Target, addresses: list[Address], headers: Mapping[str, str]
    ) -> httpx2.Response:
        *others, last = addresses
        for address in others:
            try:
                return await self._transport.handle_async_request(self._request(target, address, headers))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._transport.handle_async_request(self._request(target, last, headers))

    def _request(self, target: Target, address: Address, headers: Mapping[str, str]) -> httpx2.Request:
        host = f"[{address}]" if address.version == 6 else str(address)
        limits = self._limits
        return httpx2.Request(
            "GET",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={
                "Host": target.authority,
                "User-Agent": self._user_agent,
                "Accept": _ACCEPT,
                "Accept-Encoding": "gzip, deflate",
                "Connection": "close",
                **headers,
            },
            extensions={
                "sni_hostname": target.host,
                "timeout": {
                    "connect": limits.connect_s,
                    "read": limits.read_s,
                    "write": limits.read_s,
                    "pool": limits.connect_s,
                },
            },
        )


async def _read(target: Target, response: httpx2.Response, most: int) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    if response.status_code in _NO_BODY:
        return Answer(response.status_code, headers, b"")
    raw = await _read_raw(target, response, most)
    encoding = headers.get("content-encoding", "")
    try:
        if len(raw) <= _SMALL and not encoding:
            return Answer(response.status_code, headers, raw)
        body = await asyncio.to_thread(decode_body, raw, encoding, most)
    except BadAnswer as error:
        raise BadAnswer(f"{target.shown}: {error.message}") from None
    except TooLarge as error:
        raise TooLarge(f"{target.shown}: {error.message}") from None
    return Answer(response.status_code, headers, body)


async def _read_raw(target: Target, response: httpx2.Response, most: int) -> bytes:
    announced = response.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 19 and int(announced) > most:
        raise TooLarge(f"{target.shown} has {int(announced):,} bytes; at most {most:,} are fetched.")
    pieces, size = [], 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > most:
            raise TooLarge(f"{target.shown} has more than the {most:,} bytes that are fetched.")
        pieces.append(piece)
    return b"".join(pieces)
