"""Routes whose signatures are read when they are first asked for."""

from __future__ import annotations

from typing import Annotated

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel

from postroom.dashboard.context import LateRoute


class Answer(BaseModel):
    doubled: int


def application() -> tuple[FastAPI, LateRoute]:
    router = APIRouter(route_class=LateRoute)

    @router.get("/double/{name}")
    async def double(name: str, number: Annotated[int, Query(ge=1)]) -> Answer:
        """Twice as much."""
        return Answer(doubled=number * 2)

    [route] = router.routes
    assert isinstance(route, LateRoute)
    return FastAPI(routes=[route]), route


async def ask(app: FastAPI, method: str, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://here.test") as client:
        return await client.request(method, path)


async def test_a_signature_is_read_by_the_first_request_and_obeyed() -> None:
    app, route = application()
    assert "dependant" not in vars(route)
    assert (await ask(app, "GET", "/double/x?number=0")).status_code == 422
    assert "dependant" in vars(route)
    assert (await ask(app, "GET", "/double/x?number=4")).json() == {"doubled": 8}


async def test_requests_for_others_read_nothing() -> None:
    app, route = application()
    assert (await ask(app, "GET", "/other")).status_code == 404
    assert (await ask(app, "POST", "/double/x")).status_code == 405
    assert "dependant" not in vars(route)


def test_a_description_reads_all() -> None:
    app, _ = application()
    [described] = app.openapi()["paths"].values()
    assert described["get"]["description"] == "Twice as much."
    assert [each["name"] for each in described["get"]["parameters"]] == ["name", "number"]


def test_what_a_route_does_not_have_is_no_attribute() -> None:
    _, route = application()
    with pytest.raises(AttributeError, match="colour"):
        _ = route.colour
    assert not hasattr(object.__new__(LateRoute), "path")
