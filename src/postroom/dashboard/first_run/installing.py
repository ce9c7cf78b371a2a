"""The dashboard as an app on a phone or a desktop: its manifest and its icons. There is no service worker and no push:
an installed dashboard is the same pages in a window of their own.

Browsers ask for both without a login, so they say nothing about the installation.
"""

from __future__ import annotations

import asyncio
from functools import cache

from starlette.responses import JSONResponse, Response

from postroom.dashboard.context import pages_router
from postroom.dashboard.display.icons import draw_icon, icon_url
from postroom.domain.errors import NotFound

MANIFEST = "/manifest.webmanifest"
_ICONS = {
    "180.png": (180, False),
    "192.png": (192, True),
    "512.png": (512, True),
    "maskable-512.png": (512, False),
}
"""Pixels, and whether the corners are rounded here. 180 is for Apple's home screen."""
_KEPT = "public, max-age=31536000, immutable"
_SHORTCUTS = (("Mail", "/mail"), ("Approvals", "/approvals"), ("Review", "/review"))

pages = pages_router()


def manifest() -> dict[str, object]:
    return {
        "id": "/",
        "name": "Postroom",
        "short_name": "Postroom",
        "description": "Your mail archive, triage and approvals.",
        "start_url": "/",
        "scope": "/",
        "display": "standalone",
        "background_color": "#f5f6f8",
        "theme_color": "#1f5fbf",
        "icons": [_described(name) for name in _ICONS if name != "180.png"],
        "shortcuts": [{"name": name, "url": path} for name, path in _SHORTCUTS],
    }


def _described(name: str) -> dict[str, str]:
    size, is_rounded = _ICONS[name]
    purpose = "any" if is_rounded else "maskable"
    return {"src": icon_url(name), "sizes": f"{size}x{size}", "type": "image/png", "purpose": purpose}


@pages.get(MANIFEST)
async def web_manifest() -> Response:
    return JSONResponse(manifest(), media_type="application/manifest+json", headers={"cache-control": "no-cache"})


@pages.get("/static/icons/{name}")
async def icon(name: str) -> Response:
    if name not in _ICONS:
        raise NotFound("file", f"there is no {name!r}")
    content = await asyncio.to_thread(_drawn, name)
    return Response(content, media_type="image/png", headers={"cache-control": _KEPT})


@cache
def _drawn(name: str) -> bytes:
    size, is_rounded = _ICONS[name]
    return draw_icon(size, is_rounded=is_rounded)
