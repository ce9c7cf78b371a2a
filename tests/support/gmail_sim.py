"""The Gmail stand-in and clients for it: plain HTTP, our own client with tokens that a test can watch, the stand-in
without a socket (for virtual time), and a mailbox of any size whose messages are computed when asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import httpx2
from sqlalchemy import select

from postroom.db import Tx
from postroom.db.tables.accounts import quota_grants
from postroom.domain.clock import Clock, SystemClock
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.gmail.client import GmailClient, connected
from postroom.mailboxes.gmail.methods import MINUTE_S, QuotaProfile
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import Limiter, limiter_for
from postroom.mailboxes.pace import TunerLimits
from postroom.mailboxes.ports import PriorityLane
from postroom.sim.gmail import oauth
from postroom.sim.gmail.call import MailboxState
from postroom.sim.gmail.control import SimControl
from postroom.sim.gmail.faults import Faults
from postroom.sim.gmail.gateway import Gateway, QuotaLimits, QuotaMeter
from postroom.sim.gmail.oauth import Grants, OAuth
from postroom.sim.gmail.server import BATCH_PARTS_AT_ONCE, REQUESTS_IN_FLIGHT, GmailApp, GmailSim
from postroom.sim.gmail.sources import MailboxSource, MailSummary
from postroom.sim.serving import ABORT
from tests.support.mail import OWNER, START_MS

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loading the real ones takes longer than most tests, and the stand-in speaks plain HTTP."""


def plain_client(url: str, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, verify=_NO_CERTIFICATES)


def api_client(url: str, token: str) -> httpx2.AsyncClient:
    return plain_client(f"{url}/gmail/v1/users/me/", Authorization=f"Bearer {token}")


def reason(response: httpx2.Response) -> tuple[int, str]:
    """Status and reason of a refusal, as Google's error bodies give them."""
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["status"]
    assert error["errors"][0]["message"] == error["message"]
    return error["code"], error["errors"][0]["reason"]


UNHURRIED = TunerLimits(start_workers=32, start_rps=1e6, max_rps=1e6, p95_limit_s=3_600)
"""For tests that are not about pace."""


class FixedToken:
    """A token that cannot be renewed."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def access_token(self, *, rejected: str | None = None) -> str:
        if rejected is not None:
            raise LoginNeeded
        return self._token


class RenewedToken:
    """Renews through the stand-in, once for however many ask at the same time."""

    def __init__(self, token: str, renew: Callable[[], str]) -> None:
        self._token = token
        self._renew = renew
        self._lock = asyncio.Lock()
        self.renewals = 0

    async def access_token(self, *, rejected: str | None = None) -> str:
        async with self._lock:
            if rejected == self._token:
                await asyncio.sleep(0)
                self.renewals += 1
                self._token = self._renew()
            return self._token


class EagerClock(SystemClock):
    """Real time, but pauses take none: backoff is asked for and counted, not waited out."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._skipped += seconds
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client_of(
    sim: GmailSim,
    *,
    clock: Clock | None = None,
    limiter: Limiter | None = None,
    credentials: FixedToken | RenewedToken | None = None,
    profile: QuotaProfile | None = None,
    config: TransportConfig | None = None,
    lane: PriorityLane = PriorityLane.USER_ACTION,
    batch_size: int | None = None,
) -> AsyncIterator[GmailClient]:
    clock = clock or EagerClock()
    limiter = limiter or limiter_for(profile, clock, tuning=UNHURRIED, dice=random.Random(1))
    async with connected(
        credentials or FixedToken(sim.token),
        limiter,
        clock,
        profile=profile,
        config=config or TransportConfig(api_base=sim.url),
        lane=lane,
        batch_size=batch_size,
    ) as client:
        yield client


class _FarAway(httpx2.AsyncBaseTransport):
    """Every request and every answer takes a while, each its own."""

    def __init__(self, app: GmailApp, seed: int) -> None:
        self._inner = httpx2.ASGITransport(app=cast("Any", _abortable(app)))
        self._dice = random.Random(seed)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(self._dice.uniform(0.02, 0.15))
        response = await self._inner.handle_async_request(request)
        await asyncio.sleep(self._dice.uniform(0.02, 0.25))
        return response


def _abortable(app: GmailApp) -> Callable[..., Awaitable[None]]:
    """A connection that the stand-in can cut, as its own server lets it."""

    def abort() -> None:
        raise httpx2.RemoteProtocolError("the stand-in cut the connection")

    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {ABORT: {"abort": abort}}}, receive, send)

    return call


@dataclass(frozen=True)
class InProcessSim:
    app: GmailApp
    control: SimControl
    token: str
    clock: Clock

    @contextlib.asynccontextmanager
    async def client(
        self,
        limiter: Limiter,
        profile: QuotaProfile | None,
        *,
        seed: int = 0,
        lane: PriorityLane = PriorityLane.SYNC,
        batch_size: int | None = None,
    ) -> AsyncIterator[GmailClient]:
        async with connected(
            FixedToken(self.token),
            limiter,
            self.clock,
            profile=profile,
            config=TransportConfig(api_base="http://127.0.0.1"),
            lane=lane,
            batch_size=batch_size,
            http_transport=_FarAway(self.app, seed),
        ) as client:
            yield client


def in_process_sim(source: MailboxSource, profile: QuotaProfile | None, clock: Clock) -> InProcessSim:
    limits = QuotaLimits() if profile is None else QuotaLimits(profile, REQUESTS_IN_FLIGHT, BATCH_PARTS_AT_ONCE)
    box, grants, meter, faults = MailboxState(source, clock), Grants(clock), QuotaMeter(limits, clock), Faults()
    control = SimControl(box, grants, meter, faults)
    app = GmailApp(Gateway(box, grants, meter, faults), OAuth(grants, source.email), control, "control", clock)
    return InProcessSim(app, control, grants.allow(oauth.ALL_SCOPES), clock)


MINUTE_MS = 60_000
_FIRST_ID = 0x1800_0000_0000_0000


class EndlessSource:
    """One message a minute, each its own thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.raws_written = 0
        self.summaries_made = 0

    @property
    def email(self) -> str:
        return OWNER

    def count(self) -> int:
        return self._count

    def thread_count(self) -> int:
        return self._count

    def internal_date(self, index: int) -> int:
        return START_MS + index * MINUTE_MS

    def summary(self, index: int) -> MailSummary:
        self.summaries_made += 1
        message_id = f"{_FIRST_ID + index:016x}"
        return MailSummary(
            id=message_id,
            thread_id=message_id,
            label_ids=frozenset({"INBOX"}),
            internal_date=self.internal_date(index),
            sender="Ann <ann@friends.example>",
            to=OWNER,
            cc="",
            subject=f"Letter number{index}",
            message_id=f"<{index}@x.example>",
            list_id="",
            has_attachment=False,
            size=100,
        )

    def raw(self, index: int) -> bytes:
        self.raws_written += 1
        return (
            f"From: Ann <ann@friends.example>\r\nTo: {OWNER}\r\nSubject: Letter number{index}\r\n"
            f"Message-ID: <{index}@x.example>\r\n\r\nThe word is body{index}.\r\n"
        ).encode()

    def index_of(self, message_id: str) -> int | None:
        index = int(message_id, 16) - _FIRST_ID
        return index if 0 <= index < self._count else None

    def thread(self, thread_id: str) -> Sequence[int]:
        index = self.index_of(thread_id)
        return () if index is None else (index,)

    def user_labels(self) -> Mapping[str, str]:
        return {}


def units_in_use(tx: Tx, account_id: str, now: datetime) -> int:
    """The units granted to an account within the last minute, to all processes together."""
    recent = (quota_grants.c.account_id == account_id) & (quota_grants.c.granted_at > now - timedelta(seconds=MINUTE_S))
    return sum(tx.execute(select(quota_grants.c.units).where(recent)).scalars())
