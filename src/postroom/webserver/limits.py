"""What one peer can cost the server, and which address a request comes from. Pure; `connection.py` enforces it.

A connection is *known* once a request on it has proved a login or a token; until then it belongs to a stranger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol, TypeVar

Network = IPv4Network | IPv6Network
Header = tuple[bytes, bytes]

_FORWARDED_FOR = b"x-forwarded-for"
_MOST_HOPS = 20


@dataclass(frozen=True)
class ConnectionLimits:
    """Bytes, seconds and numbers. The defaults are what `postroom up` serves with."""

    connections: int = 256
    """All together; strangers get half of them."""
    per_address: int = 32
    """Strangers' connections from one address that is neither loopback nor a trusted proxy."""
    head_bytes: int = 32 * 1024
    headers: int = 100
    url_bytes: int = 8 * 1024
    pipelined: int = 8
    """Requests on one connection that wait for the answers before them."""
    head_s: float = 10.0
    body_s: float = 10.0
    """A body may take this long, and a second more for every `body_rate` bytes received."""
    body_rate: int = 16 * 1024
    idle_s: float = 75.0
    stranger_idle_s: float = 10.0
    request_s: float = 600.0
    stranger_request_s: float = 30.0
    stall_s: float = 30.0
    """How long a peer may leave its answer unread; holds for streams too."""
    linger_s: float = 2.0
    """How long a body may go on after its answer was sent, and a closed connection may take to end."""
    linger_bytes: int = 16 * 1024 * 1024
    trusted_proxies: tuple[Network, ...] = ()
    """Whose `X-Forwarded-For` is believed."""

    @property
    def strangers(self) -> int:
        return max(1, self.connections // 2)

    @property
    def shortest_s(self) -> float:
        times = (self.head_s, self.body_s, self.stranger_idle_s, self.stranger_request_s, self.stall_s, self.linger_s)
        return min(times)

    def trusts(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and any(parsed in network for network in self.trusted_proxies)

    def bounds_address(self, address: str) -> bool:
        """On loopback all share one address, and behind a proxy all share the proxy's."""
        parsed = parse_address(address)
        return parsed is not None and not parsed.is_loopback and not self.trusts(address)


class Peer(Protocol):
    """A connection, as far as choosing one to close needs to know it."""

    @property
    def is_known(self) -> bool: ...

    @property
    def is_idle(self) -> bool:
        """No request of it is being received or answered."""

    @property
    def address_block(self) -> str: ...


P = TypeVar("P", bound=Peer)


def to_close(newcomer: P, others: Sequence[P], limits: ConnectionLimits) -> P | None:
    """Which connection makes room for a new one: the oldest stranger, then the oldest idle one. `others` by age."""
    strangers = [one for one in others if not one.is_known]
    if limits.bounds_address(newcomer.address_block.partition("/")[0]):
        neighbours = [one for one in strangers if one.address_block == newcomer.address_block]
        if len(neighbours) >= limits.per_address:
            return neighbours[0]
    if len(strangers) >= limits.strangers:
        return strangers[0]
    if len(others) < limits.connections:
        return None
    return next(iter(strangers), None) or next((one for one in others if one.is_idle), newcomer)


def client_address(peer: str, headers: Iterable[Header], limits: ConnectionLimits) -> str:
    """Where a request comes from: the peer, or behind trusted proxies the last address that none of them has.

    What stands left of that address in `X-Forwarded-For` was written by a stranger and is not believed.
    """
    if not limits.trusts(peer):
        return peer
    listed = b",".join(value for name, value in headers if name == _FORWARDED_FOR).decode("latin-1")
    address = peer
    for hop in [part.strip() for part in listed.split(",")][: -_MOST_HOPS - 1 : -1]:
        parsed = parse_address(hop)
        if parsed is None:
            return address
        address = str(parsed)
        if not limits.trusts(address):
            return address
    return address


def address_block(address: str) -> str:
    """What one stranger is given at once: an IPv4 address, or an IPv6 network of 64 bits."""
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address) and not parsed.is_loopback:
        return str(IPv6Network((parsed, 64), strict=False))
    return address if parsed is None else str(parsed)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(text.partition("%")[0].removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
