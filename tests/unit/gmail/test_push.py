"""Push notifications: renewed in time, taken only from Google, and harmless whatever is sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, Retryable
from postroom.gmail.id_token import IdTokenVerifier
from postroom.gmail.push import LARGEST_BODY, Notification, Refusal, Watch, parse_notification, receive, renewal_due
from tests.support.id_tokens import AUDIENCE, SERVICE_ACCOUNT, KnownKeys, b64, claims, private_key, signed

DAY = timedelta(days=1)


def body(content: Any = None, **envelope: Any) -> bytes:
    content = {"emailAddress": "Me@Example.com", "historyId": 123456789012345678901} if content is None else content
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    message = {"data": base64.b64encode(raw).decode(), "messageId": "1"}
    return json.dumps({"message": message, "subscription": "projects/p/subscriptions/s"} | envelope).encode()


def verifier(clock: ManualClock) -> IdTokenVerifier:
    return IdTokenVerifier(AUDIENCE, SERVICE_ACCOUNT, KnownKeys(), clock)


async def answer(clock: ManualClock, token: str, content: bytes | None = None) -> Notification | Refusal:
    return await receive({"Authorization": f"Bearer {token}"}, body() if content is None else content, verifier(clock))


async def test_a_genuine_notification_gives_the_address_and_the_history_id_as_text(clock: ManualClock) -> None:
    token = signed(claims(clock.now().timestamp()))
    assert await answer(clock, token) == Notification("me@example.com", "123456789012345678901")


@pytest.mark.parametrize("name", ["authorization", "AUTHORIZATION"])
async def test_header_names_may_be_written_in_any_case(clock: ManualClock, name: str) -> None:
    token = signed(claims(clock.now().timestamp()))
    assert isinstance(await receive({name: f"bearer {token}"}, body(), verifier(clock)), Notification)


def _with(**changes: Any) -> Callable[[float], str]:
    return lambda now: signed(claims(now, **changes))


def _headed(**head: Any) -> Callable[[float], str]:
    return lambda now: signed(claims(now), head)


FORGERIES: dict[str, Callable[[float], str]] = {
    "nothing": lambda now: "",
    "not a token": lambda now: "hello",
    "two parts": lambda now: signed(claims(now)).rpartition(".")[0],
    "four parts": lambda now: signed(claims(now)) + ".x",
    "alg none": lambda now: f"{b64({'alg': 'none', 'kid': 'key-1'})}.{b64(claims(now))}.",
    "alg none with a signature": _headed(alg="none", kid="key-1"),
    "alg HS256": _headed(alg="HS256", kid="key-1"),
    "alg ES256": _headed(alg="ES256", kid="key-1"),
    "alg RS512": _headed(alg="RS512", kid="key-1"),
    "alg in a list": _headed(alg=["RS256"], kid="key-1"),
    "no alg": _headed(kid="key-1"),
    "no key id": _headed(alg="RS256"),
    "unknown key id": _headed(alg="RS256", kid="key-2"),
    "key id that is no text": _headed(alg="RS256", kid=["key-1"]),
    "critical extension": _headed(alg="RS256", kid="key-1", crit=["x"]),
    "somebody else's key": lambda now: signed(claims(now), key=private_key("somebody else")),
    "claims changed after signing": lambda now: ".".join(
        [signed(claims(now)).split(".")[0], b64(claims(now, x=1)), signed(claims(now)).split(".")[2]]
    ),
    "expired": _with(exp=0),
    "expired long enough": lambda now: signed(claims(now, exp=now - 31)),
    "never expires": _with(exp=None),
    "expires at true": _with(exp=True),
    "expires at infinity": lambda now: signed(json.dumps(claims(now) | {"exp": float("inf")}).encode()),
    "expires at a huge number": _with(exp=10**400),
    "from the future": lambda now: signed(claims(now, iat=now + 31)),
    "other audience": _with(aud="https://other.example.com/push"),
    "audience in a list": _with(aud=[AUDIENCE]),
    "other issuer": _with(iss="https://evil.example.com"),
    "issuer in a list": _with(iss=["accounts.google.com"]),
    "other service account": _with(email="mallory@project.iam.gserviceaccount.com"),
    "address not verified": _with(email_verified=False),
    "address verified in words": _with(email_verified="true"),
    "claims are a list": lambda now: signed([claims(now)]),
    "claims are not JSON": lambda now: signed(b"{"),
    "deeply nested": lambda now: signed(b"[" * 3_000),
    "endless": lambda now: signed(claims(now, x="y" * 10_000)),
    "spaces around": lambda now: " " + signed(claims(now)) + " ",
    "line break": lambda now: signed(claims(now)) + "\n",
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_token_that_is_not_quite_right_is_refused_and_never_repeated(clock: ManualClock, name: str) -> None:
    token = FORGERIES[name](clock.now().timestamp())
    outcome = await answer(clock, token)
    assert isinstance(outcome, Refusal)
    assert outcome.status == 401
    assert len(token) < 6 or token not in outcome.reason


async def test_a_token_is_good_until_it_expires(clock: ManualClock) -> None:
    token = signed(claims(clock.now().timestamp()))
    clock.advance(3_600)
    assert isinstance(await answer(clock, token), Notification)
    clock.advance(30)
    assert isinstance(await answer(clock, token), Refusal)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic x"}, {"Authorization": "Bearer"}])
async def test_a_request_without_a_token_is_refused(clock: ManualClock, headers: dict[str, str]) -> None:
    assert await receive(headers, body(), verifier(clock)) == Refusal(401, "there is no bearer token")


async def test_a_huge_body_is_refused_before_anything_is_looked_at(clock: ManualClock) -> None:
    keys = KnownKeys()
    asked = IdTokenVerifier(AUDIENCE, SERVICE_ACCOUNT, keys, clock)
    token = signed(claims(clock.now().timestamp()))
    outcome = await receive({"Authorization": f"Bearer {token}"}, b"x" * (LARGEST_BODY + 1), asked)
    assert isinstance(outcome, Refusal)
    assert (outcome.status, keys.asked) == (413, [])


async def test_keys_that_cannot_be_had_now_make_google_send_it_again(clock: ManualClock) -> None:
    class NoKeys:
        async def key(self, key_id: str) -> None:
            raise Retryable("no network")

    asked = IdTokenVerifier(AUDIENCE, SERVICE_ACCOUNT, NoKeys(), clock)
    token = signed(claims(clock.now().timestamp()))
    assert await receive({"Authorization": f"Bearer {token}"}, body(), asked) == Refusal(503, "no network")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 60_000,
        b"\xff\xfe",
        b'{"message": null}',
        b'{"message": {}}',
        b'{"message": {"data": 7}}',
        b'{"message": {"data": "***"}}',
        b'{"message": {"data": "\\u00e9"}}',
        body(b"{"),
        body([]),
        body({"emailAddress": "me@example.com"}),
        body({"historyId": 1}),
        body({"emailAddress": "me@example.com", "historyId": True}),
        body({"emailAddress": "me@example.com", "historyId": -1}),
        body({"emailAddress": "me@example.com", "historyId": 1.5}),
        body({"emailAddress": "me@example.com", "historyId": "1; DROP"}),
        body({"emailAddress": "me@example.com", "historyId": "9" * 50}),
        body({"emailAddress": ["me@example.com"], "historyId": 1}),
        body({"emailAddress": "nobody", "historyId": 1}),
    ],
)
async def test_a_genuine_sender_of_nonsense_is_told_so(clock: ManualClock, content: bytes) -> None:
    outcome = await answer(clock, signed(claims(clock.now().timestamp())), content)
    assert isinstance(outcome, Refusal)
    assert outcome.status == 400


@pytest.mark.parametrize("history_id", [7, "7", 2**70])
def test_a_history_id_may_be_a_number_or_text_and_is_text_to_us(history_id: int | str) -> None:
    notification = parse_notification(body({"emailAddress": "me@example.com", "historyId": history_id}))
    assert notification.history_id == str(history_id)


@given(st.binary(max_size=300))
def test_no_body_breaks_the_parser(content: bytes) -> None:
    for attempt in (content, body(content)):
        try:
            parse_notification(attempt)
        except BadInput:
            continue


def test_a_watch_is_renewed_daily_near_its_end_and_when_the_record_cannot_be_true(clock: ManualClock) -> None:
    now = clock.now()
    fresh = Watch("1", renewed_at=now, expires_at=now + 7 * DAY)
    assert renewal_due(None, now)
    assert not renewal_due(fresh, now)
    assert not renewal_due(fresh, now + DAY - timedelta(seconds=1))
    assert renewal_due(fresh, now + DAY)
    assert renewal_due(Watch("1", now, now + timedelta(hours=3)), now)
    assert renewal_due(fresh, now - timedelta(seconds=1))
