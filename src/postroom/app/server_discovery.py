"""Finds the servers of a mail domain: in the provider's own files, in Thunderbird's directory, and in DNS.

Files are fetched over TLS only, by the fetcher for what the owner asks, so from public addresses and within bounds. A
server counts only if it is reached by TLS and has a public address. DNS alone is not proof of anything: a server
outside of the domain that only DNS names has to be confirmed by a person before it gets a password. Only the domain is
given to others, never the address.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.accounts.account import Provider, find_account
from postroom.domain.errors import BadInput, PostroomError
from postroom.mailboxes.imap import autoconfig
from postroom.mailboxes.imap.autoconfig import BadDnsAnswer, DnsAnswer, MailServers, RecordKind
from postroom.mailboxes.imap.connection import Security, ServerAddress
from postroom.mailboxes.imap.providers import ImapPreset, address_given, parse_submission, preset_at, preset_for
from postroom.settings import WebSettings
from postroom.telemetry import logs
from postroom.web.fetching.fetcher import OwnerRequests, open_owner_requests
from postroom.web.fetching.targets import AddressGuard, Resolver, SystemResolver, read_target

if TYPE_CHECKING:
    from postroom.app.installation import App

log = logs.get(__name__)

_LONGEST_S = 20.0
"""For all questions together: a person waits."""
_DNS_S = 2.0
_DNS_PORT = 53
_RESOLV_CONF = Path("/etc/resolv.conf")
_LARGEST_REPLY = 4_096

NameServer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A file that may describe a domain. `{domain}` stands for it."""

    url: str
    said: str


DIRECTORY = ConfigPlace("https://autoconfig.thunderbird.net/v1.1/{domain}", "in Thunderbird's directory of providers")
PLACES = (
    ConfigPlace("https://autoconfig.{domain}/mail/config-v1.1.xml", "in the settings that autoconfig.{domain} gives"),
    ConfigPlace(
        "https://{domain}/.well-known/autoconfig/mail/config-v1.1.xml", "in the settings that {domain} gives mail apps"
    ),
    DIRECTORY,
)
"""In the order in which they are believed."""


@dataclass(frozen=True, slots=True)
class DiscoveredServers:
    servers: MailServers
    said: str
    """How it was found, as the end of a sentence."""
    is_vouched: bool = True
    """False: only DNS names it, and it is not within the domain."""


class DnsClient:
    """Asks the system's name servers for SRV and MX records."""

    def __init__(self, name_servers: Sequence[NameServer] | None = None) -> None:
        self._given = name_servers

    async def records(self, name: str, kind: RecordKind) -> DnsAnswer:
        """No records where no server gives an answer that can be used."""
        for server in await asyncio.to_thread(self._servers):
            with suppress(OSError, BadDnsAnswer, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_DNS_S):
                    return await self._ask(server, name, kind)
        return DnsAnswer()

    def _servers(self) -> Sequence[NameServer]:
        if self._given is not None:
            return self._given
        try:
            text = _RESOLV_CONF.read_text("utf-8", errors="replace")
        except OSError:
            return ()
        return [(each, _DNS_PORT) for each in autoconfig.read_name_servers(text) if _is_address(each)]

    async def _ask(self, server: NameServer, name: str, kind: RecordKind) -> DnsAnswer:
        query = autoconfig.dns_query(secrets.randbelow(1 << 16), name, kind)
        answer = await self._over_udp(server, query, kind)
        if answer.is_truncated:
            return await self._over_tcp(server, query, kind)
        return answer

    async def _over_udp(self, server: NameServer, query: bytes, kind: RecordKind) -> DnsAnswer:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[DnsAnswer] = loop.create_future()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Listener(query, kind, answered), remote_addr=server)
        try:
            transport.sendto(query)
            return await answered
        finally:
            transport.close()

    async def _over_tcp(self, server: NameServer, query: bytes, kind: RecordKind) -> DnsAnswer:
        reader, writer = await asyncio.open_connection(*server)
        try:
            writer.write(struct.pack(">H", len(query)) + query)
            await writer.drain()
            [length] = struct.unpack(">H", await reader.readexactly(2))
            return autoconfig.read_dns_answer(await reader.readexactly(length), query, kind)
        finally:
            writer.close()


class _Listener(asyncio.DatagramProtocol):
    """Waits for the answer to one query; anything else that arrives is passed over."""

    def __init__(self, query: bytes, kind: RecordKind, answered: asyncio.Future[DnsAnswer]) -> None:
        self._query = query
        self._kind = kind
        self._answered = answered

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._answered.done() or len(data) > _LARGEST_REPLY:
            return
        try:
            self._answered.set_result(autoconfig.read_dns_answer(data, self._query, self._kind))
        except BadDnsAnswer as problem:
            if data[:2] == self._query[:2]:
                log.debug("discovery.dns_refused", problem=str(problem))

    def error_received(self, exc: Exception) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class ServerDiscovery:
    def __init__(
        self,
        settings: WebSettings,
        dns: DnsClient | None = None,
        *,
        places: Sequence[ConfigPlace] = PLACES,
        directory: ConfigPlace = DIRECTORY,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._dns = dns or DnsClient()
        self._places = places
        self._directory = directory
        self._resolver = resolver or SystemResolver()
        self._guard = AddressGuard(self._resolver, settings.private_hosts)
        self._tls = tls

    async def find(self, email: str) -> DiscoveredServers | None:
        """The servers of the address's domain, from the first source that knows them; None where none does."""
        domain = _ascii(email.rpartition("@")[2])
        if domain is None:
            return None
        try:
            async with (
                asyncio.timeout(_LONGEST_S),
                open_owner_requests(self._settings, resolver=self._resolver, tls=self._tls) as requests,
            ):
                return await self._find(requests, email, domain)
        except TimeoutError:
            log.info("discovery.timed_out", domain=domain)
            return None

    async def _find(self, requests: OwnerRequests, email: str, domain: str) -> DiscoveredServers | None:
        """All sources are asked at once; the order in which they are believed is that of the list."""
        asked = [self._configured(requests, place, domain, email) for place in self._places]
        for found in await asyncio.gather(*asked, self._by_services(domain, email)):
            if found is not None and await self._is_public(found.servers):
                return found
        found = await self._by_exchanger(requests, domain, email)
        return found if found is not None and await self._is_public(found.servers) else None

    async def _configured(
        self, requests: OwnerRequests, place: ConfigPlace, domain: str, email: str
    ) -> DiscoveredServers | None:
        try:
            body = await requests.document(place.url.format(domain=domain), largest=autoconfig.LARGEST_CONFIG)
        except PostroomError as error:
            log.debug("discovery.no_file", problem=error.message)
            return None
        servers = autoconfig.read_autoconfig(body, email)
        return None if servers is None else DiscoveredServers(servers, place.said.format(domain=domain))

    async def _by_services(self, domain: str, email: str) -> DiscoveredServers | None:
        names = autoconfig.ASKED_SERVICES
        answers = await asyncio.gather(*(self._dns.records(f"{name}.{domain}", RecordKind.SRV) for name in names))
        servers = autoconfig.servers_of_records(dict(zip(names, answers, strict=True)), email)
        if servers is None:
            return None
        hosts = [servers.address.host, *([] if servers.submission is None else [servers.submission.host])]
        is_vouched = all(autoconfig.is_within(host, domain) for host in hosts)
        return DiscoveredServers(servers, f"in the DNS records of {domain}", is_vouched)

    async def _by_exchanger(self, requests: OwnerRequests, domain: str, email: str) -> DiscoveredServers | None:
        """Mail of a domain is often kept where it is received, by a provider that the directory knows."""
        records = (await self._dns.records(domain, RecordKind.MX)).records
        for above in autoconfig.domains_above(records[0].host) if records else ():
            found = await self._configured(requests, self._directory, above, email)
            if found is not None:
                said = f"{found.said}, because {records[0].host} receives the mail of {domain}"
                return DiscoveredServers(found.servers, said, is_vouched=autoconfig.is_within(above, domain))
        return None

    async def _is_public(self, servers: MailServers) -> bool:
        """Those for reading and for sending: both get the password."""
        reading, sending = servers.address, servers.submission
        places = [(reading.host, reading.port), *([] if sending is None else [(sending.host, sending.port)])]
        try:
            for host, port in places:
                await self._guard.addresses(read_target(f"https://{host}:{port}/"))
        except PostroomError as error:
            log.info("discovery.not_used", problem=error.message)
            return False
        return True


def _ascii(domain: str) -> str | None:
    try:
        name = domain.lower().rstrip(".").encode("idna").decode("ascii")
    except UnicodeError:
        return None
    return name if autoconfig.is_host_name(name) else None


class UnconfirmedServer(BadInput):
    """Found by DNS alone, outside of the domain."""

    def __init__(self, found: DiscoveredServers, email: str) -> None:
        host, domain = found.servers.address.host, email.rpartition("@")[2]
        super().__init__(
            "host",
            f"{host} was found {found.said}, but it is not part of {domain}, and DNS can be forged; if your provider "
            f"names it too, give {host} as the host",
        )
        self.servers = found.servers


@dataclass(frozen=True, slots=True)
class WantedServer:
    """What a person said about the server; the rest is found."""

    host: str | None = None
    port: int | None = None
    security: Security | None = None
    preset: ImapPreset | None = None


async def find_servers(app: App, email: str, wanted: WantedServer) -> tuple[MailServers, str]:
    """The servers that were given, those of a known account or a well-known provider, else those that the domain names;
    and how they were found, which is empty for what needed no search. Raises BadInput where nothing was found."""
    preset = wanted.preset or preset_for(email)
    if wanted.host is None and wanted.preset is None and (known := await _known(app, email)) is not None:
        return known, ""
    given = address_given(preset, wanted.host, wanted.port, wanted.security)
    if given is not None:
        sending = None if preset is None or preset.address.host != given.host else preset.submission
        return MailServers(given, email, sending), ""
    found = await app.discovery.find(email)
    if found is None:
        domain = email.rpartition("@")[2]
        raise BadInput(
            "host", f"is needed: neither {domain} nor a directory names its server; often it is imap.{domain}"
        )
    if not found.is_vouched:
        raise UnconfirmedServer(found, email)
    return found.servers, found.said


async def _known(app: App, email: str) -> MailServers | None:
    """Of an account whose login is renewed."""
    account = await app.database.read(lambda tx: find_account(tx, email))
    if account is None or account.provider is not Provider.IMAP:
        return None
    address, login = ServerAddress.parse(account.api_base), app.grants.imap.find(email)
    if login is None:
        preset = preset_at(address.host)
        return MailServers(address, email, None if preset is None else preset.submission)
    return MailServers(address, login.user, parse_submission(login.submission))
