"""Which connection makes room for another, and where a request comes from."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network

import pytest

from postroom.webserver.limits import ConnectionLimits, address_block, client_address, to_close

pytestmark = pytest.mark.req("HW-3")

PROXIED = ConnectionLimits(trusted_proxies=(ip_network("10.0.0.0/8"), ip_network("127.0.0.1")))


@dataclass(frozen=True)
class Peer:
    name: str
    is_known: bool = False
    is_idle: bool = True
    address_block: str = "127.0.0.1"


def strangers(count: int, **more: object) -> list[Peer]:
    return [Peer(f"stranger {n}", **more) for n in range(count)]  # type: ignore[arg-type]


def known(count: int, **more: object) -> list[Peer]:
    return [Peer(f"known {n}", is_known=True, **more) for n in range(count)]  # type: ignore[arg-type]


NEW = Peer("new")
LIMITS = ConnectionLimits(connections=8, per_address=2)


def test_nothing_is_closed_while_there_is_room() -> None:
    assert to_close(NEW, [*strangers(3), *known(2)], LIMITS) is None


def test_half_of_the_places_stays_free_of_strangers() -> None:
    victim = to_close(NEW, strangers(4), LIMITS)
    assert victim is not None
    assert victim.name == "stranger 0"


def test_the_oldest_stranger_makes_room_and_never_one_who_is_known() -> None:
    victim = to_close(NEW, [*known(6), *strangers(2)], LIMITS)
    assert victim is not None
    assert victim.name == "stranger 0"


def test_among_the_known_an_idle_one_makes_room_and_else_the_newcomer_leaves() -> None:
    busy = known(7, is_idle=False)
    assert to_close(NEW, [*busy, Peer("idle", is_known=True)], LIMITS) == Peer("idle", is_known=True)
    assert to_close(NEW, known(8, is_idle=False), LIMITS) == NEW


def test_one_address_has_a_few_connections_unless_all_share_it() -> None:
    far = Peer("new", address_block="203.0.113.5")
    neighbours = strangers(2, address_block="203.0.113.5")
    assert to_close(far, neighbours, LIMITS) == neighbours[0]
    assert to_close(NEW, strangers(2), LIMITS) is None  # loopback
    behind_proxy = Peer("new", address_block="10.1.1.1")
    limits = ConnectionLimits(connections=8, per_address=2, trusted_proxies=PROXIED.trusted_proxies)
    assert to_close(behind_proxy, strangers(2, address_block="10.1.1.1"), limits) is None


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("::1", "::1"),
        ("?", "?"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, block: str) -> None:
    assert address_block(address) == block


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", ["203.0.113.5"], "203.0.113.5"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.5"], "203.0.113.5"),
        ("10.0.0.1", ["6.6.6.6", "203.0.113.5"], "203.0.113.5"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.5, 10.2.2.2"], "203.0.113.5"),
        ("10.0.0.1", ["not an address"], "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6, x, 10.2.2.2"], "10.2.2.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("203.0.113.9", ["6.6.6.6"], "203.0.113.9"),
    ],
)
def test_only_what_a_trusted_proxy_wrote_is_believed(peer: str, forwarded: list[str], client: str) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    assert client_address(peer, headers, PROXIED) == client
    assert client_address(peer, headers, ConnectionLimits()) == peer
