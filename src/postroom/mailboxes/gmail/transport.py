"""One HTTP call to Gmail: wait for the limiter, add a token, exchange, and raise one of our errors if it failed.

A refused token is renewed once and the call repeated. Nothing else is retried here, because only the caller knows
whether that is safe. The metrics of all calls are recorded here, by method, outcome and lane only.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.mailboxes import errors
from postroom.mailboxes.gmail.error_mapping import CallDescription, GmailAnswer, error_of, failure_of, not_gmail
from postroom.mailboxes.gmail.methods import GOOGLE, GmailMethod
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import Credentials, PriorityLane
from postroom.mailboxes.reachability import require_safe_url
from postroom.telemetry import logs
from postroom.telemetry.metrics import meter
from postroom.telemetry.series import RECORDER, Series

_calls = meter.create_counter("postroom.gmail.calls", unit="{call}", description="HTTP calls, by method and outcome")
_parts = meter.create_counter("postroom.gmail.batch_parts", unit="{part}", description="calls inside batches")
_latency = meter.create_histogram("postroom.gmail.latency", unit="s", description="from sending to the whole answer")
_waited = meter.create_histogram("postroom.gmail.wait", unit="s", description="from wanting to sending, by lane")
_units = meter.create_counter("postroom.gmail.units", unit="{unit}", description="quota units spent, by lane")

_OUTCOMES: tuple[tuple[type[PostroomError], str], ...] = (
    (errors.MailboxThrottled, "throttled"),
    (errors.MailboxUnreachable, "unreachable"),
    (errors.MailboxUnavailable, "unavailable"),
    (errors.LoginNeeded, "login_needed"),
    (errors.NotGmail, "not_gmail"),
    (errors.CallRefused, "refused"),
    (errors.PermissionMissing, "not_allowed"),
    (errors.HistoryExpired, "history_expired"),
    (errors.Gone, "gone"),
)


def outcome_of(error: PostroomError | None) -> str:
    if error is None:
        return "ok"
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "error")


def record_wait(lane: PriorityLane, units: int, seconds: float) -> None:
    attributes = {"lane": lane.name.lower()}
    _waited.record(seconds, attributes)
    _units.add(units, attributes)


def record_call(method: str, lane: PriorityLane, error: PostroomError | None, seconds: float) -> None:
    if lane is PriorityLane.SYNC:
        RECORDER.time(Series.SYNC_REQUESTS, seconds)
        RECORDER.count(Series.SYNC_THROTTLED, int(isinstance(error, errors.MailboxThrottled)))
    _calls.add(1, {"method": method, "outcome": outcome_of(error)})
    _latency.record(seconds, {"method": method})


def record_parts(method: str, results: Iterable[object]) -> None:
    """The calls of a batch: each result that is not an error went well."""
    outcomes = Counter(outcome_of(each if isinstance(each, PostroomError) else None) for each in results)
    for outcome, count in outcomes.items():
        _parts.add(count, {"method": method, "outcome": outcome})


_USER_AGENT = "postroom (gzip)"
Json = dict[str, Any]
T = TypeVar("T")
log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class TransportConfig:
    api_base: str = GOOGLE
    """Where everything goes: calls, batches and uploads."""
    connect_s: float = 10.0
    read_s: float = 60.0
    """The longest silence within an answer."""
    total_s: float = 180.0
    """The longest time for a whole exchange."""
    longest_pause_s: float = 60.0
    """A longer pause that Gmail asks for is raised to the caller instead of waited out."""
    max_answer_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        require_safe_url(self.api_base, "api_base")


@dataclass(frozen=True, slots=True)
class GmailCall:
    asked: CallDescription
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
class ParsedAnswer(Generic[T]):
    """What a successful answer holds, and what one of its parts says that concerns the whole account."""

    value: T
    throttled: errors.MailboxThrottled | None = None
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

    async def send(self, call: GmailCall, lane: PriorityLane, read: Callable[[GmailAnswer], ParsedAnswer[T]]) -> T:
        """Make the call and read its answer, or raise what went wrong."""
        self._refuse_long_pause()
        wanted_at = self.clock.monotonic()
        is_listing = call.asked.method is GmailMethod.MESSAGES_LIST
        async with self.limiter.admit(lane, call.units, is_listing=is_listing):
            record_wait(lane, call.units, self.clock.monotonic() - wanted_at)
            return (await self._with_token(call, lane, read)).value

    async def _with_token(
        self, call: GmailCall, lane: PriorityLane, read: Callable[[GmailAnswer], ParsedAnswer[T]]
    ) -> ParsedAnswer[T]:
        token = await self._credentials.access_token()
        try:
            reading = await self._observed(call, lane, token, read)
            if not reading.login_refused:
                return reading
        except errors.LoginNeeded:
            log.info("gmail.token_refused", method=call.asked.method)
        token = await self._credentials.access_token(rejected=token)
        return await self._observed(call, lane, token, read)

    async def _observed(
        self, call: GmailCall, lane: PriorityLane, token: str, read: Callable[[GmailAnswer], ParsedAnswer[T]]
    ) -> ParsedAnswer[T]:
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
            self._note(call, lane, error, sent_at, answered_at)

    def _note(
        self,
        call: GmailCall,
        lane: PriorityLane,
        error: PostroomError | None,
        sent_at: float,
        answered_at: float | None,
    ) -> None:
        now = self.clock.monotonic()
        tuner = self.limiter.gate.tuner
        match error:
            case None | errors.Gone() | errors.HistoryExpired() | errors.CallRefused():
                # A large message on a thin line takes long without the service being slow.
                tuner.succeeded(sent_at, now if answered_at is None else answered_at)
            case errors.MailboxThrottled():
                wait = error.retry_after
                tuner.throttled(sent_at, now, None if wait is None else wait.total_seconds())
            case errors.MailboxUnavailable():
                tuner.failed(sent_at, now)
        name = call.name or str(call.asked.method)
        record_call(name, lane, error, now - sent_at)
        if isinstance(error, errors.MailboxThrottled | errors.MailboxUnavailable):
            log.warning("gmail.call_failed", method=name, problem=error.message, seconds=round(now - sent_at, 3))

    async def _exchange(self, call: GmailCall, token: str) -> GmailAnswer:
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

    async def _receive(self, request: httpx2.Request) -> GmailAnswer:
        response = await self._http.send(request, stream=True, follow_redirects=False)
        answered_at = self.clock.monotonic()
        try:
            pieces: list[bytes] = []
            size = 0
            async for piece in response.aiter_bytes():
                size += len(piece)
                if size > self._config.max_answer_bytes:
                    raise errors.MailboxUnavailable(
                        f"Gmail's answer is larger than {self._config.max_answer_bytes} bytes"
                    )
                pieces.append(piece)
        finally:
            await response.aclose()
        return GmailAnswer(response.status_code, response.headers, b"".join(pieces), answered_at)

    def _refuse_long_pause(self) -> None:
        pause = self.limiter.gate.tuner.hold_until - self.clock.monotonic()
        if pause > self._config.longest_pause_s:
            raise errors.MailboxThrottled(
                f"Gmail asked for a pause of {pause:.0f} s for this account", retry_after=timedelta(seconds=pause)
            )


def read_json(answer: GmailAnswer, asked: CallDescription) -> Json:
    """The JSON object of a successful answer; empty if the body is."""
    if not answer.body and answer.status in (200, 204):
        return {}
    if not answer.is_json:
        raise not_gmail(f"status {answer.status}, {answer.headers.get('content-type', '')[:60] or 'no content type'}")
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise errors.MailboxUnavailable(
            f"Gmail's answer to {asked.method} is not readable JSON", may_have_happened=asked.changes
        )
    return value


def read_as(make: Callable[[Json], T], value: Json, asked: CallDescription) -> T:
    """The answer in our types. One that lacks a required field raises like one that cannot be parsed."""
    try:
        return make(value)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        lacking = f": {error.args[0]!r} is missing" if isinstance(error, KeyError) else ""
        raise errors.MailboxUnavailable(
            f"Gmail's answer to {asked.method} is not as documented{lacking}", may_have_happened=asked.changes
        ) from None


def json_body(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
