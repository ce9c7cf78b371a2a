"""From a host to the addresses that may be connected to. What is checked here is what is connected to, nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from typing import Protocol

from postroom.websources.fetching.addresses import Address, is_public, may_be_allowed, read_address
from postroom.websources.fetching.errors import ForbiddenAddress, Unavailable
from postroom.websources.fetching.targets import Target

MOST_ADDRESSES = 4
"""More are not tried."""


class Resolver(Protocol):
    async def lookup(self, host: str, port: int) -> Sequence[str]:
        """All addresses of a name. Raises OSError."""


class SystemResolver:
    async def lookup(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return list(dict.fromkeys(str(where[0]) for *_, where in found))


class AddressGuard:
    """Looks names up, and lets only public addresses through. `allowed` are hosts, or `host:port`, that may be
    private: a stand-in on this machine, a server of the own network."""

    def __init__(self, resolver: Resolver, allowed: Collection[str] = ()) -> None:
        self._resolver = resolver
        self._allowed = frozenset(name.lower() for name in allowed)

    async def addresses(self, target: Target) -> list[Address]:
        """One bad address among good ones condemns them all: it is there for a reason."""
        found = [target.address] if target.address is not None else await self._lookup(target)
        by_name = not self._allowed.isdisjoint((target.host, f"{target.host}:{target.port}"))
        for address in found:
            if not is_public(address) and not (by_name and may_be_allowed(address)):
                raise ForbiddenAddress(_refusal(target, address, by_name=by_name))
        return found[:MOST_ADDRESSES]

    async def _lookup(self, target: Target) -> list[Address]:
        try:
            found = await self._resolver.lookup(target.host, target.port)
            addresses = list(dict.fromkeys(read_address(each) for each in found))
        except ValueError:
            raise ForbiddenAddress(f"{target.host} has an address that belongs to one link only.") from None
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{target.host} cannot be looked up: {error}") from error
        if not addresses:
            raise Unavailable(f"{target.host} has no address")
        return addresses


def _refusal(target: Target, address: Address, *, by_name: bool) -> str:
    where = target.host if target.address is not None else f"{target.host} is at {address}, which"
    if by_name:
        return f"{where} is an address that no web site has; it cannot be allowed."
    return f"{where} is not a public address. If it is meant, allow {target.host} by name."
