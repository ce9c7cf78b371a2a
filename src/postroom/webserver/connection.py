"""One connection of the web server, and the door that all of them come through.

uvicorn's httptools protocol with a count of every byte before the parser sees it, and a deadline for whatever the
peer has to do next. One sweep looks at all deadlines, so that a request sets no timer of its own.
docs/decisions/0016-the-front-door.md says why this and not another server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom.webserver.limits import ConnectionLimits, address_block, client_address, to_close

CONNECTION = "postroom.connection"
"""In the scope of a request: the connection that it came on."""

_SLICE = 64 * 1024
_REPORT_S = 60.0


class ReceivingPart(Enum):
    """What the peer is sending."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class ConnectionGuard:
    """All connections of a server. Closes the one that has the least right to its place when there are too many."""

    def __init__(self, limits: ConnectionLimits, report: Callable[[Mapping[str, int]], None] | None = None) -> None:
        """`report` is called about once a minute with the number of connections closed, by reason."""
        self.limits = limits
        self._report = report
        self._open: dict[GuardedConnection, None] = {}  # the oldest first
        self._refused: Counter[str] = Counter()
        self._reported_at = 0.0

    def admit(self, newcomer: GuardedConnection) -> None:
        others = [one for one in self._open if not one.transport.is_closing()]
        self._open[newcomer] = None
        victim = to_close(newcomer, others, self.limits)
        if victim is not None:
            victim.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "crowded")

    def forget(self, connection: GuardedConnection) -> None:
        self._open.pop(connection, None)

    def count(self, reason: str) -> None:
        self._refused[reason] += 1

    async def watch(self) -> None:
        """Until cancelled: close what is late."""
        loop = asyncio.get_running_loop()
        pause = min(1.0, self.limits.shortest_s / 4)
        self._reported_at = loop.time()
        while True:
            await asyncio.sleep(pause)
            self.sweep(loop.time())

    def sweep(self, now: float) -> None:
        for connection in list(self._open):
            connection.close_if_late(now)
        if self._refused and now - self._reported_at >= _REPORT_S:
            self.report(now)

    def report(self, now: float) -> None:
        if self._report is not None and self._refused:
            self._report(dict(self._refused))
        self._refused.clear()
        self._reported_at = now

    def cut_unfinished(self) -> None:
        """At the end: a request that is not here yet, or that a stranger makes, is not waited for."""
        for connection in list(self._open):
            if not connection.is_known or connection.is_reading:
                connection.abort()

    def cut_all(self) -> None:
        for connection in list(self._open):
            connection.abort()


class GuardedConnection(HttpToolsProtocol):
    """Refuses what is too large, too slow or too much, before it costs anything."""

    def __init__(self, *arguments: Any, door: ConnectionGuard, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._door = door
        self._limits = door.limits
        self.is_known = False
        self.address_block = ""
        self._reading = ReceivingPart.NOTHING
        self._refusal: tuple[int, str] | None = None
        self._has_sent = False
        self._is_stream = False
        self._unanswered = 0
        self._head_size = self._overhead = self._received = self._discarded = 0
        self._since = 0.0  # the peer began to send what it is sending now, or fell silent
        self._asked_at = 0.0
        self._stalled_at: float | None = None
        self._closed_at: float | None = None

    @property
    def is_idle(self) -> bool:
        return self._reading is ReceivingPart.NOTHING and not self._unanswered

    @property
    def is_reading(self) -> bool:
        return self._reading is not ReceivingPart.NOTHING

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address_block = address_block(self.client[0] if self.client else "?")
        self._since = self.loop.time()
        self._door.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.forget(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._has_sent = True
        while data and not self.transport.is_closing():
            self._feed(data[:_SLICE])
            data = data[_SLICE:]

    def pause_writing(self) -> None:
        self._stalled_at = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_at = None
        super().resume_writing()

    # What the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin(ReceivingPart.HEAD)
        self._head_size = self._received = self._discarded = 0
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            self._reject(HTTPStatus.REQUEST_URI_TOO_LONG, "url")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if len(self.headers) >= self._limits.headers or self._head_size > self._limits.head_bytes:
            self._reject(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._unanswered > self._limits.pipelined:
            self._reject(HTTPStatus.TOO_MANY_REQUESTS, "pipelined")
        if self.client is not None and self._limits.trusted_proxies:
            self.scope["client"] = (client_address(self.client[0], self.headers, self._limits), self.client[1])
        self._begin(ReceivingPart.BODY)
        self._unanswered += 1
        if self._unanswered == 1:
            self._asked_at, self._is_stream = self._since, False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead -= len(body)
        self._received += len(body)
        if self.cycle.response_complete:
            self._discarded += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._begin(ReceivingPart.NOTHING)
        self._overhead = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        self._asked_at, self._is_stream = self.loop.time(), False
        if self._reading is ReceivingPart.NOTHING:
            self._since = self._asked_at
        super().on_response_complete()

    # Limits

    def _begin(self, reading: ReceivingPart) -> None:
        self._reading = reading
        self._since = self.loop.time()

    def _feed(self, data: bytes) -> None:
        if self._reading is ReceivingPart.NOTHING:
            self._begin(ReceivingPart.HEAD)
        self._overhead += len(data)  # less what turns out to be body
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # an offer to speak another protocol: the request is answered in this one
        except httptools.HttpParserError:
            self.refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, "malformed")))
        else:
            self._check_size()

    def _check_size(self) -> None:
        most = self._limits.head_bytes
        if self._reading is ReceivingPart.HEAD and self._overhead > most:
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head")
        elif self._reading is ReceivingPart.BODY and self._overhead > 2 * most + self._received:
            self.refuse(HTTPStatus.BAD_REQUEST, "chunks")
        elif self._discarded > self._limits.linger_bytes:
            self.abort("unread")

    def _reject(self, status: int, reason: str) -> None:
        """Refuse from within the parser, by an exception that stops it."""
        self._refusal = status, reason
        raise ValueError(reason)

    def close_if_late(self, now: float) -> None:
        late = self._late(now)
        if late is None:
            return
        if late in ("head", "body"):
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, f"slow_{late}")
        else:
            self.abort(f"slow_{late}")

    def _late(self, now: float) -> str | None:
        """What the peer or the answer is late with, as the reason for closing; None if nothing is late."""
        limits = self._limits
        if self._closed_at is not None:
            return "close" if now - self._closed_at > limits.linger_s else None
        if self._stalled_at is not None and now - self._stalled_at > limits.stall_s:
            return "read"
        if self._unanswered and not self._is_stream:
            most = limits.request_s if self.is_known else limits.stranger_request_s
            if now - self._asked_at > most:
                return "answer"
        if self._reading is ReceivingPart.BODY and not self._unanswered and now - self._asked_at > limits.linger_s:
            return "unread"
        return self._late_to_send(now - self._since)

    def _late_to_send(self, passed: float) -> str | None:
        limits = self._limits
        if self._reading is ReceivingPart.HEAD:
            return "head" if passed > limits.head_s else None
        if self._reading is ReceivingPart.BODY:
            most = limits.body_s + self._received / limits.body_rate
            return "body" if passed > most and not self.flow.read_paused else None
        if self._unanswered:
            return None
        most = limits.idle_s if self.is_known else limits.stranger_idle_s
        return "idle" if passed > most else None

    # Closing

    def refuse(self, status: int, reason: str) -> None:
        """Say why, if nothing was said yet, and close."""
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size():
            self.abort(reason)
            return
        if self._has_sent and not (self._unanswered and self.cycle.response_started):
            self.transport.write(_answer(status))
        self._let_go(reason)
        self.transport.close()

    def abort(self, reason: str = "stopping") -> None:
        self._let_go(reason)
        self.transport.abort()

    def _let_go(self, reason: str) -> None:
        if self._closed_at is None:
            self._door.count(reason)
            self._closed_at = self.loop.time()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing() and self._closed_at is None:
            self._closed_at = self.loop.time()

    def mark_stream(self) -> None:
        self._is_stream = self.is_known


def mark_known(scope: Mapping[str, Any]) -> None:
    """The sender of this request has proved who it is: its connection is kept when strangers crowd the server."""
    connection = scope.get(CONNECTION)
    if isinstance(connection, GuardedConnection):
        connection.is_known = True


def mark_stream(scope: Mapping[str, Any]) -> None:
    """The answer to this request goes on until one side ends it. Only for those who are known."""
    connection = scope.get(CONNECTION)
    if isinstance(connection, GuardedConnection):
        connection.mark_stream()


def _answer(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase
    body = f"{phrase}.\n".encode()
    head = f"HTTP/1.1 {status:d} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
