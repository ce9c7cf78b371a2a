"""A mail domain on this machine: its name server, over UDP and TCP, and a web server with a certificate of its own."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom.mailboxes.imap.autoconfig import RecordKind
from tests.support.dovecot import free_port
from tests.support.web_servers import page


def labels_of(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def srv(host: str, port: int, priority: int = 0, weight: int = 0) -> bytes:
    return struct.pack(">3H", priority, weight, port) + labels_of(host)


def mx(host: str, priority: int = 10) -> bytes:
    return struct.pack(">H", priority) + labels_of(host)


def dns_reply(query: bytes, kind: RecordKind, records: Sequence[bytes], flags: int = 0x8180) -> bytes:
    """An answer to the query, whose records refer to its name."""
    head = query[:2] + struct.pack(">5H", flags, 1, len(records), 0, 0) + query[12:]
    return head + b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, len(record)) + record for record in records)


@dataclass
class DnsZone:
    """Records by name; `truncates` makes it answer in full over TCP only."""

    records: Mapping[tuple[str, RecordKind], Sequence[bytes]]
    truncates: bool = False
    lies: Sequence[bytes] = ()
    """Sent before every answer, as someone else on the way could."""
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def answer(self, query: bytes, *, over_tcp: bool) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, kind = ".".join(labels), RecordKind(struct.unpack_from(">H", query, at + 1)[0])
        self.asked.append(name)
        found = self.records.get((name, kind))
        if found is None:
            return dns_reply(query, kind, [], 0x8183)
        if self.truncates and not over_tcp:
            return dns_reply(query, kind, [], 0x8380)
        return dns_reply(query, kind, found)


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, zone: DnsZone) -> None:
        self._zone = zone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        for lie in self._zone.lies:
            self._transport.sendto(lie, addr)
        self._transport.sendto(self._zone.answer(data, over_tcp=False), addr)


@asynccontextmanager
async def name_server(zone: DnsZone) -> AsyncIterator[DnsZone]:
    zone.port = free_port()
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        [length] = struct.unpack(">H", await reader.readexactly(2))
        answer = zone.answer(await reader.readexactly(length), over_tcp=True)
        writer.write(struct.pack(">H", len(answer)) + answer)
        await writer.drain()
        writer.close()

    transport, _ = await loop.create_datagram_endpoint(lambda: _Udp(zone), local_addr=("127.0.0.1", zone.port))
    try:
        async with await asyncio.start_server(serve, "127.0.0.1", zone.port):
            yield zone
    finally:
        transport.close()


def certificate_for(folder: Path, *names: str) -> tuple[Path, ssl.SSLContext]:
    """A file with key and certificate for these names, and a context that trusts it and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / f"{names[0]}.pem"
    public = certificate.public_bytes(serialization.Encoding.PEM)
    file.write_bytes(secret + public)
    return file, ssl.create_default_context(cadata=public.decode())


@dataclass
class TlsSite:
    """Bodies by host and path; anything else does not exist."""

    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0


@asynccontextmanager
async def tls_site(certificate: Path, site: TlsSite) -> AsyncIterator[TlsSite]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        [host] = [line[6:].partition(":")[0] for line in head.split("\r\n") if line.startswith("Host: ")]
        site.asked.append(f"{host}{path}")
        body = site.pages.get(f"{host}{path}")
        writer.write(page(b"", "404 Not Found") if body is None else page(body, content_type="text/xml"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        site.port = server.sockets[0].getsockname()[1]
        yield site


def config_file(host: str, port: int = 993, socket: str = "SSL", user: str = "%EMAILADDRESS%", smtp: str = "") -> bytes:
    """A `config-v1.1.xml` with POP first, as many have it."""
    sending = (
        f"<outgoingServer type='smtp'><hostname>{smtp}</hostname><port>587</port><socketType>STARTTLS</socketType>"
        "</outgoingServer>"
    )
    return (
        "<?xml version='1.0'?><clientConfig version='1.1'><emailProvider id='x'><domain>x.example</domain>"
        "<incomingServer type='pop3'><hostname>pop.x.example</hostname><port>995</port><socketType>SSL</socketType>"
        "</incomingServer>"
        f"<incomingServer type='imap'><hostname>{host}</hostname><port>{port}</port><socketType>{socket}</socketType>"
        f"<username>{user}</username></incomingServer>{sending if smtp else ''}</emailProvider></clientConfig>"
    ).encode()
