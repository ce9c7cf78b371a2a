"""Ctrl-C and SIGTERM for commands that end well: the first asks them to finish what they are doing."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from postroom.cli.output import errors

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(saying: str) -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one ends the process at once, which loses nothing either.

    `saying` is told to the person; empty where none is there."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        _give_back(loop)
        if saying:
            errors.print(saying, markup=False)

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield stop
        return
    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        yield stop
    finally:
        _give_back(loop)


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
