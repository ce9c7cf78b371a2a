"""Limits on request bodies by role and tool, applied while they arrive and before anything is parsed.

A parsed body takes 20 to 60 times its size when it consists of many small values, so values are counted too. Each
token has a few requests at once; a bounded number of further ones wait.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakValueDictionary

from starlette.types import Message, Receive

from postroom.domain.errors import BadInput, Retryable
from postroom.domain.roles import Role

_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_NAMED = re.compile(rb'"name"\s*:\s*"([\w.]{1,100})"')
_SIGNS = (b'"', b",", b"[", b"{")
_ENDS = 4_096
_MOST_KEPT = 1 << 20
"""How far from either end of a large body the tool's name is searched for."""
_LARGE = 1_048_576
_LARGE_AT_ONCE = 2
_WAITING = 32


class BodyTooLarge(BadInput):
    """The body is larger than is taken here, or made of too many values."""

    def __init__(self, problem: str) -> None:
        super().__init__("body", problem)


class TooManyRequests(Retryable):
    """Too many requests of this sender are waiting already. Wait for the answers to some of them."""


AT_ONCE: Mapping[Role, int] = {Role.AGENT: 4, Role.DASHBOARD: 8, Role.CONNECTOR: 8}
"""Calls of one sender that are served at once."""


@dataclass(frozen=True)
class RoleLimits:
    body_bytes: int
    bulky_bytes: int
    """For tools that take whole messages."""
    values: int
    """Strings, numbers, lists and objects in one body."""
    at_once: int
    """Requests of one token."""


def limits_by_role(connector_bytes: int, agent_bytes: int) -> Mapping[Role, RoleLimits]:
    dashboard, common = 1_048_576, min(connector_bytes, 4_194_304)
    return {
        Role.AGENT: RoleLimits(agent_bytes, agent_bytes, values=10_000, at_once=AT_ONCE[Role.AGENT]),
        Role.DASHBOARD: RoleLimits(dashboard, dashboard, values=50_000, at_once=AT_ONCE[Role.DASHBOARD]),
        Role.CONNECTOR: RoleLimits(common, connector_bytes, values=250_000, at_once=AT_ONCE[Role.CONNECTOR]),
    }


class ValueCounter:
    """Counts the values of a JSON text, piece by piece, without parsing it; never counts too few. As long as all signs
    that can begin or separate values are no more than `most`, wherever they stand, it counts only those, and keeps what
    it has not read, up to a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._signs = 0
        self._unread: list[bytes] = []
        self._kept = 0
        self._values = 0
        self._in_string = self._is_escaped = False

    @property
    def values(self) -> int:
        self._read()
        return self._values

    def feed(self, piece: bytes) -> None:
        self._signs += sum(map(piece.count, _SIGNS))
        self._unread.append(piece)
        self._kept += len(piece)
        if self._signs > self._most or self._kept > _MOST_KEPT:
            self._read()

    def _read(self) -> None:
        pieces, self._unread, self._kept = self._unread, [], 0
        for piece in pieces:
            self._count(piece)

    def _count(self, piece: bytes) -> None:
        at = 0
        while at < len(piece):
            at = self._string(piece, at) if self._in_string else self._between(piece, at)
            if self._values > self._most:
                raise BodyTooLarge(f"is made of more than {self._most:,} values, the most that are taken here")

    def _between(self, piece: bytes, at: int) -> int:
        """To the next string, and past its first quote."""
        quote = piece.find(b'"', at)
        end = len(piece) if quote < 0 else quote
        self._values += piece.count(b",", at, end) + piece.count(b"[", at, end) + piece.count(b"{", at, end)
        if quote < 0:
            return end
        self._values += 1
        self._in_string = True
        return quote + 1

    def _string(self, piece: bytes, at: int) -> int:
        """Past the quote that ends the string, or to the end of the piece."""
        if self._is_escaped:
            self._is_escaped = False
            at += 1
        end = self._plain_end(piece, at)
        if end is None:
            found = _INSIDE_STRING.match(piece, at)
            end = found.end() if found else at
        if end < len(piece) and piece[end] == 0x22:
            self._in_string = False
            return end + 1
        self._is_escaped = end == len(piece) - 1
        return len(piece)

    @staticmethod
    def _plain_end(piece: bytes, at: int) -> int | None:
        """Where a string without escapes ends; base64 has none, and this is ten times as fast."""
        quote = piece.find(b'"', at)
        end = len(piece) if quote < 0 else quote
        return end if piece.find(b"\\", at, end) < 0 else None


class GuardedBody:
    """Passes a body on as it arrives, until it is larger than its role may send."""

    def __init__(self, receive: Receive, limits: RoleLimits, is_bulky: Callable[[str], bool], large: asyncio.Semaphore):
        self._receive = receive
        self._limits = limits
        self._is_bulky = is_bulky
        self._large = large
        self._counter = ValueCounter(limits.values)
        self._size = 0
        self._head = self._tail = b""
        self._has_turn = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            await self._examine(message.get("body", b""), is_last=not message.get("more_body", False))
        return message

    def release(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._large.release()

    async def _examine(self, piece: bytes, *, is_last: bool) -> None:
        self._size += len(piece)
        if self._size > self._limits.bulky_bytes:
            raise BodyTooLarge(f"is larger than {self._limits.bulky_bytes:,} bytes, the most that is taken here")
        self._counter.feed(piece)
        if len(self._head) < _ENDS:
            self._head += piece[: _ENDS - len(self._head)]
        self._tail = (self._tail + piece[-_ENDS:])[-_ENDS:]
        if self._size > _LARGE and not self._has_turn:
            await self._large.acquire()
            self._has_turn = True
        if is_last and self._size > self._limits.body_bytes and not self._names_bulky_tool():
            problem = (
                f"is larger than {self._limits.body_bytes:,} bytes, which only tools that take whole messages may be"
            )
            raise BodyTooLarge(problem)

    def _names_bulky_tool(self) -> bool:
        names = _NAMED.findall(self._head) + _NAMED.findall(self._tail)
        return any(self._is_bulky(name.decode("ascii", "replace")) for name in names)


class RequestSlots:
    """A few requests of one sender at once; some more wait."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def taken(self, sender: str, at_once: int) -> AsyncIterator[None]:
        turn = self._turns.get(sender)
        if turn is None:
            turn = self._turns[sender] = asyncio.Semaphore(at_once)
        if self._waiting[sender] >= _WAITING:
            raise TooManyRequests(retry_after=timedelta(seconds=1))
        self._waiting[sender] += 1
        try:
            await turn.acquire()
        finally:
            self._waiting[sender] -= 1
            if not self._waiting[sender]:
                del self._waiting[sender]
        try:
            yield
        finally:
            turn.release()


class RequestLimiter:
    """The bodies of all requests: a few at once for each token, and a few large ones for all tokens together."""

    def __init__(self, limits: Mapping[Role, RoleLimits], is_bulky: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_bulky = is_bulky
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._turns = RequestSlots()

    @asynccontextmanager
    async def body(self, token_id: str, role: Role, receive: Receive) -> AsyncIterator[Receive]:
        """Waits for this request's turn; then its body, to be received within its limits."""
        limits = self._limits[role]
        async with self._turns.taken(token_id, limits.at_once):
            guarded = GuardedBody(receive, limits, self._is_bulky, self._large)
            try:
                yield guarded
            finally:
                guarded.release()
