"""Nobody without a login or the right token sees or does anything: every route, walked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from postroom.audit import SYSTEM
from postroom.dashboard.security.gate import is_open
from postroom.dashboard.security.sessions import csrf_token, end_session, find_session, list_sessions
from postroom.domain.ids import new_id
from postroom.domain.roles import Role
from postroom.settings import DashboardSettings
from postroom.switchboard.tokens import list_tokens, revoke_token
from tests.support.dashboards import Site, log_in, open_site
from tests.support.switchboards import in_a_task

SAFE = ("GET", "HEAD")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """On one database: the gate's few statements are tested on both with sessions and tokens."""
    async with in_a_task(open_site(tmp_path / "home")) as opened:
        yield opened


@dataclass(frozen=True)
class Route:
    method: str
    path: str

    @property
    def changes(self) -> bool:
        return self.method not in SAFE


def all_routes(site: Site) -> list[Route]:
    """Every route of the application, its parameters filled in; what has no path or method would escape the tests."""
    found = []
    for context in iter_route_contexts(site.dashboard.pages.routes):
        assert context.path is not None
        assert context.methods, context.path
        path = re.sub(r"\{[^}]+\}", new_id(), context.path)
        found += [Route(method, path) for method in sorted(context.methods)]
    return found


def routes_of(site: Site) -> list[Route]:
    """Those that are not open to strangers."""
    found = [route for route in all_routes(site) if not is_open(route.path)]
    assert len(found) > 100
    return found


async def end(site: Site, secret: str) -> None:
    now, settings = site.app.clock.now(), site.app.settings.dashboard
    session = await site.read(lambda tx: find_session(tx, secret, settings, now))
    assert session is not None
    await site.write(lambda tx: end_session(tx, session.id, now))


async def ask(http: httpx2.AsyncClient, route: Route, **headers: str) -> httpx2.Response:
    return await http.request(route.method, route.path, headers=headers)


@pytest.mark.req("PL-7")
async def test_no_route_answers_a_stranger(site: Site) -> None:
    async with site.stranger() as stranger:
        for route in [*routes_of(site), Route("GET", "/no/such/page")]:
            program = await ask(stranger, route, accept="application/json")
            assert program.status_code == 401, route
            assert route.method == "HEAD" or program.json()["error"]["kind"] == "not_allowed"
            person = await ask(stranger, route, accept="text/html")
            assert person.status_code == (303 if route.method == "GET" else 401), route
            if route.method == "GET":
                assert person.headers["location"].startswith("/login?next=")


@pytest.mark.req("PL-7")
@pytest.mark.parametrize("role", [Role.CONNECTOR, Role.AGENT])
async def test_no_route_answers_a_token_of_another_role(site: Site, role: Role) -> None:
    token = await site.token(role)
    async with site.stranger() as stranger:
        for route in routes_of(site):
            answer = await ask(stranger, route, authorization=f"Bearer {token}", accept="application/json")
            assert answer.status_code == (403 if route.path.startswith("/api/") else 401), route


@pytest.mark.req("PL-7")
async def test_only_the_entrance_and_the_style_are_open_to_strangers(site: Site) -> None:
    opened = {(route.method, route.path.partition("?")[0]) for route in all_routes(site) if is_open(route.path)}
    pages = {(method, path) for method, path in opened if not path.startswith("/static/")}
    entrance = {("GET", "/login"), ("POST", "/login"), ("GET", "/welcome"), ("POST", "/welcome")}
    assert pages == entrance | {("GET", "/manifest.webmanifest")}
    assert {method for method, path in opened if path.startswith("/static/")} == {"GET"}


@pytest.mark.req("PL-7")
async def test_no_route_answers_what_was_good_once(site: Site) -> None:
    """The cookie of a login that was ended, with its own CSRF token; a token of the right role that was revoked."""
    secret = await log_in(site.app)
    await end(site, secret)
    token = await site.token(Role.DASHBOARD)
    now = site.app.clock.now()
    (made,) = await site.read(list_tokens)
    await site.write(lambda tx: revoke_token(tx, made.id, now, SYSTEM))
    stale = {"x-csrf-token": csrf_token(secret)}
    async with site.stranger(cookies={next(iter(site.cookie)): secret}) as ended, site.stranger() as program:
        for route in routes_of(site):
            assert (await ask(ended, route, accept="application/json", **stale)).status_code == 401, route
            answer = await ask(program, route, accept="application/json", authorization=f"Bearer {token}")
            assert answer.status_code == 401, route


@pytest.mark.req("PL-7")
async def test_a_token_of_another_role_is_refused_even_beside_a_good_session(site: Site) -> None:
    token = await site.token(Role.AGENT)
    for route in routes_of(site):
        answer = await ask(site.http, route, authorization=f"Bearer {token}", accept="application/json")
        assert answer.status_code in (401, 403), route


@pytest.mark.req("PL-7")
async def test_no_change_is_made_without_the_csrf_token_of_this_very_session(site: Site) -> None:
    other, stale = await log_in(site.app), await log_in(site.app)
    await end(site, stale)
    for route in (route for route in routes_of(site) if route.changes):
        for token in (None, "", "nonsense", csrf_token(other), csrf_token(stale)):
            headers = {} if token is None else {"x-csrf-token": token}
            assert (await ask(site.http, route, accept="application/json", **headers)).status_code == 403, route
            form = {} if token is None else {"csrf": token}
            assert (await site.http.request(route.method, route.path, data=form)).status_code == 403, route


@pytest.mark.req("PL-7")
async def test_no_change_is_made_for_a_page_of_another_site(site: Site) -> None:
    """Even with the right token, which no other site has."""
    for route in (route for route in routes_of(site) if route.changes):
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "https://evil.example"},
        ):
            answer = await ask(site.http, route, **headers, **{"x-csrf-token": site.csrf})
            assert answer.status_code == 403, route


async def test_a_program_with_a_token_of_the_role_may_use_the_api_without_csrf(site: Site) -> None:
    token = await site.token(Role.DASHBOARD)
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        assert (await program.get("/api/queue")).status_code == 200
        assert (await program.post("/api/queue/retry-failed", json={"type": "classify"})).status_code == 200
        assert (await program.get("/queue")).status_code == 401


@pytest.mark.req("PL-7")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80", "[::2]"])
async def test_a_name_that_was_made_to_point_here_reaches_nothing(site: Site, host: str) -> None:
    for path in ("/", "/login", "/static/app.css", "/api/queue"):
        assert (await site.get(path, headers={"host": host})).status_code == 421


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
async def test_loopback_names_reach_it_by_any_port(site: Site, host: str) -> None:
    assert (await site.get("/login", headers={"host": host})).status_code in (200, 303)


async def test_behind_tls_it_is_called_by_its_public_name_and_its_cookie_is_bound_to_it(tmp_path: Path) -> None:
    settings = DashboardSettings(url="https://post.example.org")
    async with open_site(tmp_path / "home", dashboard=settings) as site:
        headers = {"host": "post.example.org", "cookie": f"__Host-postroom={site.secret}"}
        page = await site.http.get("/queue", headers=headers)
        assert page.status_code == 200
        assert page.headers["strict-transport-security"]
        out = await site.http.post(
            "/logout", headers={**headers, "origin": "https://post.example.org", "x-csrf-token": site.csrf}
        )
        assert "__Host-postroom" in out.headers["set-cookie"]
        assert "Secure" in out.headers["set-cookie"]


async def test_every_answer_carries_the_security_headers(site: Site) -> None:
    async with site.stranger() as stranger:
        for answer in (
            await site.get("/queue"),
            await site.get("/no/such/page"),
            await stranger.get("/queue"),
            await stranger.get("/login"),
            await site.get("/api/queue"),
            await site.get("/queue", headers={"host": "evil.example"}),
        ):
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-store"


async def test_no_page_has_script_or_style_of_its_own(site: Site) -> None:
    for path in ("/queue", "/no/such/page"):
        html = (await site.get(path)).text
        assert not re.search(r"<style|style=|<script(?![^>]* src=\"/static/)|\son\w+=", html)


async def test_a_session_that_was_ended_elsewhere_opens_nothing(site: Site) -> None:
    assert (await site.get("/queue")).status_code == 200
    now, settings = site.app.clock.now(), site.app.settings.dashboard
    (session,) = await site.read(lambda tx: list_sessions(tx, settings, now))
    await site.write(lambda tx: end_session(tx, session.id, now))
    assert (await site.get("/queue")).status_code == 401


async def test_a_body_that_is_too_large_is_refused_before_it_is_read_through(site: Site) -> None:
    answer = await site.http.post("/logout", content=b"x" * 1_100_000, headers={"x-csrf-token": site.csrf})
    assert answer.status_code == 413
    assert (await site.get("/queue")).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=x", b"nonsense"),
        ("multipart/form-data", b"--x"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n'),
        ("application/x-www-form-urlencoded", b"&".join(b"a%d=1" % n for n in range(5_000))),
        ("application/x-www-form-urlencoded", b"csrf=%ff%00&\xff=\x00"),
    ],
    ids=["garbage", "no boundary", "cut off", "too many fields", "no text"],
)
async def test_a_form_that_cannot_be_read_changes_nothing(site: Site, kind: str, body: bytes) -> None:
    answer = await site.http.post("/logout", content=body, headers={"content-type": kind})
    assert answer.status_code in (403, 422)
    assert (await site.get("/queue")).status_code == 200


async def test_wrong_addresses_and_methods_are_told_as_pages_and_as_json(site: Site) -> None:
    page = await site.get("/no/such/page")
    assert (page.status_code, "Not found" in page.text) == (404, True)
    api = await site.get("/api/no/such/thing")
    assert (api.status_code, api.json()["error"]["kind"]) == (404, "not_found")
    assert (await site.http.request("DELETE", "/queue", headers={"x-csrf-token": site.csrf})).status_code == 405


async def test_a_fault_is_a_page_with_a_word_to_look_for_in_the_log(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tx: object) -> None:
        raise ZeroDivisionError("secret details")

    monkeypatch.setattr("postroom.dashboard.queue.queue_overview", broken)
    monkeypatch.setattr("postroom.dashboard.queue.queue_overview", broken)
    page = await site.get("/queue")
    assert page.status_code == 500
    assert "error in Postroom" in page.text
    assert "secret details" not in page.text
    assert page.headers["content-security-policy"]
    api = await site.get("/api/queue")
    assert (api.status_code, api.json()["error"]["kind"]) == (500, "fatal")


async def test_the_api_describes_itself_and_its_refusals(site: Site) -> None:
    described = (await site.get("/api/openapi.json")).json()
    jobs = described["paths"]["/api/queue/jobs"]["get"]
    assert set(jobs["responses"]) >= {"200", "401", "403", "404", "422"}
    assert not [path for path in described["paths"] if not path.startswith("/api/")]


async def test_style_and_script_may_be_kept_by_browsers_as_long_as_their_name_holds(site: Site) -> None:
    html = (await site.get("/queue")).text
    (style,) = re.findall(r'href="(/static/app\.css\?v=\w+)"', html)
    async with site.stranger() as stranger:
        answer = await stranger.get(style)
        assert "immutable" in answer.headers["cache-control"]
        assert (await stranger.get("/static/app.css")).headers["cache-control"] == "no-cache"
        assert (await stranger.get("/static/..%2f__init__.py")).status_code in (401, 404)


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/settings/tokens", "/settings"),
        ("/settings/accounts/labels", "/settings"),
        ("/web/sources", "/web"),
        ("/rules/guidance", "/rules"),
        ("/filters/contacts/remove", "/filters/contacts"),
        ("/queue/retry", "/queue"),
        ("/backfill/switch", "/backfill"),
        ("/checklist", "/"),
    ],
)
async def test_opening_an_address_that_only_takes_forms_leads_to_the_page_above(
    site: Site, path: str, above: str
) -> None:
    """As a reload after a form was refused does."""
    while (answer := await site.get(path)).status_code == 303:
        path = answer.headers["location"]
    assert (answer.status_code, path) == (200, above)
    assert (await site.api("GET", "/rules/none/apply")).status_code != 303
