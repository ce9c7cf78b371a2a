"""One call to Gmail: its turn at the limiter, a token, the exchange, and an error of ours where it failed.

A refused token is renewed once and the call repeated; nothing else is repeated here, because only the caller knows
whether doing it again is harmless.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.gmail import instruments
from postroom.gmail.errors import Gone, HistoryExpired, LoginNeeded, Refused, Throttled, Unavailable
from postroom.gmail.failures import failure_of
from postroom.gmail.limiter import Limiter
from postroom.gmail.ports import Credentials, Lane
from postroom.gmail.reach import is_this_machine, require_safe_url
from postroom.gmail.refusals import Answer, Asked, error_of, not_gmail
from postroom.telemetry import logs

GOOGLE = "https://gmail.googleapis.com"
_USER_AGENT = "postroom (gzip)"
Json = dict[str, Any]
T = TypeVar("T")
_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class TransportConfig:
    api_base: str = GOOGLE
    """Where everything goes: calls, batches and uploads."""
    connect_s: float = 10.0
    read_s: float = 60.0
    """The longest silence within an answer."""
    total_s: float = 180.0
    """The longest exchange, however lively."""
    longest_pause_s: float = 60.0
    """A pause that Gmail asked for and that is longer than this is the caller's to wait out, not ours."""
    max_answer_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        require_safe_url(self.api_base, "api_base")

    @property
    def is_local(self) -> bool:
        return is_this_machine(httpx2.URL(self.api_base).host)


@dataclass(frozen=True, slots=True)
class Call:
    asked: Asked
    verb: str
    path: str
    units: int
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"
    name: str = ""
    """For metrics, where it is not the method: `batch`."""

    @property
    def target(self) -> str:
        return f"{self.path}?{_query_string(self.query)}" if self.query else self.path


@lru_cache(maxsize=64)  # a sync asks for a million messages with the same few words
def _query_string(query: tuple[tuple[str, str], ...]) -> str:
    return urlencode(query)


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What a successful answer holds, and what one of its parts says that concerns the whole account."""

    value: T
    throttled: Throttled | None = None
    login_refused: bool = False


class Transport:
    def __init__(
        self,
        http: httpx2.AsyncClient,
        credentials: Credentials,
        limiter: Limiter,
        clock: Clock,
        config: TransportConfig,
    ) -> None:
        self.limiter = limiter
        self.clock = clock
        self._http = http
        self._credentials = credentials
        self._config = config
        self._base = config.api_base.rstrip("/")
        self._host = httpx2.URL(self._base).host
        self._timeout = httpx2.Timeout(config.read_s, connect=config.connect_s)

    async def send(self, call: Call, lane: Lane, read: Callable[[Answer], Reading[T]]) -> T:
        """Make the call and read its answer, or raise what went wrong."""
        self._refuse_long_pause()
        wanted_at = self.clock.monotonic()
        async with self.limiter.admit(lane, call.units):
            instruments.record_wait(lane, call.units, self.clock.monotonic() - wanted_at)
            return (await self._with_token(call, read)).value

    async def _with_token(self, call: Call, read: Callable[[Answer], Reading[T]]) -> Reading[T]:
        token = await self._credentials.access_token()
        try:
            reading = await self._observed(call, token, read)
            if not reading.login_refused:
                return reading
        except LoginNeeded:
            _log.info("gmail.token_refused", method=call.asked.method)
        token = await self._credentials.access_token(rejected=token)
        return await self._observed(call, token, read)

    async def _observed(self, call: Call, token: str, read: Callable[[Answer], Reading[T]]) -> Reading[T]:
        """One exchange, and what the tuner and the metrics learn from it."""
        sent_at = self.clock.monotonic()
        answered_at: float | None = None
        error: PostroomError | None = None
        try:
            answer = await self._exchange(call, token)
            answered_at = answer.answered_at
            reading = read(answer)
            error = reading.throttled
            return reading
        except PostroomError as raised:
            error = raised
            raise
        finally:
            self._note(call, error, sent_at, answered_at)

    def _note(self, call: Call, error: PostroomError | None, sent_at: float, answered_at: float | None) -> None:
        now = self.clock.monotonic()
        tuner = self.limiter.gate.tuner
        match error:
            case None | Gone() | HistoryExpired() | Refused():
                # A large message on a thin line takes long without the service being slow.
                tuner.succeeded(sent_at, now if answered_at is None else answered_at)
            case Throttled():
                wait = error.retry_after
                tuner.throttled(sent_at, now, None if wait is None else wait.total_seconds())
            case Unavailable():
                tuner.failed(sent_at, now)
        name = call.name or str(call.asked.method)
        instruments.record_call(name, error, now - sent_at)
        if isinstance(error, Throttled | Unavailable):
            _log.warning("gmail.call_failed", method=name, problem=error.message, seconds=round(now - sent_at, 3))

    async def _exchange(self, call: Call, token: str) -> Answer:
        headers = {"Authorization": f"Bearer {token}", "User-Agent": _USER_AGENT}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        request = self._http.build_request(
            call.verb, self._base + call.target, headers=headers, content=call.body, timeout=self._timeout
        )
        try:
            async with asyncio.timeout(self._config.total_s):
                answer = await self._receive(request)
        except (httpx2.HTTPError, TimeoutError) as error:
            # Without the chain: the request in it holds the token.
            raise failure_of(error, call.asked, self._host) from None
        if not answer.is_success:
            raise error_of(answer, call.asked, self.clock.now())
        return answer

    async def _receive(self, request: httpx2.Request) -> Answer:
        response = await self._http.send(request, stream=True, follow_redirects=False)
        answered_at = self.clock.monotonic()
        try:
            pieces: list[bytes] = []
            size = 0
            async for piece in response.aiter_bytes():
                size += len(piece)
                if size > self._config.max_answer_bytes:
                    raise Unavailable(f"Gmail's answer is larger than {self._config.max_answer_bytes} bytes")
                pieces.append(piece)
        finally:
            await response.aclose()
        return Answer(response.status_code, response.headers, b"".join(pieces), answered_at)

    def _refuse_long_pause(self) -> None:
        pause = self.limiter.gate.tuner.hold_until - self.clock.monotonic()
        if pause > self._config.longest_pause_s:
            raise Throttled(
                f"Gmail asked for a pause of {pause:.0f} s for this account", retry_after=timedelta(seconds=pause)
            )


def read_json(answer: Answer, asked: Asked) -> Json:
    """The object in a successful answer; an empty one where there is nothing to say."""
    if not answer.body and answer.status in (200, 204):
        return {}
    if not answer.is_json:
        raise not_gmail(f"status {answer.status}, {answer.headers.get('content-type', '')[:60] or 'no content type'}")
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unavailable(f"Gmail's answer to {asked.method} is not readable JSON", may_have_happened=asked.changes)
    return value


def read_as(make: Callable[[Json], T], value: Json, asked: Asked) -> T:
    """The answer in our types; one that lacks what it promises is as bad as a broken one."""
    try:
        return make(value)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        lacking = f": {error.args[0]!r} is missing" if isinstance(error, KeyError) else ""
        raise Unavailable(
            f"Gmail's answer to {asked.method} is not as documented{lacking}", may_have_happened=asked.changes
        ) from None


def json_body(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
