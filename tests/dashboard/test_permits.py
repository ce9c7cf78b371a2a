"""What a token may do over the API: every route names its permission, and a token for one mailbox stays in it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from postroom.dashboard.context import Permit, permit_of
from postroom.domain.ids import new_id
from postroom.domain.roles import Permission, Role, all_permissions
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, open_site
from tests.support.mail import ME
from tests.support.switchboards import in_a_task

pytestmark = pytest.mark.req("HW-4")

DESCRIPTION = "/api/openapi.json"
OTHER = "other@example.org"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """On one database: what is decided here is decided before any is asked, but for the mailbox of an action."""
    async with in_a_task(open_site(tmp_path / "home")) as opened:
        yield opened


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    permit: Permit

    def at(self, **known: str) -> str:
        return re.sub(r"{(\w+)(:\w+)?}", lambda found: known.get(found[1], new_id()), self.path)


def api_routes(site: Site) -> list[Route]:
    """Every route of the API; one that names no permission fails the test here."""
    found = []
    for context in iter_route_contexts(site.dashboard.pages.routes):
        path = str(context.path)
        if not path.startswith("/api/") or path == DESCRIPTION:
            continue
        permit = permit_of(context.endpoint)
        assert permit is not None, f"{path} names no permission: put @permits(..) before it"
        found += [Route(method, path, permit) for method in sorted(context.methods or ())]
    assert len(found) > 60
    return found


async def ask(site: Site, token: str, route: Route, path: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer {token}"}
    return await site.http.request(route.method, path, headers=headers)


async def test_every_route_of_the_api_names_a_permission_that_dashboards_can_have(site: Site) -> None:
    used = {route.permit.permission for route in api_routes(site)}
    assert used == all_permissions(Role.DASHBOARD)


async def test_no_route_answers_a_token_without_its_permission(site: Site) -> None:
    every = all_permissions(Role.DASHBOARD)
    tokens = {lacking: await site.token(Role.DASHBOARD, permissions=every - {lacking}) for lacking in every}
    for route in api_routes(site):
        answer = await ask(site, tokens[route.permit.permission], route, route.at())
        assert answer.status_code == 403, route
        assert route.method == "HEAD" or f"`{route.permit.permission}`" in answer.json()["error"]["message"]


async def test_a_new_token_can_neither_approve_nor_make_tokens(site: Site) -> None:
    token = await site.token(Role.DASHBOARD, permissions=None)
    for route in api_routes(site):
        if route.permit.permission in (Permission.APPROVE, Permission.TOKENS):
            assert (await ask(site, token, route, route.at())).status_code == 403, route


async def test_no_route_answers_a_bound_token_about_another_mailbox_or_all(site: Site) -> None:
    await scene.add_mailbox(site)
    token = await site.token(Role.DASHBOARD, endpoint_identity=ME)
    for route in api_routes(site):
        if route.permit.keeps_to_mailbox:
            continue
        path = route.at(account=OTHER, identity=OTHER)
        for query in ("", f"?account={OTHER}", f"?account={ME}&account={OTHER}"):
            answer = await ask(site, token, route, path + query)
            assert answer.status_code == 403, (route, query)


async def test_a_bound_token_reads_its_own_mailbox(site: Site) -> None:
    await scene.add_mailbox(site)
    token = await site.token(Role.DASHBOARD, endpoint_identity=ME)
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        for path in ("/api/actions", "/api/backfill/jobs", "/api/archive/bad"):
            assert (await program.get(f"{path}?account={ME}")).status_code == 200, path
        assert (await program.get(f"/api/mail?account={ME}")).status_code == 422, "there is no mail of it yet"
        named = (await program.get("/api/mail")).json()["error"]["message"]
        assert "`account=`" in named


def asked(method: str, path: str, **body: Any) -> tuple[str, str, dict[str, Any]]:
    return method, path, body


async def test_routes_that_name_their_mailbox_in_the_body_leave_the_question_to_the_tool(site: Site) -> None:
    await scene.add_mailbox(site, OTHER)
    token = await site.token(Role.DASHBOARD, endpoint_identity=ME)
    job = await scene.add_backfill_job(site, endpoint_identity=OTHER)
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        for method, path, body in (
            asked("POST", "/api/backfill/estimate", endpoint_identity=OTHER),
            asked("POST", f"/api/backfill/jobs/{job}/pause"),
            asked("POST", f"/api/backfill/jobs/{job}/resume"),
            asked("POST", f"/api/backfill/jobs/{job}/cancel"),
            asked("GET", f"/api/backfill/jobs/{job}"),
            asked("POST", f"/api/approvals/{new_id()}", verdict="approve"),
            asked("POST", f"/api/actions/{new_id()}/undo"),
            asked("POST", f"/api/actions/{new_id()}/retry"),
            asked("POST", f"/api/actions/{new_id()}/cancel"),
            asked("POST", f"/api/actions/{new_id()}/wake"),
            asked("POST", f"/api/actions/{new_id()}/sleep", until="2030-01-01T00:00:00Z"),
        ):
            answer = await program.request(method, path, json=body or None)
            assert answer.status_code == 403, path
