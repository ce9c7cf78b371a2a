"""The whole API, called with everything that its description allows and with much that it does not.

Nothing breaks it, and every answer is one that the description names. The calls are the same each time; `make chaos`
makes more of them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from postroom.domain.ids import new_id
from postroom.domain.roles import Role
from tests.support.backfills import BACKFILL_ON
from tests.support.dashboards import open_site
from tests.support.furnished_dashboards import FurnishedDashboard, furnish
from tests.support.switchboards import in_a_task

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SAID = "<b>&\u202e'\""
_QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "print_blob": False}


@pytest.fixture
async def furnished(database_url: str, tmp_path: Path) -> AsyncIterator[FurnishedDashboard]:
    async with in_a_task(open_site(tmp_path / "home", database_url, **BACKFILL_ON)) as site:
        yield await furnish(site, SAID)


async def test_no_call_breaks_the_api_or_gets_an_undescribed_answer(tmp_path: Path) -> None:
    """On one database; the long run is on both."""
    async with open_site(tmp_path / "home", **BACKFILL_ON) as site:
        called = await _called(await furnish(site, SAID), examples=1)
    assert called.failures == []
    assert called.calls > 200


async def test_an_address_that_is_too_long_is_answered_as_described(furnished: FurnishedDashboard) -> None:
    site = furnished.site
    described = (await site.get("/api/openapi.json")).json()
    assert all("414" in operation["responses"] for path in described["paths"].values() for operation in path.values())
    answer = await asyncio.to_thread(requests.get, f"{site.url}/api/queue?after={'q' * 9_000}", timeout=60)
    kind = answer.headers["content-type"]
    assert answer.status_code == 414
    assert kind in described["paths"]["/api/queue"]["get"]["responses"]["414"]["content"]


@pytest.mark.chaos
async def test_no_call_of_very_many_breaks_the_api_or_gets_an_undescribed_answer(furnished: FurnishedDashboard) -> None:
    called = await _called(furnished, examples=100)
    assert called.failures == []
    assert called.calls > 5_000


ODD = (
    "%00",
    "a%00b",
    "%ff",
    "%ed%a0%80",
    "9" * 400,
    "-" + "9" * 30,
    "1e999",
    "9999-99-99",
    "0000-00-00",
    "%F0%9F%92%A9",
)
"""As text in an address: no character, half of one, numbers and days that no machine has."""


async def test_odd_characters_and_numbers_in_any_place_are_refused_and_break_nothing(
    furnished: FurnishedDashboard,
) -> None:
    site = furnished.site
    described = (await site.get("/api/openapi.json")).json()
    asked = 0
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            for address, body in _oddities(path, operation, furnished.known_at(path), described):
                asked += 1
                content = None if body is None else json.dumps(body).encode()
                headers = {"x-csrf-token": site.csrf, "content-type": "application/json"}
                answer = await site.http.request(method, address, content=content, headers=headers)
                assert answer.status_code < 500, (method, address, body)
                assert str(answer.status_code) in operation["responses"], (method, address, body, answer.text)
    assert asked > 200


def _oddities(
    path: str, operation: dict[str, Any], known: dict[str, str], described: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Each parameter odd in turn, the others as they should be; each text of the body likewise."""
    for parameter in operation.get("parameters", ()):
        for odd in ODD:
            if parameter["in"] == "query":
                yield f"{_filled(path, known)}?{parameter['name']}={odd}", None
            elif parameter["in"] == "path":
                yield _filled(path, known | {parameter["name"]: odd}), None
    for name in _texts(operation, described):
        for text in ("\0", "a\0b", "\ud800", "W" * 10_000):
            yield _filled(path, known), {name: text}


def _filled(path: str, known: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], new_id()), path)


def _texts(operation: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """The names of what its body holds."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return []
    schema = content["schema"]
    name = schema.get("$ref", "").rpartition("/")[2]
    return list((described["components"]["schemas"][name] if name else schema).get("properties", ()))


Operation = APIOperation[Any, Any, Any, Any]


@dataclass
class Caller:
    """Calls each operation, neither more nor in another order next time; what fails is kept, and the rest called."""

    session: requests.Session
    url: str
    examples: int
    calls: int = 0
    failures: list[str] = field(default_factory=list)

    def call_everything(self, furnished: FurnishedDashboard) -> None:
        described = self.session.get(f"{self.url}/api/openapi.json", timeout=60).json()
        for found in schemathesis.openapi.from_dict(described).get_all_operations():
            assert isinstance(found, Ok)
            operation: Operation = found.ok()
            known = furnished.known_at(operation.path)
            given = {each.name: known[each.name] for each in operation.path_parameters if each.name in known}
            for parameters in [given, {}] if given else [{}]:
                self._call(operation, GenerationMode.POSITIVE, parameters)
                with suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
                    self._call(operation, GenerationMode.NEGATIVE, parameters)

    def _call(self, operation: Operation, mode: GenerationMode, fixed: dict[str, str]) -> None:
        @settings(max_examples=self.examples, derandomize=True, phases=[Phase.generate], **_QUIET)  # type: ignore[arg-type]
        @given(case=operation.as_strategy(mode, path_parameters=dict(fixed) or None))
        def run(case: Case[Any]) -> None:
            self.calls += 1
            if isinstance(case.body, dict) and case.body.get("source") is True:
                case.body["source"] = False  # no worker runs here, so that half a minute would be waited for one
            case.call_and_validate(base_url=self.url, session=self.session, checks=CHECKS, timeout=60)

        try:
            run()
        except (FailureGroup, requests.RequestException) as error:
            self.failures.append(f"{operation.label}: {error}")


async def _called(furnished: FurnishedDashboard, examples: int) -> Caller:
    with requests.Session() as session:
        session.headers["authorization"] = f"Bearer {await furnished.site.token(Role.DASHBOARD)}"
        caller = Caller(session, furnished.site.url, examples)
        await asyncio.to_thread(caller.call_everything, furnished)
    return caller
