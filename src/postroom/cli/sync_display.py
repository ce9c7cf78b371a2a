"""How `postroom sync run` looks: one live table on a terminal, a line now and then where nobody watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from postroom.cli.output import duration, errors, moment
from postroom.sync.progress import Phase, SyncProgress
from postroom.sync.service import AccountSync

_REFRESH_S = 0.5
_LINE_EVERY_S = 10.0


@asynccontextmanager
async def shown(syncs: Sequence[AccountSync], *, quiet: bool = False) -> AsyncIterator[None]:
    """Shows how the syncs are doing while the block lasts."""
    showing = asyncio.create_task(_show(syncs, quiet=quiet), name="sync display")
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show(syncs: Sequence[AccountSync], *, quiet: bool) -> None:
    if quiet:
        return
    if not errors.is_terminal:
        await _print_lines(syncs)
        return
    with Live(_table(syncs), console=errors, auto_refresh=False) as live:
        try:
            while True:
                await asyncio.sleep(_REFRESH_S)
                live.update(_table(syncs), refresh=True)
        finally:
            live.update(_table(syncs), refresh=True)


async def _print_lines(syncs: Sequence[AccountSync]) -> None:
    said: dict[str, tuple[float, Phase]] = {}
    while True:
        for sync in syncs:
            progress, now = sync.progress(), time.monotonic()
            at, phase = said.get(sync.account.email, (now, None))
            if phase is None or phase is not progress.phase or now - at >= _LINE_EVERY_S:
                errors.print(line(sync.account.email, progress), markup=False, soft_wrap=True)
                said[sync.account.email] = (now, progress.phase)
        await asyncio.sleep(_REFRESH_S)


def line(email: str, progress: SyncProgress) -> str:
    return f"{email}: " + ", ".join(f"{name} {value}" for name, value in _facts(progress).items())


def _table(syncs: Sequence[AccountSync]) -> Table:
    table = Table.grid(padding=(0, 2))
    for sync in syncs:
        progress = sync.progress()
        table.add_row(Text(sync.account.email, style="bold"), ProgressBar(_total(progress), _done(progress), width=40))
        for name, value in _facts(progress).items():
            table.add_row(Text(f"  {name}", style="dim"), Text(value))
    return table


def _total(progress: SyncProgress) -> float:
    return max(progress.messages_total, progress.settled, 1)


def _done(progress: SyncProgress) -> float:
    return _total(progress) if progress.phase is Phase.FOLLOWING else progress.settled


def _facts(progress: SyncProgress) -> dict[str, str]:
    """The same words on a terminal and in a log."""
    slices = f"{progress.slices_done:,} of {progress.slices_total:,}"
    facts = {
        "phase": str(progress.phase),
        **({"slices": slices} if progress.slices_total else {}),
        "watermark": moment(progress.watermark),
        "messages": _messages(progress),
        "pace": f"{progress.messages_per_second:,.1f} messages/s",
        "quota": _quota(progress),
        "throttled": f"{progress.throttles:,} times",
        "bad": f"{progress.bad:,}",
    }
    trouble = {"retries": progress.retries, "splits": progress.splits, "stalls": progress.stalls}
    facts |= {name: f"{count:,}" for name, count in trouble.items() if count}
    if progress.phase is not Phase.FOLLOWING:
        facts["time left"] = "not known yet" if progress.seconds_left is None else duration(progress.seconds_left)
    return facts


def _messages(progress: SyncProgress) -> str:
    parts = {"stored": progress.stored, "known": progress.known, "gone": progress.gone}
    told = ", ".join(f"{count:,} {name}" for name, count in parts.items() if count or name == "stored")
    return f"{told} of about {progress.messages_total:,}" if progress.messages_total else told


def _quota(progress: SyncProgress) -> str:
    used = f"{progress.units_per_minute:,} units in the last minute"
    if progress.allowance is None:
        return f"limit not known; {progress.rps:.1f} requests/s allowed"
    return f"{used}, {progress.units_per_minute / progress.allowance:.0%} of {progress.allowance:,}"
