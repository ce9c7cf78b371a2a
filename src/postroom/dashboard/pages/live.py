"""`/live`: server-sent events that tell an open page what changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from fastapi.responses import StreamingResponse

from postroom.dashboard.live.stream import MEDIA_TYPE, events
from postroom.dashboard.pages import pages_router
from postroom.dashboard.security.sessions import find_session
from postroom.dashboard.visit import Here
from postroom.webserver import mark_stream

router = pages_router()


@router.get("/live")
async def live(here: Here, topics: Annotated[str, Query(max_length=200)] = "") -> StreamingResponse:
    secret, settings = here.visitor.secret, here.app.settings.dashboard

    async def is_welcome() -> bool:
        now = here.app.clock.now()
        return await here.read(lambda tx: find_session(tx, secret, settings, now)) is not None

    here.desk.hub.require_room()
    wanted = frozenset(topics.split(","))
    mark_stream(here.request.scope)
    return StreamingResponse(events(here.desk.hub, wanted, is_welcome), media_type=MEDIA_TYPE)
