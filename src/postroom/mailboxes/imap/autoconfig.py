"""What a mail domain says about its servers: Thunderbird's configuration files, and SRV and MX records (RFC 6186).

Pure: bytes in, servers out. The answers come from strangers, so sizes are bounded, XML with a document type is refused,
and a server that would be spoken to in plain text, or that is no plain host name, does not count.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from xml.parsers import expat

from postroom.domain.errors import BadInput
from postroom.mailboxes.imap.connection import Security, ServerAddress, server_address
from postroom.mailboxes.imap.providers import SubmissionServer, submission_server

LARGEST_CONFIG = 256 * 1024
_MOST_ELEMENTS = 5_000
_DEEPEST = 20
_LONGEST_TEXT = 1_000
_HOST = re.compile(r"(?=.{4,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class MailServers:
    """Where a mailbox is read and, if it is known, where its mail is sent from."""

    address: ServerAddress
    user: str
    """The name to log in with."""
    submission: SubmissionServer | None = None


def is_host_name(text: str) -> bool:
    """A full host name, in lower case: neither an address nor a name of the local network."""
    return _HOST.fullmatch(text) is not None


def is_within(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


@dataclass(slots=True)
class _Server:
    """One `incomingServer` or `outgoingServer`; the first of its values count."""

    element: str
    kind: str
    values: dict[str, str] = field(default_factory=dict)


class _ConfigReader:
    """Collects the servers of a `clientConfig`. Raises ValueError for what none has."""

    def __init__(self) -> None:
        self.servers: list[_Server] = []
        self._path: list[str] = []
        self._text: list[str] = []
        self._elements = 0

    def read(self, data: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._take
        try:
            parser.Parse(data, True)
        except (expat.ExpatError, LookupError) as error:
            raise ValueError(f"not XML: {error}") from None

    def _refuse(self, *_: object) -> None:
        raise ValueError("a document type, which no configuration has")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _MOST_ELEMENTS or len(self._path) >= _DEEPEST:
            raise ValueError("more elements than a configuration has")
        if not self._path and name != "clientConfig":
            raise ValueError("another kind of document")
        self._path.append(name)
        self._text.clear()
        if len(self._path) == 3 and name in ("incomingServer", "outgoingServer"):
            self.servers.append(_Server(name, attributes.get("type", "").lower()))

    def _end(self, name: str) -> None:
        if len(self._path) == 4 and self.servers and self._path[2] == self.servers[-1].element:
            self.servers[-1].values.setdefault(name, "".join(self._text).strip())
        self._path.pop()
        self._text.clear()

    def _take(self, text: str) -> None:
        if sum(map(len, self._text)) + len(text) <= _LONGEST_TEXT:
            self._text.append(text)


def read_autoconfig(data: bytes, email: str) -> MailServers | None:
    """The first IMAP server of a `config-v1.1.xml` that is reached by TLS, and the first such server for sending; None
    where there is none, or where it is no such file."""
    if len(data) > LARGEST_CONFIG:
        return None
    reader = _ConfigReader()
    try:
        reader.read(data)
    except ValueError:
        return None
    incoming = next(_usable(reader.servers, "incomingServer", "imap", email), None)
    if incoming is None:
        return None
    address, user = incoming
    outgoing = next(_usable(reader.servers, "outgoingServer", "smtp", email), None)
    return MailServers(address, user or email, None if outgoing is None else _as_submission(outgoing[0]))


_SOCKETS = {"SSL": Security.TLS, "STARTTLS": Security.STARTTLS}


def _usable(servers: list[_Server], element: str, kind: str, email: str) -> Iterator[tuple[ServerAddress, str]]:
    for server in servers:
        security = _SOCKETS.get(server.values.get("socketType", "").upper())
        if server.element != element or server.kind != kind or security is None:
            continue
        address = _address(_filled(server.values.get("hostname", ""), email), server.values.get("port", ""), security)
        if address is not None:
            yield address, _user(server.values.get("username", ""), email)


def _address(host: str, port: str, security: Security) -> ServerAddress | None:
    host = host.lower().rstrip(".")
    if not is_host_name(host) or not re.fullmatch(r"[0-9]{1,5}", port):
        return None
    try:
        return server_address(host, int(port), security)
    except BadInput:
        return None


def _as_submission(address: ServerAddress) -> SubmissionServer:
    return submission_server(address.host, address.port, address.security)


def _filled(text: str, email: str) -> str:
    name, _, domain = email.rpartition("@")
    given = {"%EMAILADDRESS%": email, "%EMAILLOCALPART%": name, "%EMAILDOMAIN%": domain}
    return re.sub("|".join(given), lambda match: given[match[0]], text)


def _user(text: str, email: str) -> str:
    """Empty where the file wants something that is not known, such as %REALNAME%."""
    filled = _filled(text, email)
    return filled if filled.isprintable() and len(filled) <= 320 and "%" not in filled else ""


# Records of the domain name system (RFC 1035), as far as they name servers.

LARGEST_ANSWER = 65_535
_MOST_RECORDS = 50
_INTERNET = 1
_CNAME = 5
_TRUNCATED = 0x0200
_RECURSION_WANTED = 0x0100
_IS_ANSWER = 0x8000
_NO_SUCH_NAME = 3


class RecordKind(IntEnum):
    MX = 15
    SRV = 33


class BadDnsAnswer(ValueError):
    """Not the answer to this question, or no answer at all."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host that a record names. `port` is 0 for MX."""

    priority: int
    weight: int
    port: int
    host: str


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    records: tuple[HostRecord, ...] = ()
    """The best first."""
    is_truncated: bool = False
    """It has to be asked again over TCP."""


def dns_query(number: int, name: str, kind: RecordKind) -> bytes:
    """Raises ValueError for what is no name."""
    labels = name.encode("ascii").split(b".")
    if len(name) > 253 or not all(0 < len(label) < 64 for label in labels):
        raise ValueError(f"{name[:100]!r} is no name of a domain")
    asked = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">6H", number, _RECURSION_WANTED, 1, 0, 0, 0) + asked + struct.pack(">2H", kind, _INTERNET)


def read_dns_answer(data: bytes, query: bytes, kind: RecordKind) -> DnsAnswer:
    """Raises BadDnsAnswer for anything but an answer to this very query. A name that does not exist has no records."""
    if len(data) < len(query) or len(data) > LARGEST_ANSWER or data[:2] != query[:2]:
        raise BadDnsAnswer("not an answer to this question")
    flags, questions, answers = struct.unpack(">3H", data[2:8])
    if not flags & _IS_ANSWER or questions != 1 or data[12 : len(query)].lower() != query[12:].lower():
        raise BadDnsAnswer("not an answer to this question")
    if flags & _TRUNCATED:
        return DnsAnswer(is_truncated=True)
    if flags & 0x0F:
        if flags & 0x0F == _NO_SUCH_NAME:
            return DnsAnswer()
        raise BadDnsAnswer(f"the name server failed with code {flags & 0x0F}")
    try:
        found = list(_records(data, len(query), min(answers, _MOST_RECORDS), kind))
    except (struct.error, IndexError):
        raise BadDnsAnswer("it is cut off") from None
    return DnsAnswer(tuple(sorted(found, key=lambda each: (each.priority, -each.weight, each.host))))


def _records(data: bytes, at: int, number: int, kind: RecordKind) -> Iterator[HostRecord]:
    wanted = _name(data, 12)[0]
    for _ in range(number):
        owner, at = _name(data, at)
        found, internet, _, length = struct.unpack_from(">HHIH", data, at)
        at += 10
        if at + length > len(data):
            raise BadDnsAnswer("it is cut off")
        if internet == _INTERNET and owner == wanted:
            if found == _CNAME:
                wanted = _name(data, at)[0]
            elif found == kind and (record := _record(data, at, kind)) is not None:
                yield record
        at += length


def _record(data: bytes, at: int, kind: RecordKind) -> HostRecord | None:
    if kind is RecordKind.SRV:
        priority, weight, port = struct.unpack_from(">3H", data, at)
        host = _name(data, at + 6)[0]
    else:
        [priority] = struct.unpack_from(">H", data, at)
        weight, port, host = 0, 0, _name(data, at + 2)[0]
    usable = is_host_name(host) and (port > 0 or kind is RecordKind.MX)
    return HostRecord(priority, weight, port, host) if usable else None  # a lone dot: the service is not offered


def _name(data: bytes, at: int) -> tuple[str, int]:
    """The name here in lower case, and where it ends. A pointer has to lead back, so that reading ends."""
    labels: list[bytes] = []
    end, least = 0, at
    while (length := data[at]) != 0:
        if length >= 0xC0:
            end = end or at + 2
            at = ((length & 0x3F) << 8) | data[at + 1]
            if at >= least:
                raise BadDnsAnswer("a name that points forward")
            least = at
            continue
        if length > 63 or sum(map(len, labels)) + length > 255:
            raise BadDnsAnswer("a name that is too long")
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    return b".".join(labels).decode("ascii", "replace").lower(), end or at + 1


def read_name_servers(text: str) -> tuple[str, ...]:
    """The addresses that a resolv.conf names, as many as resolvers ask."""
    lines = (line.split() for line in text.splitlines())
    return tuple(parts[1] for parts in lines if len(parts) >= 2 and parts[0] == "nameserver")[:3]


SERVICES = (("_imaps._tcp", Security.TLS), ("_imap._tcp", Security.STARTTLS))
_SENDING = (("_submissions._tcp", Security.TLS), ("_submission._tcp", Security.STARTTLS))
ASKED_SERVICES = tuple(name for name, _ in (*SERVICES, *_SENDING))


def servers_of_records(answers: dict[str, DnsAnswer], email: str) -> MailServers | None:
    """From the SRV records of `ASKED_SERVICES`. `_imap` means STARTTLS: plain text is never meant."""
    address = _best(answers, SERVICES)
    if address is None:
        return None
    sending = _best(answers, _SENDING)
    return MailServers(address, email, None if sending is None else _as_submission(sending))


def _best(answers: dict[str, DnsAnswer], services: tuple[tuple[str, Security], ...]) -> ServerAddress | None:
    for name, security in services:
        if records := answers.get(name, DnsAnswer()).records:
            return ServerAddress(records[0].host, records[0].port, security)
    return None


def domains_above(host: str) -> tuple[str, ...]:
    """The domains that a mail exchanger may belong to, the longest first: at most two, none of a single label."""
    labels = host.split(".")
    return tuple(".".join(labels[start:]) for start in range(1, len(labels) - 1))[:2]
