"""From a url to what is asked of whom. Only http and https, only plain spellings: what hides its host is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx2

from postroom.domain.errors import BadInput
from postroom.websources.fetching.addresses import Address, read_address
from postroom.websources.fetching.errors import ForbiddenAddress

LONGEST_URL = 8_192
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(
    r"(?=.{1,253}\.?$)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.?"
)
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
"""A name that ends so is an address in some old notation to one resolver, and a name to another."""


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
    port = url.port or _PORTS[url.scheme]
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
