"""Google's keys over HTTP, and the renewal of a watch at the stand-in."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.errors import Retryable
from postroom.gmail.google_keys import GoogleKeys
from postroom.gmail.push import renew, renewal_due
from postroom.gmail.sim.server import running_sim
from tests.support.gmail_client import client_of
from tests.support.id_tokens import KEY_ID, jwk, private_key
from tests.support.sim_mail import mailbox
from tests.support.web import answering, page


def keys_page(*entries: object, max_age: int = 600) -> bytes:
    body = json.dumps({"keys": list(entries)}).encode()
    return page(body, content_type="application/json", headers=f"Cache-Control: public, max-age={max_age}\r\n")


async def test_a_key_is_fetched_once_and_kept_as_long_as_google_says(clock: ManualClock) -> None:
    async with answering(keys_page(jwk(private_key().public_key()))) as url:
        keys = GoogleKeys(clock, url)
        key = await keys.key(KEY_ID)
    assert key is not None
    assert key.public_numbers() == private_key().public_key().public_numbers()
    clock.advance(599)
    assert await keys.key(KEY_ID) is key, "nobody is there to ask any more"
    clock.advance(1)
    with pytest.raises(Retryable, match="refused the connection"):
        await keys.key(KEY_ID)


async def test_unknown_key_ids_do_not_make_us_fetch_again_and_again(clock: ManualClock) -> None:
    async with answering(keys_page(jwk(private_key().public_key()))) as url:
        keys = GoogleKeys(clock, url)
        assert await keys.key("made up") is None
    for number in range(100):
        assert await keys.key(f"made up {number}") is None
    assert await keys.key(KEY_ID) is not None


@pytest.mark.parametrize(
    "answer",
    [
        page(b"<html>", "503 Service Unavailable"),
        page(b"<html>"),
        page(b"[]", content_type="application/json"),
        keys_page(),
        keys_page("not a key"),
        keys_page({"kty": "RSA", "kid": KEY_ID, "n": "AQAB", "e": "AQAB"}),
        keys_page({"kty": "RSA", "kid": KEY_ID, "n": 7, "e": "AQAB"}),
    ],
)
async def test_keys_that_cannot_be_read_are_no_keys_and_may_come_later(clock: ManualClock, answer: bytes) -> None:
    async with answering(answer) as url:
        with pytest.raises(Retryable, match="gave no keys"):
            await GoogleKeys(clock, url).key(KEY_ID)


async def test_a_watch_is_renewed_at_gmail_and_then_not_due_for_a_day() -> None:
    clock = SystemClock()
    async with running_sim(mailbox(1)) as sim, client_of(sim) as client:
        watch = await renew(client, "projects/mine/topics/mail", clock)
        assert sim.control.state().watch is not None
    assert watch.history_id.isdigit()
    assert timedelta(days=6) < watch.expires_at - clock.now() <= timedelta(days=7)
    assert not renewal_due(watch, clock.now())
    assert renewal_due(watch, clock.now() + timedelta(days=1))
