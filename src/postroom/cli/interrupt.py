"""Ctrl-C and SIGTERM for commands that end well: the first asks them to finish what they are doing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from postroom.cli.output import errors


@contextmanager
def stopped_by_signals(saying: str) -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one ends the process at once, which loses nothing either."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        errors.print(saying, markup=False)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
