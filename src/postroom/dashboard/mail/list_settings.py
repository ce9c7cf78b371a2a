"""What a person sets for the mail list: searches saved under a name, and how close its rows are.

Saved searches are tools; the density is a cookie, so that every browser has its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import Path
from starlette.requests import Request
from starlette.responses import Response

from postroom.contract import settings as contract
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("mail")

SearchName = Annotated[str, Path(min_length=1, max_length=contract.LONGEST_NAME, description="the search's name")]
_COOKIE = "postroom_density"
_YEAR_S = 365 * 86_400


class Density(StrEnum):
    COMFORTABLE = "comfortable"
    COMPACT = "compact"


def density_of(request: Request) -> Density:
    """As this browser set it; anything else that the cookie may hold means comfortable."""
    named = request.cookies.get(_COOKIE, "")
    return Density(named) if named in list(Density) else Density.COMFORTABLE


def back_in(form: Form) -> str:
    """The list, or the page of a message, as its own links write it."""
    back = urlsplit(form["back"] or "/mail")
    if back.scheme or back.netloc or not f"{back.path}/".startswith("/mail/"):
        raise BadInput("back", "is not a page of mail")
    query = urlencode(parse_qsl(back.query))
    return f"{back.path}?{query}" if query else back.path


@pages.post("/mail/density")
async def submit_density(here: Here) -> Response:
    form = await here.form()
    density = form.one_of("density", list(Density))
    answer = await here.go(back_in(form))
    secure = here.services.hosts.is_secure
    answer.set_cookie(_COOKIE, density, max_age=_YEAR_S, httponly=True, samesite="lax", secure=secure)
    return answer


@pages.post("/mail/searches")
async def submit_search(here: Here) -> Response:
    form = await here.form()
    back = back_in(form)
    wanted = {"name": form["name"], "query": form["query"], "endpoint_identity": form.optional("account")}
    try:
        saved = await here.call(contract.SAVE_SEARCH, wanted)
    except BadInput as error:
        return await here.go(back, f"The search was not saved: {error.field} {error.problem}.", "bad")
    return await here.go(back, f"Search saved as “{saved.name}”.")


@pages.post("/mail/searches/remove")
async def submit_removal(here: Here) -> Response:
    form = await here.form()
    back = back_in(form)
    removed = await here.call(contract.REMOVE_SEARCH, {"name": form["name"]})
    return await here.go(back, f"Saved search “{removed.name}” removed.")


@api.get("/searches")
@permits(Permission.READ)
async def saved_searches(here: Here) -> contract.SavedSearchesReply:
    """The saved searches, by name."""
    return await here.call(contract.LIST_SEARCHES, {})


@api.post("/searches")
@permits(Permission.SETTINGS, keeps_to_mailbox=True)
async def save_search(here: Here, wanted: contract.SaveSearchArguments) -> contract.SavedSearchReply:
    """Save a search under a name that is not in use."""
    return await here.call(contract.SAVE_SEARCH, wanted)


@api.delete("/searches/{name}")
@permits(Permission.SETTINGS)
async def remove_search(here: Here, name: SearchName) -> contract.SavedSearchReply:
    """Remove a saved search; the reply is what it was."""
    return await here.call(contract.REMOVE_SEARCH, {"name": name})
