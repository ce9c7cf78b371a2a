"""Which addresses may be talked to: public ones. Everything else is refused unless its host is allowed by name.

Addresses that carry another address inside (IPv4-mapped, 6to4, Teredo, NAT64) are judged by neither half: a mapped one
is the address that it maps to, the others are refused.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

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
"""No web site of anybody: not even a host that is allowed by name may be there. Cloud machines are told their secrets
at some of these."""


def read_address(text: str) -> Address:
    """The address that is meant: a mapped one is the IPv4 address inside. Raises ValueError, also for zone ids."""
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
