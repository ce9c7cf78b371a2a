"""Login: the loopback flow with PKCE, refresh, revocation, and what a token says of itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from postroom.domain.clock import ManualClock
from postroom.sim.gmail import oauth
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.gmail_sim import api_client, plain_client
from tests.support.mail import mailbox

VERIFIER = "v" * 50
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
REDIRECT = "http://127.0.0.1:9/back"
CLIENT = "app.apps.example"
ASKED = {
    "response_type": "code",
    "client_id": CLIENT,
    "redirect_uri": REDIRECT,
    "scope": f"openid {oauth.READONLY} {oauth.MODIFY}",
    "state": "s 1",
    "code_challenge": CHALLENGE,
    "code_challenge_method": "S256",
}


@pytest.fixture
async def login(sim: GmailSim) -> AsyncIterator[httpx2.AsyncClient]:
    async with plain_client(sim.url) as client:
        yield client


async def consent(login: httpx2.AsyncClient, **changed: str) -> str:
    answer = await login.get("/o/oauth2/v2/auth", params=ASKED | changed)
    assert answer.status_code == 302
    back = urlsplit(answer.headers["Location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == REDIRECT
    assert parse_qs(back.query)["state"] == ["s 1"]
    return parse_qs(back.query)["code"][0]


async def redeem(login: httpx2.AsyncClient, code: str, **changed: str) -> httpx2.Response:
    form = {"grant_type": "authorization_code", "code": code, "client_id": CLIENT, "redirect_uri": REDIRECT}
    return await login.post("/token", data=form | {"code_verifier": VERIFIER} | changed)


async def refresh(login: httpx2.AsyncClient, token: str, client_id: str = CLIENT) -> httpx2.Response:
    form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": client_id}
    return await login.post("/token", data=form)


async def test_consent_code_and_token_open_the_mailbox(sim: GmailSim, login: httpx2.AsyncClient) -> None:
    granted = (await redeem(login, await consent(login))).json()
    assert granted["expires_in"] > 0
    assert set(granted["scope"].split()) == {oauth.READONLY, oauth.MODIFY}
    async with api_client(sim.url, granted["access_token"]) as api:
        assert (await api.get("profile")).json()["emailAddress"] == sim.email
    info = (await login.get("/tokeninfo", params={"access_token": granted["access_token"]})).json()
    assert info["scope"] == granted["scope"]
    again = (await refresh(login, granted["refresh_token"])).json()
    assert again["access_token"] != granted["access_token"]
    assert "refresh_token" not in again


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"code_verifier": "w" * 50}, "invalid_grant"),
        ({"code_verifier": ""}, "invalid_grant"),
        ({"client_id": "other"}, "invalid_grant"),
        ({"code": "4/made-up"}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:9/other"}, "redirect_uri_mismatch"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
    ],
)
async def test_a_code_is_worth_nothing_to_others(
    login: httpx2.AsyncClient, changed: dict[str, str], error: str
) -> None:
    code = await consent(login)
    answer = await redeem(login, changed.pop("code", code), **changed)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


async def test_a_code_works_once(login: httpx2.AsyncClient) -> None:
    code = await consent(login)
    assert (await redeem(login, code)).status_code == 200
    assert (await redeem(login, code)).json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    "changed",
    [
        {"redirect_uri": "https://evil.example/"},
        {"redirect_uri": ""},
        {"response_type": "token"},
        {"client_id": ""},
        {"code_challenge_method": "plain"},
        {"scope": "openid"},
    ],
)
async def test_a_bad_request_for_consent_gets_no_code(login: httpx2.AsyncClient, changed: dict[str, str]) -> None:
    answer = await login.get("/o/oauth2/v2/auth", params=ASKED | changed)
    assert answer.status_code == 400
    assert "Location" not in answer.headers


async def test_a_revoked_grant_is_over_for_good(sim: GmailSim, login: httpx2.AsyncClient) -> None:
    granted = (await redeem(login, await consent(login))).json()
    assert (await login.post("/revoke", data={"token": granted["refresh_token"]})).status_code == 200
    answer = await refresh(login, granted["refresh_token"])
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
    async with api_client(sim.url, granted["access_token"]) as api:
        assert (await api.get("profile")).status_code == 401
    async with api_client(sim.url, sim.token) as api:
        assert (await api.get("profile")).status_code == 200
    assert (await login.post("/revoke", data={"token": granted["refresh_token"]})).status_code == 400


async def test_an_access_token_runs_out_and_a_refresh_brings_a_new_one() -> None:
    clock = ManualClock()
    async with running_sim(mailbox(1), clock=clock) as sim, plain_client(sim.url) as login:
        granted = (await redeem(login, await consent(login))).json()
        clock.advance(granted["expires_in"])
        async with api_client(sim.url, granted["access_token"]) as api:
            assert (await api.get("profile")).status_code == 401
        info = await login.get("/tokeninfo", params={"access_token": granted["access_token"]})
        assert (info.status_code, info.json()["error"]) == (400, "invalid_token")
        fresh = (await refresh(login, granted["refresh_token"])).json()["access_token"]
        async with api_client(sim.url, fresh) as api:
            assert (await api.get("profile")).status_code == 200


async def test_the_token_endpoint_can_fail_on_command(sim: GmailSim, login: httpx2.AsyncClient) -> None:
    granted = (await redeem(login, await consent(login))).json()
    sim.control.add_fault(FaultRule(method="token", times=1, fault=GmailFault(kind="error", code=503)))
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=500)))
    assert (await refresh(login, granted["refresh_token"])).status_code == 503
    assert (await refresh(login, granted["refresh_token"])).status_code == 200
