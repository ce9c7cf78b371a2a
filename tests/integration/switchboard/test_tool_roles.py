"""Who may do what: every tool with every role and every kind of bad token, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest

from postroom.domain.errors import NotAllowed, PostroomError
from postroom.domain.roles import Role, all_permissions
from postroom.switchboard.tokens import list_tokens, revoke_token
from tests.support.databases import on_sqlite
from tests.support.switchboards import REQUEST_BYTES, Bench, in_a_task, served, stranger

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture
async def mcp(bench: Bench) -> AsyncIterator[str]:
    async with in_a_task(served(bench)) as url:
        yield url


async def knock(url: str, token: str | None, **more: object) -> httpx2.Response:
    headers = HEADERS if token is None else {**HEADERS, "Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient() as http:
        return await http.post(url, json=LIST, headers=headers, **more)  # type: ignore[arg-type]


@pytest.mark.req("BF-3", "BF-2")
@on_sqlite
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_every_tool_answers_its_own_role_and_refuses_the_others(bench: Bench, mcp: str, mode: str) -> None:
    tools = list(bench.toolbox)
    assert {tool.role for tool in tools} == set(Role)
    for role in Role:
        async with stranger(mcp, await bench.token(role, permissions=all_permissions(role)), mode) as call:
            listed = {tool.name for tool in (await call.client.list_tools()).tools}
            assert listed == {name for tool in tools if tool.role is role for name in tool.names}
            for tool in tools:
                for name in {tool.name, tool.alias}:
                    outcome = await refusal(call, name)
                    if tool.role is role:
                        assert not isinstance(outcome, NotAllowed), name
                    else:
                        assert isinstance(outcome, NotAllowed), name
                        assert f"not allowed for role {role}" in outcome.message


async def refusal(call: object, name: str) -> PostroomError | None:
    try:
        await call(name, {"surprise": 1})  # type: ignore[operator]
    except PostroomError as error:
        return error
    return None


@pytest.mark.req("BF-3", "PL-7")
async def test_without_a_good_token_nothing_is_told(bench: Bench, mcp: str) -> None:
    now = bench.queue.clock.now()
    good = await bench.token(Role.CONNECTOR)
    expired = await bench.token(Role.CONNECTOR, now=now - timedelta(days=2), expires_days=1, name="expired")
    revoked = await bench.token(Role.DASHBOARD, name="revoked")
    [entry] = [token for token in await bench.database.read(list_tokens) if token.name == "revoked"]
    assert (await knock(mcp, revoked)).status_code == 200
    await bench.database.write(lambda tx: revoke_token(tx, entry.id, now))
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    for token in (None, wrong, expired, revoked, good.upper(), "prt_", "x" * 10_000, good + " x"):
        answer = await knock(mcp, token)
        assert answer.status_code == 401, token
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "tools" not in answer.text
    assert (await knock(mcp, good)).status_code == 200


@pytest.mark.req("PL-7")
async def test_a_token_counts_in_one_plain_header_only(bench: Bench, mcp: str) -> None:
    good = await bench.token(Role.AGENT)
    async with httpx2.AsyncClient() as http:
        for headers in (
            [*HEADERS.items(), ("Authorization", f"Basic {good}")],
            [*HEADERS.items(), ("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")],
            [*HEADERS.items(), ("Authorization", good)],
        ):
            assert (await http.post(mcp, json=LIST, headers=headers)).status_code == 401
        assert (await http.post(f"{mcp}?token={good}", json=LIST, headers=HEADERS)).status_code == 401


@pytest.mark.req("PL-7")
async def test_a_web_page_cannot_reach_it_by_a_name_of_its_own(bench: Bench, mcp: str) -> None:
    good = await bench.token(Role.AGENT)
    async with httpx2.AsyncClient(headers={**HEADERS, "Authorization": f"Bearer {good}"}) as http:
        assert (await http.post(mcp, json=LIST, headers={"Host": "evil.example:80"})).status_code == 421
        assert (await http.post(mcp, json=LIST, headers={"Origin": "https://evil.example"})).status_code == 403


async def test_only_post_is_served_and_large_requests_are_not(bench: Bench, mcp: str) -> None:
    good = await bench.token(Role.CONNECTOR)
    async with httpx2.AsyncClient(headers={**HEADERS, "Authorization": f"Bearer {good}"}) as http:
        for method in ("GET", "DELETE", "PUT"):
            assert (await http.request(method, mcp)).status_code == 405
        assert (await http.post(mcp, content=b"x" * (REQUEST_BYTES + 1))).status_code == 413
        for junk in (b"", b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b"[" * 100_000, b"\xff"):
            assert 400 <= (await http.post(mcp, content=junk)).status_code < 500
    assert (await knock(mcp, good)).status_code == 200


@pytest.mark.req("PL-6")
async def test_health_and_metrics_tell_no_secret(bench: Bench, mcp: str) -> None:
    token = await bench.token(Role.CONNECTOR)
    base = mcp.removesuffix("/mcp")
    await knock(mcp, token)
    async with httpx2.AsyncClient() as http:
        health = await http.get(f"{base}/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        assert (await http.get(f"{base}/metrics")).status_code == 401
        assert (await http.get(f"{base}/metrics", headers={"Authorization": f"Bearer {token}"})).status_code == 401
        metrics = await http.get(f"{base}/metrics", headers={"Authorization": f"Bearer {'m' * 16}"})
        assert metrics.status_code == 200
        assert token not in metrics.text
        assert (await http.get(f"{base}/elsewhere")).status_code == 404


async def test_an_error_names_its_field_and_repeats_no_secret(bench: Bench, mcp: str) -> None:
    token = await bench.token(Role.DASHBOARD)
    async with stranger(mcp, token) as call:
        result = await call.client.call_tool("backfill.pause", {"job_id": token})
    assert result.is_error
    said = json.dumps(result.model_dump(mode="json"))
    assert "job_id" in said
    assert token not in said


async def test_the_last_use_of_a_token_is_noted(bench: Bench, mcp: str) -> None:
    await knock(mcp, await bench.token(Role.CONNECTOR, name="used"))
    await bench.token(Role.CONNECTOR, name="idle")
    used = {token.name: token.last_used_at for token in await bench.database.read(list_tokens)}
    assert used["used"] is not None
    assert used["idle"] is None
