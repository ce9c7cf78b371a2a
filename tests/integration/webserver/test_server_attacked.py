"""What a peer can do to a server of ours: every attack on real sockets, with small limits so that it is quick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import pytest

from postroom.webserver import ConnectionLimits, listening, mark_known, mark_stream, serving

pytestmark = pytest.mark.req("HW-3")

QUICK = ConnectionLimits(
    connections=8,
    head_bytes=4_096,
    url_bytes=1_024,
    headers=20,
    head_s=0.2,
    body_s=0.2,
    idle_s=5.0,
    stranger_idle_s=0.2,
    request_s=0.6,
    stranger_request_s=0.4,
    stall_s=0.3,
    linger_s=0.2,
    linger_bytes=200_000,
)
PATIENT = ConnectionLimits(
    connections=8,
    head_bytes=4_096,
    url_bytes=1_024,
    headers=20,
    head_s=600.0,
    body_s=600.0,
    idle_s=600.0,
    stranger_idle_s=600.0,
    stranger_request_s=600.0,
    stall_s=600.0,
)
ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
KNOWN = b"GET /known HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass
class App:
    """`/known...` has a login, `/...stream` never ends, `/...large` fits no buffer, `/...wait` is slow."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[str] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path.startswith("/known"):
            mark_known(scope)
        if path.endswith("refuse"):
            await _say(send, b"refused", 401)
            return
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.ended.append(path)
                return
            size += len(event["body"])
            if not event["more_body"]:
                break
        await self._answer(scope, path, send, size)

    async def _answer(self, scope: Any, path: str, send: Any, size: int) -> None:
        if path.endswith("stream"):
            mark_stream(scope)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not self.over.is_set():
                await send({"type": "http.response.body", "body": b"tick", "more_body": True})
                await asyncio.sleep(0.05)
        elif path.endswith("large"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(400):
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            self.ended.append(path)
        elif path.endswith("wait"):
            await self.over.wait()
        await _say(send, f"{size} {scope['client'][0]}".encode())


async def _say(send: Any, body: bytes, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Peer:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def asks(self, request: bytes = ASK) -> str:
        """The answer's body."""
        await self.send(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return (await self.reader.readexactly(size)).decode()

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def status(self) -> int | None:
        """Of the last answer before the server closed; None if it closed without a word."""
        said = await self.rest()
        return int(said.split(b" ", 2)[1]) if said else None


class Server:
    def __init__(self, app: App, port: int, stack: AsyncExitStack) -> None:
        self.app = app
        self._port = port
        self._stack = stack
        self.closed: dict[str, int] = {}

    async def peer(self, data: bytes = b"") -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._stack.callback(writer.close)
        writer.write(data)
        return Peer(reader, writer)


@asynccontextmanager
async def server(limits: ConnectionLimits = QUICK, patience_s: float = 0.2) -> AsyncIterator[Server]:
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        app, listener = App(), listening("127.0.0.1", 0)
        made = Server(app, listener.getsockname()[1], stack)
        async with serving(app, listener, patience_s=patience_s, limits=limits, report=made.closed.update):
            yield made
            app.over.set()


async def pour(peer: Peer, piece: bytes, most: int) -> int:
    """Send until the server has had enough; how much it let through."""
    sent = 0
    try:
        while sent < most and not peer.reader.at_eof():
            await peer.send(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


MANY = b"".join(b"h%03d: v\r\n" % n for n in range(1_000))


@pytest.mark.parametrize(
    ("begin", "piece", "status"),
    [
        (b"GET / HTTP/1.1\r\n", MANY, 431),
        (b"GET / HTTP/1.1\r\na: ", b"a" * 65_536, 431),
        (b"GET / HTTP/1.1\r\n", b"a" * 65_536, 431),
        (b"GET /", b"a" * 65_536, 414),
        (b"", b"\r\n" * 30_000, 431),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"t: " + b"a" * 65_536, 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000, 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;", b"a" * 65_536, 400),
        (ASK, ASK * 1_000, 429),
        (b"\x16\x03\x01", b"\0" * 65_536, 400),
    ],
    ids=["headers", "value", "name", "url", "newlines", "trailer", "chunks", "extension", "pipeline", "tls"],
)
async def test_an_endless_head_is_refused_after_a_few_kilobytes(begin: bytes, piece: bytes, status: int) -> None:
    async with server(PATIENT) as running:
        peer = await running.peer(begin)
        await pour(peer, piece, 50_000_000)
        said = await peer.rest()
        assert not said or f" {status} ".encode() in said
        assert await (await running.peer()).asks() == "0 127.0.0.1"
    assert sum(running.closed.values()) == 1


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 21 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 5_000 + b"\r\n\r\n", 431),
        (b"GET /?" + b"q" * 2_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"nonsense\r\n\r\n", 400),
    ],
)
async def test_a_head_that_is_too_large_is_answered_with_the_reason(head: bytes, status: int) -> None:
    async with server(PATIENT) as running:
        assert await (await running.peer(head)).status() == status


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"GET / HTTP/1.1\r\nhost", 408),
        (b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc", 408),
        (b"GET /wait HTTP/1.1\r\n\r\n", None),
        (b"GET /stream HTTP/1.1\r\n\r\n", 200),
    ],
    ids=["silent", "head", "body", "answer", "a stranger's stream"],
)
async def test_whatever_does_not_come_in_time_is_closed(sent: bytes, status: int | None) -> None:
    async with server() as running:
        assert await (await running.peer(sent)).status() == status


async def test_a_body_that_drips_is_closed_although_it_never_stops() -> None:
    async with server() as running:
        peer = await running.peer(b"POST /known HTTP/1.1\r\ncontent-length: 99999\r\n\r\n")

        async def drip() -> None:
            while True:
                await peer.send(b"x")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        assert await peer.status() in (408, None)  # a drop on its way when the server closes takes the answer along
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        assert running.app.ended == ["/known"]


async def test_an_answer_that_nobody_reads_is_cut_off() -> None:
    async with server() as running:
        peer = await running.peer(b"GET /known/large HTTP/1.1\r\n\r\n")
        transport: Any = peer.writer.transport
        transport.pause_reading()
        while not running.app.ended:
            await asyncio.sleep(0.02)
        transport.resume_reading()
        assert len(await peer.rest()) < 400 * 65_536


async def test_a_body_that_goes_on_after_its_answer_is_cut_off() -> None:
    async with server() as running:
        peer = await running.peer(b"POST /refuse HTTP/1.1\r\ncontent-length: 999999999\r\n\r\n")
        assert await pour(peer, b"x" * 65_536, 100_000_000) < 50_000_000


async def test_those_who_are_known_keep_their_connection_and_their_stream() -> None:
    async with server() as running:
        peer = await running.peer()
        assert await peer.asks(KNOWN) == "0 127.0.0.1"
        listener = await running.peer(b"GET /known/stream HTTP/1.1\r\n\r\n")
        ticks = await listener.reader.readuntil(b"\r\n\r\n") + await listener.reader.readexactly(9 * 30)
        assert ticks.count(b"tick") == 30  # 1.5 s, more than twice what an answer may take
        assert await peer.asks(KNOWN) == "0 127.0.0.1"


async def test_a_crowd_of_silent_connections_shuts_nobody_out() -> None:
    async with server(PATIENT) as running:
        owner = await running.peer()
        await owner.asks(KNOWN)
        crowd = [await running.peer() for _ in range(60)]
        for _ in range(5):
            assert await (await running.peer()).asks() == "0 127.0.0.1"
            assert await (await running.peer()).asks(KNOWN) == "0 127.0.0.1"
        assert await owner.asks(KNOWN) == "0 127.0.0.1"
        assert await crowd[0].status() is None
    assert running.closed["crowded"] >= 50


async def test_one_who_was_closed_for_others_is_told_so() -> None:
    async with server(PATIENT) as running:
        first = await running.peer()
        assert await first.asks() == "0 127.0.0.1"
        for _ in range(4):
            await running.peer()
        assert await first.status() == 503


async def test_connections_that_are_all_at_work_are_not_closed_for_another() -> None:
    async with server(PATIENT) as running:
        busy = []
        for _ in range(8):
            busy.append(one := await running.peer())
            await one.asks(KNOWN)
            await one.send(b"GET /known/wait HTTP/1.1\r\n\r\n")
        await (await running.peer()).rest()
        running.app.over.set()
        for one in busy:
            assert (await one.reader.readuntil(b"127.0.0.1")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("proxies", "told"), [((), "127.0.0.1"), ((ip_network("127.0.0.1"),), "203.0.113.5")], ids=["unset", "set"]
)
async def test_a_forwarded_address_is_believed_only_from_a_proxy_that_is_named(
    proxies: tuple[Any, ...], told: str
) -> None:
    request = b"GET / HTTP/1.1\r\nx-forwarded-for: 6.6.6.6, 203.0.113.5\r\nforwarded: for=7.7.7.7\r\n\r\n"
    async with server(ConnectionLimits(trusted_proxies=proxies)) as running:
        assert await (await running.peer()).asks(request) == f"0 {told}"


async def test_a_request_that_offers_another_protocol_is_answered_in_this_one() -> None:
    async with server(PATIENT) as running:
        request = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
        assert await (await running.peer()).asks(request) == "0 127.0.0.1"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"POST /known HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc",
        b"GET /known/large HTTP/1.1\r\n\r\n",
        b"GET /known/wait HTTP/1.1\r\n\r\n",
    ],
    ids=["silent", "head", "body", "unread", "unanswered"],
)
async def test_no_connection_holds_up_the_end(sent: bytes) -> None:
    """The time allowed here is far below every limit of the server."""
    async with asyncio.timeout(60):
        async with server(PATIENT) as running:
            for _ in range(3):
                peer = await running.peer(sent)
                transport: Any = peer.writer.transport
                transport.pause_reading()
            await (await running.peer()).asks()
            running.app.over = asyncio.Event()  # is never set for those that wait


async def test_calls_of_the_known_that_are_under_way_are_finished_at_the_end() -> None:
    async with AsyncExitStack() as stack:
        app, listener = App(), listening("127.0.0.1", 0)
        running = Server(app, listener.getsockname()[1], stack)
        async with serving(app, listener, patience_s=20, limits=PATIENT):
            peer = await running.peer()
            await peer.asks(KNOWN)
            await peer.send(b"GET /known/wait HTTP/1.1\r\n\r\n")
            await (await running.peer()).asks()
            asyncio.get_running_loop().call_later(0.1, app.over.set)
        assert b"0 127.0.0.1" in await peer.rest()
