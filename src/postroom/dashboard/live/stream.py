"""The stream of an open page: `ready` when it is watched, `changed` with the topics, a sign of life in between.

It ends with the session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable

from postroom.dashboard.live.hub import Hub

MEDIA_TYPE = "text/event-stream"
_SIGN_OF_LIFE_S = 15.0


async def events(hub: Hub, topics: frozenset[str], is_welcome: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    with hub.listening(topics) as listener:
        yield "retry: 5000\n\n"
        await listener.ready()
        yield "event: ready\ndata: {}\n\n"
        while True:
            changed = await listener.changes(_SIGN_OF_LIFE_S)
            if listener.is_closed:
                return
            if not await is_welcome():
                yield "event: over\ndata: {}\n\n"
                return
            yield f"event: changed\ndata: {json.dumps(changed)}\n\n" if changed else ": still here\n\n"
