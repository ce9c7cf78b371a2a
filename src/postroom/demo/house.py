"""The demonstration in one process: stand-ins, the product as `postroom up` runs it, and a scene to act on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from postroom import settings
from postroom.app import App, open_app
from postroom.app.serving import RunningSwitchboard
from postroom.app.up import run_everything
from postroom.dashboard.entering import first_link
from postroom.dashboard.server import Dashboard
from postroom.demo.furnish import furnish, temporary_home
from postroom.demo.scene import Scene, open_scene
from postroom.demo.stand_ins import open_stand_ins
from postroom.domain.errors import Fatal
from postroom.telemetry import metrics


@dataclass(frozen=True)
class OpenHouse:
    scene: Scene
    link: str
    """Sets the passphrase, once."""


@asynccontextmanager
async def open_house(messages: int) -> AsyncIterator[OpenHouse]:
    """Everything, in a home that is gone when the block ends. If the product breaks, so does the block."""
    metrics.configure()
    with temporary_home() as home:
        async with open_stand_ins(messages) as outside:
            furnish(home, outside)
            async with open_app(settings.load()) as app, _up(app) as url, open_scene(app, outside, url) as scene:
                link = await first_link(app, url, scene.who)
                yield OpenHouse(scene, link or url)


@asynccontextmanager
async def _up(app: App) -> AsyncIterator[str]:
    """The product beside whatever the block does. If it ends by itself, it takes the block along and says why."""
    stop = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ready(running: RunningSwitchboard) -> None:
        address.set_result(running.url)

    up = asyncio.create_task(run_everything(app, Dashboard, stop, ready))
    await asyncio.wait((up, address), return_when=asyncio.FIRST_COMPLETED)
    if up.done():
        raise up.exception() or Fatal("The demonstration ended before it began.")
    body = asyncio.current_task()
    assert body is not None  # noqa: S101 - a coroutine that runs has a task
    up.add_done_callback(lambda _: None if stop.is_set() else body.cancel())
    try:
        yield address.result()
    except asyncio.CancelledError:
        if not up.done():
            raise
        body.uncancel()
        raise up.exception() or Fatal("The demonstration has ended by itself.") from None
    finally:
        stop.set()
        await asyncio.wait({up})
