"""From a URL to the addresses that may be connected to: http(s) only, plain spellings only, public addresses only.

Other addresses are refused unless their host is allowed by name. An IPv4-mapped address counts as the address that
it maps to; other addresses that carry an address inside (6to4, Teredo, NAT64) are refused.
The address that is checked here is the one that is connected to.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol

import httpx2

from postroom.domain.errors import BadInput
from postroom.web.fetching.interface import ForbiddenAddress, Unavailable, UnknownHost

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4 = tuple(
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_NEVER = tuple(
    [IPv4Network(network) for network in ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")]
    + [IPv6Network(network) for network in ("::/128", "fe80::/10", "ff00::/8", "fd00:ec2::/32")]
)
"""Never web sites, so refused even for hosts allowed by name. Some serve the secrets of cloud machines."""


def read_address(text: str) -> Address:
    """The address as used: for a mapped one, the IPv4 address inside. Raises ValueError, also for zone ids."""
    if "%" in text:
        raise ValueError("an address with a zone")
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


def may_be_allowed(address: Address) -> bool:
    """Whether an address that is not public can be allowed by name at all."""
    return not any(address in network for network in _NEVER if network.version == address.version)


LONGEST_URL = 8_192
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(
    r"(?=.{1,253}\.?$)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.?"
)
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
"""Some resolvers take such a name for an address in an old notation, others for a name."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes."""

    scheme: str
    host: str
    """Lower case, ASCII, without a dot at its end; an IPv6 address without brackets."""
    port: int
    path: str
    """With its query."""
    address: Address | None
    """Where the host is an address itself."""

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """What the `Host` header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def shown(self) -> str:
        """For messages and logs: without the query."""
        return f"{self.origin}{self.path.partition('?')[0]}"[:300]


def read_target(url: str) -> Target:
    if len(url) > LONGEST_URL:
        raise BadInput("url", f"is {len(url):,} characters long; the most is {LONGEST_URL:,}")
    try:
        return _of(httpx2.URL(url))
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise BadInput("url", f"{url[:200]!r} cannot be read: {error}") from None


def redirected(target: Target, location: str) -> Target:
    """Where a redirect leads; BadInput and ForbiddenAddress as for any url."""
    if len(location) > LONGEST_URL:
        raise BadInput("url", f"a redirect of {len(location):,} characters")
    try:
        return _of(httpx2.URL(target.url).join(location))
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise BadInput("url", f"the redirect to {location[:200]!r} cannot be read: {error}") from None


def _of(url: httpx2.URL) -> Target:
    if url.scheme not in _PORTS:
        raise BadInput("url", f"{str(url)[:200]!r} is neither http nor https")
    if url.userinfo:
        raise ForbiddenAddress("A url with a user name or password in it is not fetched: it hides where it leads.")
    host = url.raw_host.decode("ascii").lower()
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65_536:
        raise BadInput("url", f"there is no port {port}")
    address = _address_in(host)
    host = str(address) if address is not None else host.removesuffix(".")
    return Target(url.scheme, host, port, url.raw_path.decode("ascii") or "/", address)


def _address_in(host: str) -> Address | None:
    """The address that the host is; None for a name."""
    try:
        return read_address(host)
    except ValueError:
        pass
    if ":" in host or "%" in host or _NUMERIC_END.fullmatch(host):
        raise ForbiddenAddress(f"{host[:100]!r} is an address in an unusual notation, which is not fetched.")
    if not _NAME.fullmatch(host):
        raise BadInput("url", f"{host[:100]!r} is not the name of a host")
    return None


MOST_ADDRESSES = 4
"""At most this many addresses of a name are tried."""
LOOKUP_S = 5.0
"""A resolver that has not answered by then is broken or far away; it alone could use up the time of a request."""
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class Resolver(Protocol):
    async def lookup(self, host: str, port: int) -> Sequence[str]:
        """All addresses of a name. Raises OSError."""


class SystemResolver:
    async def lookup(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return list(dict.fromkeys(str(where[0]) for *_, where in found))


class AddressGuard:
    """Resolves names and refuses addresses that are not public. `allowed` are hosts, or `host:port`, that may be
    private: a stand-in on this machine, a server of the local network."""

    def __init__(self, resolver: Resolver, allowed: Collection[str] = ()) -> None:
        self._resolver = resolver
        self._allowed = frozenset(name.lower() for name in allowed)

    async def addresses(self, target: Target) -> list[Address]:
        """Raises ForbiddenAddress if any address of the name is not public, even if others are."""
        found = [target.address] if target.address is not None else await self._lookup(target)
        by_name = not self._allowed.isdisjoint((target.host, f"{target.host}:{target.port}"))
        for address in found:
            if not is_public(address) and not (by_name and may_be_allowed(address)):
                raise ForbiddenAddress(_refusal(target, address, by_name=by_name))
        return found[:MOST_ADDRESSES]

    async def _lookup(self, target: Target) -> list[Address]:
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await self._resolver.lookup(target.host, target.port)
            addresses = list(dict.fromkeys(read_address(each) for each in found))
        except ValueError:
            raise ForbiddenAddress(f"{target.host} has an address that belongs to one link only.") from None
        except TimeoutError:
            raise Unavailable(f"{target.host} could not be looked up within {LOOKUP_S:g} s; check the DNS") from None
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                raise UnknownHost(f"No web site has the name {target.host}; check its spelling") from None
            raise Unavailable(f"{target.host} cannot be looked up: {error.strerror}") from error
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{target.host} cannot be looked up: {error}") from error
        if not addresses:
            raise Unavailable(f"{target.host} has no address")
        return addresses


def _refusal(target: Target, address: Address, *, by_name: bool) -> str:
    where = target.host if target.address is not None else f"{target.host} is at {address}, which"
    if by_name:
        return f"{where} is an address that no web site has; it cannot be allowed."
    return f"{where} is not a public address. If it is meant, add {target.host} to web.allow_private_hosts."
