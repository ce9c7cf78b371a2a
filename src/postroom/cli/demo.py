"""`postroom demo`: Postroom at work on simulated mail, in a temporary folder; and what it prints."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.text import Text

from postroom.cli.terminal import console, printable
from postroom.demo.demo_session import DemoSession
from postroom.demo.story import STORY, StoryStep, keep_delivering, running_demo
from postroom.domain.errors import Fatal
from postroom.telemetry import logs

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INDENT = "   "
_TO_COPY = ("://", "pip install")


async def run_demo(messages: int, *, in_terminal: bool) -> None:
    """All of it in the terminal, or beside a dashboard that stays open until it is stopped."""
    logs.configure(level="error", format="console")
    telling = asyncio.create_task(_run_steps(messages, in_terminal=in_terminal))
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:  # each of them, however often: the end is seconds away, and leaves nothing behind
        loop.add_signal_handler(number, telling.cancel)
    with suppress(asyncio.CancelledError):
        await telling
    if telling.cancelled():
        _say("\nEnded. Nothing is left behind.")


async def _run_steps(messages: int, *, in_terminal: bool) -> None:
    started = time.monotonic()
    _say("Postroom demo. The mailbox, the model and the web site are simulated.\n", style="bold")
    async with running_demo(messages) as house:
        if not in_terminal:
            _show_the_way(house.link)
        for number, step in enumerate(STORY, start=1):
            if step.skipped is None:
                await _take(number, step, house.scene, with_address=not in_terminal)
            else:
                _skip(number, step, step.skipped)
        if not in_terminal:
            _say("That was the story. Look around; new mail arrives now and then. Ctrl-C ends it.")
            await keep_delivering(house.scene)
    took = time.monotonic() - started
    _say(f"The product did all of this, in {took:.0f} s, and leaves nothing behind.")
    _say("In a browser: `postroom demo`. For yourself: `postroom up`.")


def _show_the_way(link: str) -> None:
    _say("Open this link, and make up a passphrase of 12 letters or more:")
    _say(link)
    _say("\nThe story goes on by itself. Ctrl-C ends it, and everything in it is gone.\n")


async def _take(number: int, step: StoryStep, scene: DemoSession, *, with_address: bool) -> None:
    _say(f"{number}. {step.title}", style="bold", then=f"  {step.says}")
    with console.status("at work ..."):
        try:
            outcome = await step.run(scene)
        except Fatal as error:
            if not with_address:
                raise
            _say(f"{_INDENT}{error} The dashboard stays open.\n", style="yellow")
            return
    for line in outcome.lines:
        _say(_INDENT + printable(line))
    if with_address:
        _say(f"{_INDENT}{scene.url}{step.path}", style="cyan")
    _say("")


def _skip(number: int, step: StoryStep, why: str) -> None:
    _say(f"{number}. {step.title}", style="bold", then=f"  {step.says}")
    _say(f"{_INDENT}{why}\n", style="yellow")


def _say(line: str, *, style: str = "", then: str = "") -> None:
    """A line as it is; on a narrow terminal its end is cut rather than wrapped, but for what has to be copied."""
    text = Text.assemble((line, style), then)
    if any(mark in line for mark in _TO_COPY):
        console.print(text, soft_wrap=True)
    else:
        console.print(text, no_wrap=True, overflow="ellipsis")


def demo(
    story: Annotated[
        bool, typer.Option("--story", help="Tell the story here in the terminal, without a browser, and exit.")
    ] = False,
    messages: Annotated[
        int, typer.Option(min=500, max=1_000_000, help="How many messages the mailbox has; they always span ten years.")
    ] = 3_000,
) -> None:
    """Try everything on a simulated mailbox, model and web site.

    Prints a link into the dashboard, and walks through a story by itself.
    Needs no account, touches no real mail, and leaves nothing behind.
    """
    from postroom import eventloop

    eventloop.run(run_demo(messages, in_terminal=story))
