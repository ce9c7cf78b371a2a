"""Logging in and staying logged in, against the stand-in's consent and token endpoints."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from postroom.domain.clock import SystemClock
from postroom.domain.errors import Fatal, NotAllowed, Retryable
from postroom.mailboxes.browser_login import TokenEndpoint, login_visit
from postroom.mailboxes.credentials import (
    GrantStore,
    OAuthCredentials,
    StaticCredentials,
    StaticGrant,
    credentials_for,
)
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.first_login import log_in
from postroom.mailboxes.gmail.client import connected
from postroom.mailboxes.gmail.methods import CHANGE, EVERYTHING, missing_scope, scopes_to_request
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.telemetry import logs
from postroom.vault import Vault
from tests.support.gmail_sim import UNHURRIED
from tests.support.logins import SECRET, app_at, consent, logged_in, stored
from tests.support.mail import OWNER, mailbox
from tests.support.web_servers import answering, page

CLOCK = SystemClock()
DEAD_PORT = "http://127.0.0.1:1"


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(mailbox(1)) as running:
        yield running


def token_calls(sim: GmailSim) -> int:
    return sim.control.state().calls.get("token", 0)


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def test_a_login_brings_a_grant_of_the_least_scope_that_the_product_needs(sim: GmailSim, tmp_path: Path) -> None:
    _, grant = await logged_in(sim, tmp_path, CLOCK)
    assert (grant.email, grant.api_base, grant.scopes) == (OWNER, sim.url, frozenset({CHANGE}))
    assert grant.refresh_token.startswith("1//")
    assert timedelta(minutes=50) < grant.expires_at - CLOCK.now() <= timedelta(hours=1)
    _, full = await logged_in(sim, tmp_path, CLOCK, full_access=True)
    assert full.scopes == {EVERYTHING}


async def test_the_consent_page_gets_a_challenge_a_state_and_a_loopback_address(sim: GmailSim) -> None:
    urls = []
    for _ in range(2):
        async with login_visit(app_at(sim.url), scopes_to_request(full_access=False), OWNER) as login:
            urls.append(query_of(login.url))
            assert login.pkce.verifier not in login.url
            assert urls[-1]["code_challenge"] == login.pkce.challenge
            assert 43 <= len(login.pkce.verifier) <= 128
    first, second = urls
    assert first["code_challenge_method"] == "S256"
    assert urlsplit(first["redirect_uri"]).hostname == "127.0.0.1"
    assert (first["access_type"], first["prompt"], first["login_hint"]) == ("offline", "consent", OWNER)
    assert first["scope"] == CHANGE
    assert len(first["state"]) >= 32
    assert first["state"] != second["state"]
    assert first["code_challenge"] != second["code_challenge"]


async def test_a_code_without_its_verifier_is_worth_nothing(sim: GmailSim) -> None:
    """What PKCE is for: whoever sees the redirect cannot use it."""
    async with login_visit(app_at(sim.url), scopes_to_request(full_access=False), OWNER) as login:
        await consent(login.url)
        code = await login.code(5)
        form = {"grant_type": "authorization_code", "code": code, "client_id": "app.example"}
        form |= {"redirect_uri": login.redirect_uri, "code_verifier": "a-guess"}
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"{sim.url}/token", data=form)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


async def test_a_code_that_is_worth_nothing_any_more_is_said_to_be_so(sim: GmailSim) -> None:
    with pytest.raises(LoginNeeded, match="it was used before or is too old"):
        await TokenEndpoint(app_at(sim.url), OWNER, CLOCK).redeem("4/used", "verifier", "http://127.0.0.1:1/")


async def test_strangers_at_the_port_are_turned_away_and_the_wait_goes_on(sim: GmailSim) -> None:
    async with login_visit(app_at(sim.url), scopes_to_request(full_access=False), OWNER) as login:
        state = query_of(login.url)["state"]
        async with httpx2.AsyncClient(base_url=login.redirect_uri, trust_env=False) as http:
            for path, status in (
                ("/favicon.ico", 404),
                ("/", 400),
                ("/?code=stolen", 400),
                ("/?code=stolen&state=wrong", 400),
                ("/?error=access_denied&state=wrong", 400),
                (f"/?state={state}", 400),
            ):
                assert (await http.get(path)).status_code == status
            assert (await http.post(f"/?code=x&state={state}")).status_code == 405
        for nonsense in (b"", b"\r\n\r\n", b"\xff\xff\xff\r\n\r\n", b"GET " + b"x" * 40_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(login.redirect_uri).port)
            writer.write(nonsense)
            writer.write_eof()
            assert b"Postroom has" not in await reader.read()
            writer.close()
        answer = await consent(login.url)
        assert "You can close this window" in answer.text
        assert answer.headers["content-security-policy"] == "default-src 'none'"
        assert (await login.code(60)).startswith("4/")


async def test_an_idle_connection_of_the_browser_does_not_hold_the_login_up(sim: GmailSim) -> None:
    async with asyncio.timeout(60):
        async with login_visit(app_at(sim.url), scopes_to_request(full_access=False), OWNER) as login:
            _, idle = await asyncio.open_connection("127.0.0.1", urlsplit(login.redirect_uri).port)
            await consent(login.url)
            await login.code(60)
        idle.close()


async def test_an_owner_who_declines_is_understood(sim: GmailSim) -> None:
    async with login_visit(app_at(sim.url), scopes_to_request(full_access=False), OWNER) as login:
        state = query_of(login.url)["state"]
        await consent(f"{login.redirect_uri}?error=access_denied&state={state}")
        with pytest.raises(NotAllowed, match="declined on Google's page"):
            await login.code(5)


async def test_a_login_that_nobody_finishes_ends_with_what_to_do(sim: GmailSim) -> None:
    shown: list[str] = []
    with pytest.raises(Fatal, match="The login was not finished within 0 seconds; nothing was stored"):
        await log_in(app_at(sim.url), OWNER, CLOCK, show=shown.append, timeout_s=0.01)
    assert len(shown) == 1


async def test_a_box_left_unticked_on_the_consent_page_is_noticed() -> None:
    granted = b'{"access_token": "x", "expires_in": 10, "refresh_token": "y", "scope": "openid"}'
    browsers = []
    async with running_sim(mailbox(1)) as sim, answering(page(granted, content_type="application/json")) as token_url:
        app = app_at(sim.url)
        elsewhere = type(app)(app.client_id, app.client_secret, app.auth_uri, token_url)
        with pytest.raises(NotAllowed, match="leave every box on Google's page ticked"):
            await log_in(
                elsewhere,
                OWNER,
                CLOCK,
                show=lambda url: browsers.append(asyncio.create_task(consent(url))),
            )
        await browsers[0]


@pytest.mark.parametrize(
    ("granted", "full_access", "enough"),
    [
        ({CHANGE}, False, True),
        ({EVERYTHING}, False, True),
        ({EVERYTHING}, True, True),
        ({CHANGE}, True, False),
        (set(), False, False),
    ],
)
def test_what_is_enough_and_what_to_do_if_not(granted: set[str], full_access: bool, enough: bool) -> None:
    missing = missing_scope(frozenset(granted), OWNER, full_access=full_access)
    assert (missing is None) is enough
    assert enough or f"postroom account add gmail --email {OWNER}" in (missing or "")
    assert enough or ("--full-access" in (missing or "")) is full_access


async def test_a_good_token_is_shown_without_asking_anybody(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    asked = token_calls(sim)
    credentials = credentials_for(grants, OWNER, CLOCK)
    assert await credentials.access_token() == grant.access_token
    assert await credentials.access_token(rejected="some older token") == grant.access_token
    assert token_calls(sim) == asked


async def test_a_token_about_to_end_is_renewed_before_it_is_shown(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    grants.save(grant.model_copy(update={"expires_at": CLOCK.now() + timedelta(seconds=30)}))
    renewed = await credentials_for(grants, OWNER, CLOCK).access_token()
    assert renewed != grant.access_token
    kept = grants.load(OWNER)
    assert (kept.access_token, kept.model_dump()["refresh_token"]) == (renewed, grant.refresh_token)


async def test_many_who_were_refused_cause_one_refresh(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    asked = token_calls(sim)
    here, there = (OAuthCredentials(grants, OWNER, CLOCK) for _ in range(2))
    calls = [each.access_token(rejected=grant.access_token) for each in (here, there) for _ in range(50)]
    tokens = set(await asyncio.gather(*calls))
    assert len(tokens) == 1
    assert grant.access_token not in tokens
    assert token_calls(sim) == asked + 1


async def ask_again(home: str, email: str, rejected: str) -> str:
    """In a process whose token has just been refused: ask for another on command."""
    credentials = OAuthCredentials(GrantStore(Vault(Path(home))), email, SystemClock())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    tokens = await asyncio.gather(*(credentials.access_token(rejected=rejected) for _ in range(10)))
    assert len(set(tokens)) == 1
    return tokens[0]


async def test_processes_that_were_refused_cause_one_refresh(sim: GmailSim, tmp_path: Path) -> None:
    """The loser of the race uses what the winner brought."""
    _, grant = await logged_in(sim, tmp_path, CLOCK)
    asked = token_calls(sim)
    command = [sys.executable, "-m", __name__, str(tmp_path), OWNER, grant.access_token]
    pipe = asyncio.subprocess.PIPE
    askers = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(3)]
    for asker in askers:
        assert asker.stdout is not None
        assert await asker.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(asker.communicate(b"go\n") for asker in askers))
    assert len({out for out, _ in outputs}) == 1
    assert token_calls(sim) == asked + 1


async def test_the_client_stays_logged_in_when_its_token_runs_out_under_it(sim: GmailSim, tmp_path: Path) -> None:
    grants, _ = await logged_in(sim, tmp_path, CLOCK)
    asked = token_calls(sim)
    limiter = limiter_for(None, CLOCK, tuning=UNHURRIED)
    config = TransportConfig(api_base=sim.url)
    async with connected(credentials_for(grants, OWNER, CLOCK), limiter, CLOCK, config=config) as client:
        for _ in range(2):
            profiles = await asyncio.gather(*(client.get_profile() for _ in range(20)))
            assert {profile.email for profile in profiles} == {OWNER}
            sim.control.expire_tokens()
        await client.get_profile()
    assert token_calls(sim) == asked + 2


async def test_a_caller_that_gives_up_leaves_the_lock_free(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="token", times=1))
    asked = token_calls(sim)
    first = OAuthCredentials(grants, OWNER, CLOCK)
    waiting = asyncio.create_task(first.access_token(rejected=grant.access_token))
    while token_calls(sim) == asked:
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    second = OAuthCredentials(grants, OWNER, CLOCK)
    for credentials in (first, second):
        assert await credentials.access_token(rejected=grant.access_token) != grant.access_token


@pytest.mark.req("PL-8")
async def test_a_revoked_grant_says_why_it_may_be_and_the_command_to_run(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    sim.control.revoke()
    with pytest.raises(LoginNeeded) as refusal:
        await credentials_for(grants, OWNER, CLOCK).access_token(rejected=grant.access_token)
    for part in ("access was withdrawn", '"Testing"', "seven days", f"account add gmail --email {OWNER}"):
        assert part in refusal.value.message
    assert "clock" not in refusal.value.message


@pytest.mark.parametrize(("hours", "direction"), [(1, "behind"), (-1, "ahead of")])
async def test_a_clock_an_hour_off_is_said_along_with_the_refusal(
    sim: GmailSim, tmp_path: Path, hours: int, direction: str
) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    sim.control.revoke()
    sim.control.skew = timedelta(hours=hours)
    with pytest.raises(LoginNeeded, match=rf"clock is (59|60|61) minutes {direction} that of 127\.0\.0\.1"):
        await credentials_for(grants, OWNER, CLOCK).access_token(rejected=grant.access_token)


async def test_a_clock_an_hour_off_is_logged_when_the_refresh_works_all_the_same(sim: GmailSim, tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(level="info", stream=stream)
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    sim.control.skew = timedelta(hours=1)
    renewed = await credentials_for(grants, OWNER, CLOCK).access_token(rejected=grant.access_token)
    assert "clock.skewed" in stream.getvalue()
    assert "60 minutes behind" in stream.getvalue()
    for secret in (renewed, grant.access_token, grant.refresh_token, SECRET):
        assert secret not in stream.getvalue()


@pytest.mark.req("PL-8")
@pytest.mark.parametrize(
    ("token_uri", "problem"),
    [
        ("https://nothing.invalid/token", "The name nothing.invalid cannot be resolved: this is a DNS"),
        (f"{DEAD_PORT}/token", "127.0.0.1 refused the connection"),
        ("https://127.0.0.1:1/token", "127.0.0.1 refused the connection"),
    ],
)
async def test_a_network_failure_is_never_mistaken_for_an_expired_login(
    tmp_path: Path, token_uri: str, problem: str
) -> None:
    grants = stored(tmp_path, api_base=DEAD_PORT, token_uri=token_uri, now=CLOCK.now())
    with pytest.raises(Retryable) as trouble:
        await credentials_for(grants, OWNER, CLOCK).access_token()
    assert trouble.value.message.startswith(problem)
    assert "The login itself was not refused" in trouble.value.message


@pytest.mark.parametrize("kind", ["drop", "truncate"])
async def test_a_connection_that_breaks_off_may_be_tried_again(sim: GmailSim, tmp_path: Path, kind: str) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    sim.control.add_fault(FaultRule.model_validate({"fault": {"kind": kind}, "method": "token", "times": 1}))
    credentials = credentials_for(grants, OWNER, CLOCK)
    with pytest.raises(Retryable):
        await credentials.access_token(rejected=grant.access_token)
    assert await credentials.access_token(rejected=grant.access_token) != grant.access_token


async def test_a_login_server_in_trouble_is_left_alone_for_as_long_as_it_says(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=503, retry_after_s=7), method="token"))
    with pytest.raises(Retryable, match=r"not able to answer now \(503\)") as trouble:
        await credentials_for(grants, OWNER, CLOCK).access_token(rejected=grant.access_token)
    assert trouble.value.retry_after == timedelta(seconds=7)


@pytest.mark.parametrize(
    ("answer", "error", "problem"),
    [
        (page(b"<html>Welcome to the hotel</html>"), Retryable, "captive portal"),
        (page(b'{"access_token": 7}', content_type="application/json"), Retryable, "is no token"),
        (page(b"[" * 10_000, content_type="application/json"), Retryable, "is no token"),
        (page(b'{"access_token": "x", "expires_in": NaN}', content_type="application/json"), Retryable, "is no token"),
        (page(b"not here", "404 Not Found"), Fatal, "does not answer like a login server"),
        (page(b'{"error": "invalid_client"}', "401 Unauthorized"), LoginNeeded, "client secrets are wrong"),
        (page(b'{"error": "org_internal"}', "403 Forbidden"), LoginNeeded, "org_internal"),
    ],
)
async def test_an_answer_that_is_no_token_is_told_apart(
    tmp_path: Path, answer: bytes, error: type[Exception], problem: str
) -> None:
    async with answering(answer) as url:
        grants = stored(tmp_path, api_base=url, token_uri=url, now=CLOCK.now())
        with pytest.raises(error, match=problem):
            await credentials_for(grants, OWNER, CLOCK).access_token()


async def test_a_bare_token_is_shown_until_it_is_refused(tmp_path: Path) -> None:
    grants = GrantStore(Vault(tmp_path))
    grants.save(StaticGrant(email=OWNER, access_token="ya29.bare-token"))  # noqa: S106 - made up
    credentials = credentials_for(grants, OWNER, CLOCK)
    assert isinstance(credentials, StaticCredentials)
    assert await credentials.access_token(rejected="another") == "ya29.bare-token"
    with pytest.raises(LoginNeeded, match="a bare token cannot be renewed"):
        await credentials.access_token(rejected="ya29.bare-token")


async def test_an_account_nobody_logged_in_to_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(LoginNeeded, match=r"owner@example\.com is not logged in here. Run `postroom account add"):
        credentials_for(GrantStore(Vault(tmp_path)), OWNER, CLOCK)


async def test_an_account_that_is_removed_under_a_running_process_needs_a_login(sim: GmailSim, tmp_path: Path) -> None:
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    credentials = credentials_for(grants, OWNER, CLOCK)
    grants.remove(OWNER)
    with pytest.raises(LoginNeeded, match="is not logged in here"):
        await credentials.access_token(rejected=grant.access_token)


@pytest.mark.req("PL-6")
async def test_no_token_is_readable_on_disk_in_a_repr_or_in_a_log(sim: GmailSim, tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(level="debug", stream=stream)
    grants, grant = await logged_in(sim, tmp_path, CLOCK)
    credentials = credentials_for(grants, OWNER, CLOCK)
    renewed = await credentials.access_token(rejected=grant.access_token)
    logs.get("postroom.test").info("x", text=f"{renewed} {grant.refresh_token}", grant=grants.load(OWNER))
    said = stream.getvalue() + repr(credentials) + repr(grant) + str(grant) + repr(grants.load(OWNER))
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (renewed, grant.access_token, grant.refresh_token, SECRET):
        assert secret not in said
        assert secret.encode() not in on_disk


if __name__ == "__main__":
    logs.configure(level="error")
    print(asyncio.run(ask_again(*sys.argv[1:])), flush=True)
