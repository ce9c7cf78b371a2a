"""The demonstration in one process: stand-ins, the product as `postroom up` runs it, and the steps in order.

Afterwards a letter arrives now and then, so that there is something to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, cycle
from typing import Protocol

from postroom import settings
from postroom.app import App, open_app
from postroom.app.serving import RunningSwitchboard
from postroom.app.up import run_everything
from postroom.dashboard.security.passphrase import first_link
from postroom.dashboard.server import Dashboard
from postroom.demo.archive_steps import archive_the_mailbox, follow_a_web_source, recover_old_mail
from postroom.demo.decision_steps import a_burst_in_the_morning, approve_what_waits, rules_and_model, undo_an_action
from postroom.demo.demo_session import (
    DOCTOR,
    DemoLetter,
    DemoSession,
    open_demo_session,
    open_stand_ins,
    temporary_home,
    write_home,
)
from postroom.domain.errors import Fatal
from postroom.domain.extras import Extra, ExtraMissing, is_installed
from postroom.telemetry import metrics


class StepOutcome(Protocol):
    @property
    def lines(self) -> tuple[str, ...]:
        """What happened, for people."""


@dataclass(frozen=True)
class StoryStep:
    title: str
    says: str
    path: str
    """Of the page that shows it."""
    run: Callable[[DemoSession], Awaitable[StepOutcome]]
    needs: Extra | None = None
    """Without it the step is named and skipped."""

    @property
    def skipped(self) -> str | None:
        """Why it cannot be taken here, with the command that mends it."""
        if self.needs is None or is_installed(self.needs):
            return None
        return ExtraMissing(self.needs, "skipped: this step").message


STORY = (
    StoryStep("Ten years of mail", "A mailbox is added and comes into the archive.", "/archive", archive_the_mailbox),
    StoryStep("Eight in the morning", "Twenty letters arrive at once.", "/queue", a_burst_in_the_morning),
    StoryStep("Rules and a model", "Five letters; three rules; a model for the rest.", "/mail", rules_and_model),
    StoryStep("A question", "What could do harm waits for a person.", "/approvals", approve_what_waits),
    StoryStep("An undo", "What was done can be taken back.", "/mail", undo_an_action),
    StoryStep(
        "Old mail, under a budget",
        "It shows the cost first and never exceeds it.",
        "/backfill",
        recover_old_mail,
        Extra.MODELS,
    ),
    StoryStep("A web source", "A site that publishes things worth keeping.", "/web", follow_a_web_source, Extra.WEB),
)


@dataclass(frozen=True)
class RunningDemo:
    scene: DemoSession
    link: str
    """Sets the passphrase, once."""


@asynccontextmanager
async def running_demo(messages: int) -> AsyncIterator[RunningDemo]:
    """Everything, in a home that is gone when the block ends. If the product breaks, so does the block."""
    metrics.configure()
    with temporary_home() as home:
        async with open_stand_ins(messages) as outside:
            write_home(home, outside)
            async with open_app(settings.load()) as app, _up(app) as url, open_demo_session(app, outside, url) as scene:
                link = await first_link(app, url, scene.who)
                yield RunningDemo(scene, link or url)


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


_EVERY_S = 12.0
_LETTERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Morning News <news@news.example>", "Newsletter {n}", {"List-Unsubscribe": "<https://news.example/off>"}),
    ("City Power <billing@power.example>", "Your electricity bill, number {n}", {}),
    ("Carol Reyes <carol@choir.example>", "Who brings the cake? ({n})", {}),
    ("Lamp World <offers@lamps.example>", "{n} new lamps", {"List-Unsubscribe": "<https://lamps.example/off>"}),
    (DOCTOR, "Your results of test {n} are ready", {}),
)


async def keep_delivering(scene: DemoSession) -> None:
    """Until it is called off."""
    for number, (sender, subject, headers) in zip(count(1), cycle(_LETTERS)):
        await asyncio.sleep(_EVERY_S)
        scene.deliver(DemoLetter(sender, subject.format(n=number), headers=headers))
