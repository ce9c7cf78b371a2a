"""Which addresses may be talked to, and which spellings of them are read at all."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput, PostroomError
from postroom.web.fetching.interface import ForbiddenAddress
from postroom.web.fetching.targets import is_public, may_be_allowed, read_address, read_target, redirected

NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "0.0.0.0"),  # noqa: S104
    *("0.1.2.3", "169.254.169.254", "169.254.0.1", "224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1"),
    *("192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "192.88.99.1"),
    *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "3fff::1", "100::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "::127.0.0.1", "fec0::1"),
]


@pytest.mark.req("WB-13")
@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(text: str) -> None:
    assert not is_public(read_address(text))


@pytest.mark.req("WB-13")
@pytest.mark.parametrize("text", ["8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_a_public_address_passes(text: str) -> None:
    assert is_public(read_address(text))


@given(st.ip_addresses())
def test_nothing_passes_that_the_standard_library_calls_private(address: IPv4Address | IPv6Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not any((address.is_multicast, address.is_loopback, address.is_link_local, address.is_reserved))


@pytest.mark.req("WB-13")
@pytest.mark.parametrize("text", ["169.254.169.254", "fd00:ec2::254", "0.0.0.0", "::", "224.0.0.1", "fe80::1"])  # noqa: S104
def test_some_addresses_cannot_even_be_allowed_by_name(text: str) -> None:
    assert not may_be_allowed(ip_address(text))


@pytest.mark.req("WB-13")
@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "http://127.1/",
        "http://127.0.1/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0X7F.1/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://127.0.0.1.",
        "http://127.0.0.1./",
        "http://127.0.0.256/",
        "http://1.2.3.4.5/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[::1%250]/",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://example.com@127.0.0.1/",
        "http://127.0.0.1:80@example.com/",
        "http://%31%32%37.0.0.1/",
        "http://１２７.0.0.1/",  # noqa: RUF001
        "http://ⓛocalhost/",
        "http://exa mple.com/",
        "http://exam_ple..com/",
        "http:///path",
        "http://[::1",
        "http://x:99999/",
        "http://x:0/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "//example.com/",
        "/path",
        "",
    ],
)
def test_what_hides_its_host_is_not_read(url: str) -> None:
    with pytest.raises((ForbiddenAddress, BadInput)):
        read_target(url)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"http://{text}/"):
        try:
            target = read_target(url)
        except PostroomError:
            continue
        assert read_target(target.url) == target


def test_a_target_says_what_to_ask_of_whom() -> None:
    target = read_target("HTTPS://Bücher.Example.:8443/ä b?q=ž#part")
    assert (target.scheme, target.host, target.port) == ("https", "xn--bcher-kva.example", 8443)
    assert target.path == "/%C3%A4%20b?q=%C5%BE"
    assert target.authority == "xn--bcher-kva.example:8443"
    assert read_target("http://[2606:4700::1111]/").authority == "[2606:4700::1111]"


@pytest.mark.req("WB-13")
@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "http://u:p@x/", "http://2130706433/", "ftp://x/", "http://" + "a" * 9_000]
)
def test_a_redirect_is_read_as_strictly_as_any_url(location: str) -> None:
    with pytest.raises((ForbiddenAddress, BadInput)):
        redirected(read_target("http://example.com/"), location)


@pytest.mark.req("WB-13")
@pytest.mark.parametrize("url", ["http://127。0。0。1/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/"])
def test_an_address_in_disguise_is_the_address_that_it_is(url: str) -> None:
    assert str(read_target(url).address) == "127.0.0.1"


def test_a_message_shows_no_query() -> None:
    assert "secret" not in read_target("http://example.com/a?token=secret").shown
