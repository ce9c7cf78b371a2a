"""`/static/`: style, script and pictures, for anybody."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from postroom.dashboard import assets
from postroom.dashboard.pages import pages_router

router = pages_router()


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    return assets.serve(request, name)
