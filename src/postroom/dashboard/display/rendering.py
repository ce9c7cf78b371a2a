"""Templates into pages, with the navigation and the static files that pages refer to.

Everything is escaped, and a name that a template is not given is an error, not a blank. Static files are named by
their content, so that browsers may keep them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from postroom import __version__
from postroom.dashboard.display import charts, formatting
from postroom.dashboard.display.icons import icon_url
from postroom.domain.errors import NotFound

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    version: str


@cache
def _assets() -> dict[str, Asset]:
    found = {}
    for file in files("postroom.dashboard").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            content = file.read_bytes()
            found[file.name] = Asset(content, _TYPES[suffix], hashlib.sha256(content).hexdigest()[:12])
    return found


def asset_url(name: str) -> str:
    return f"/static/{name}?v={_assets()[name].version}"


def serve_asset(request: Request, name: str) -> Response:
    asset = _assets().get(name)
    if asset is None:
        raise NotFound("file", f"there is no {name!r}")
    kept = _KEPT if request.query_params.get("v") == asset.version else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers={"cache-control": kept})


@dataclass(frozen=True, slots=True)
class NavigationSection:
    key: str
    """What a page passes to `here.page` as its section."""
    path: str
    title: str
    group: str | None = None
    """The name of the group that begins with it."""


_SECTIONS = (
    NavigationSection("overview", "/", "Overview"),
    NavigationSection("digest", "/digest", "Digest"),
    NavigationSection("mail", "/mail", "Mail", group="Mail"),
    NavigationSection("ask", "/ask", "Ask"),
    NavigationSection("approvals", "/approvals", "Approvals"),
    NavigationSection("review", "/review", "Review"),
    NavigationSection("actions", "/actions", "Actions"),
    NavigationSection("unsubscribe", "/unsubscribe", "Unsubscribe"),
    NavigationSection("rules", "/rules", "Rules", group="Automation"),
    NavigationSection("filters", "/filters", "Filters"),
    NavigationSection("backfill", "/backfill", "Backfill"),
    NavigationSection("web", "/web", "Web"),
    NavigationSection("archive", "/archive", "Archive", group="Archive"),
    NavigationSection("analytics", "/analytics", "Analytics"),
    NavigationSection("queue", "/queue", "Queue", group="System"),
    NavigationSection("connectors", "/connectors", "Connectors"),
    NavigationSection("audit", "/audit", "Audit"),
    NavigationSection("settings", "/settings", "Settings"),
)


def sections() -> tuple[NavigationSection, ...]:
    return _SECTIONS


def render(template: str, **values: Any) -> str:
    return _environment.get_template(template).render(values)


@pass_context
def _since(context: Context, moment: datetime | None) -> Markup:
    return formatting.time_tag(moment, context["now"])


@pass_context
def _reported(context: Context, value: str | float) -> Markup:
    """What a connector wrote; a time is shown as everywhere, in the reader's zone."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) and "T" in value else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not 1970 <= moment.year < 9999:
        return formatting.plain(value)
    return formatting.time_tag(moment, context["now"])


def _environment_of_pages() -> Environment:
    environment = Environment(
        loader=PackageLoader("postroom.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plain": formatting.plain,
        "presentable": formatting.presentable,
        "said": formatting.said,
        "count": formatting.count,
        "percent": formatting.percent,
        "size": formatting.size,
        "money": formatting.money,
        "cents": formatting.cents,
        "duration": formatting.duration,
        "when": formatting.exact_time,
        "utc": formatting.when,
        "since": _since,
        "reported": _reported,
        "words": formatting.words,
        "browser": formatting.browser,
        "labels": formatting.labels,
        "pretty": formatting.pretty,
        "chart": charts.as_image,
    }
    environment.globals |= {
        "sections": sections,
        "asset": asset_url,
        "icon": icon_url,
        "plural": formatting.plural,
        "version": __version__,
    }
    return environment


_environment = _environment_of_pages()
