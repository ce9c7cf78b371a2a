"""The servers of a mail domain are found on a name server and web server of this machine, and only trusted as far as
they should be."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.app.server_discovery import PLACES, ConfigPlace, DnsClient, ServerDiscovery
from postroom.mailboxes.imap.autoconfig import RecordKind, dns_query
from postroom.settings import WebSettings
from tests.support.dovecot import free_port
from tests.support.mail_domains import (
    DnsZone,
    TlsSite,
    certificate_for,
    config_file,
    dns_reply,
    mx,
    name_server,
    srv,
    tls_site,
)
from tests.support.web_fetching import NameServer

EMAIL = "ann@x.example"
SRV, MX = RecordKind.SRV, RecordKind.MX
HOSTS = ("autoconfig.x.example", "x.example", "autoconfig.thunderbird.net", "localhost")
PUBLIC = "192.0.9.1"
"""A public address that is never connected to."""


@contextlib.asynccontextmanager
async def domain(folder: Path, site: TlsSite, zone: DnsZone) -> AsyncIterator[ServerDiscovery]:
    """x.example, whose web servers are on this machine and whose mail servers have public addresses."""
    certificate, trust = certificate_for(folder, *HOSTS)
    async with tls_site(certificate, site), name_server(zone):
        names: dict[str, list[list[str]]] = {host: [["127.0.0.1"]] for host in HOSTS}
        names |= {
            f"{each}.example": [[PUBLIC]] for each in ("imap.x", "smtp.x", "imap.big", "auto.x", "known.x", "directory")
        }
        names["inside.x.example"] = [["10.0.0.7"]]
        places = [ConfigPlace(_at(each.url, site.port), each.said) for each in PLACES]
        yield ServerDiscovery(
            WebSettings(allow_private_hosts=",".join(HOSTS)),
            DnsClient([("127.0.0.1", free_port()), ("127.0.0.1", zone.port)]),
            places=places,
            directory=places[-1],
            resolver=NameServer(names),  # type: ignore[arg-type]
            tls=trust,
        )


def _at(url: str, port: int) -> str:
    host, _, path = url.removeprefix("https://").partition("/")
    return f"https://{host}:{port}/{path}"


AUTOCONFIG = "autoconfig.x.example/mail/config-v1.1.xml"
WELL_KNOWN = "x.example/.well-known/autoconfig/mail/config-v1.1.xml"
DIRECTORY_PAGE = "autoconfig.thunderbird.net/v1.1/"


@pytest.mark.req("IM-1")
async def test_the_providers_own_file_is_believed_first_then_the_directory_then_dns(tmp_path: Path) -> None:
    site = TlsSite(
        {
            AUTOCONFIG: config_file("auto.x.example", smtp="smtp.x.example"),
            WELL_KNOWN: config_file("known.x.example"),
            f"{DIRECTORY_PAGE}x.example": config_file("directory.example"),
        }
    )
    zone = DnsZone({("_imaps._tcp.x.example", SRV): [srv("imap.x.example", 993)]})
    async with domain(tmp_path, site, zone) as discovery:
        for expected, said in (
            ("auto.x.example", "autoconfig.x.example gives"),
            ("known.x.example", "x.example gives mail apps"),
            ("directory.example", "Thunderbird's directory"),
            ("imap.x.example", "the DNS records of x.example"),
        ):
            found = await discovery.find(EMAIL)
            assert found is not None
            assert (found.servers.address.host, found.is_vouched) == (expected, True)
            assert said in found.said
            gone = next((page for page in site.pages if expected.encode() in site.pages[page]), None)
            site.pages.pop(gone or "", None)
    assert not any("ann" in path for path in site.asked), "the address stays here"


@pytest.mark.req("IM-1")
async def test_dns_alone_does_not_vouch_for_a_server_of_another_domain(tmp_path: Path) -> None:
    zone = DnsZone({("_imap._tcp.x.example", SRV): [srv("imap.big.example", 143)]}, truncates=True)
    async with domain(tmp_path, TlsSite(), zone) as discovery:
        found = await discovery.find(EMAIL)
        assert found is not None
        assert str(found.servers.address) == "imap+starttls://imap.big.example:143"
        assert not found.is_vouched
    site = TlsSite({f"{DIRECTORY_PAGE}big.example": config_file("imap.big.example")})
    async with domain(tmp_path, site, DnsZone({("x.example", MX): [mx("mx1.big.example")]})) as discovery:
        found = await discovery.find(EMAIL)
        assert found is not None
        assert (found.servers.address.host, found.is_vouched) == ("imap.big.example", False)
        assert "mx1.big.example receives the mail of x.example" in found.said


@pytest.mark.req("IM-1")
async def test_forged_answers_and_private_servers_are_passed_over(tmp_path: Path) -> None:
    query = dns_query(1, "_imaps._tcp.x.example", SRV)
    lies = [b"", b"\0" * 3_000, dns_reply(query, SRV, [srv("evil.example", 993)])]
    zone = DnsZone({("_imaps._tcp.x.example", SRV): [srv("imap.x.example", 993)]}, lies=lies)
    for inside in (config_file("inside.x.example"), config_file("auto.x.example", smtp="inside.x.example")):
        async with domain(tmp_path, TlsSite({AUTOCONFIG: inside}), zone) as discovery:
            found = await discovery.find(EMAIL)
            assert found is not None
            assert found.servers.address.host == "imap.x.example", "10.0.0.7 is not where a provider is"
    async with domain(tmp_path, TlsSite(), DnsZone({})) as discovery:
        assert await discovery.find(EMAIL) is None
        assert await discovery.find("ann@localhost") is None


@pytest.mark.req("IM-1")
async def test_a_file_is_not_fetched_from_where_it_must_not_be(tmp_path: Path) -> None:
    """A domain whose web server is on the local network is not asked, unless its owner allowed it by name."""
    site = TlsSite({AUTOCONFIG: config_file("auto.x.example")})
    async with domain(tmp_path, site, DnsZone({})) as discovery:
        discovery._settings = WebSettings()
        assert await discovery.find(EMAIL) is None
    assert site.asked == []
