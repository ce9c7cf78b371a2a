"""Style, script and pictures of the pages: read once, and named by their content, so that browsers may keep them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from postroom.domain.errors import NotFound

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    version: str


@cache
def _all() -> dict[str, Asset]:
    found = {}
    for file in files("postroom.dashboard.pages").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            content = file.read_bytes()
            found[file.name] = Asset(content, _TYPES[suffix], hashlib.sha256(content).hexdigest()[:12])
    return found


def address(name: str) -> str:
    return f"/static/{name}?v={_all()[name].version}"


def serve(request: Request, name: str) -> Response:
    asset = _all().get(name)
    if asset is None:
        raise NotFound("file", f"there is no {name!r}")
    kept = _KEPT if request.query_params.get("v") == asset.version else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers={"cache-control": kept})
