"""`postroom stats`: what is in the archive, by sender, domain, time, size, label or type, and
how long replies take."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from postroom.app import App, archive_statistics
from postroom.archive.statistics import MOST_VALUES, ResponseTimes, StatisticsBy, shown_value
from postroom.cli.session import AccountOption, with_app
from postroom.cli.terminal import JsonOption, age, console, errors, print_json, print_table
from postroom.dashboard.display.formatting import duration, size
from postroom.domain.clock import SystemClock


def stats(
    by: Annotated[StatisticsBy, typer.Option(help="What to count by.")] = StatisticsBy.SENDER,
    account: AccountOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_VALUES, help="Show at most this many.")] = 20,
    now: Annotated[bool, typer.Option("--now", help="Count what has changed first.")] = False,
    responses: Annotated[
        bool, typer.Option("--responses", help="Show how long you and others take to reply instead.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what is in the archive: messages, bytes and attachments, and the search that finds them.

    A worker counts every 15 minutes.
    """
    if responses:
        _show_responses(account, limit, now=now, json=json)
        return

    async def run(app: App) -> archive_statistics.ArchiveStatistics:
        found = await app.database.read(lambda tx: archive_statistics.read_statistics(tx, by, account, limit))
        if now or found.counted_at is None:
            with errors.status("counting ..."):
                await archive_statistics.count_archive(app.database, app.archive.backend, app.clock)
            found = await app.database.read(lambda tx: archive_statistics.read_statistics(tx, by, account, limit))
        return found

    found = with_app(run)
    if json:
        print_json(found)
        return
    print_table(
        [by.value, "messages", "size", "with attachment", "search"],
        (
            [shown_value(by, row.value), f"{row.messages:,}", size(row.bytes), f"{row.attachments:,}", row.search or ""]
            for row in found.rows
        ),
        empty="The archive holds no mail.",
    )
    if len(found.rows) < found.values:
        console.print(f"{len(found.rows):,} of {found.values:,}; --limit shows more.", markup=False)
    _say_when(found.counted_at)


def _show_responses(account: str | None, limit: int, *, now: bool, json: bool) -> None:
    async def run(app: App) -> archive_statistics.ResponseStatistics:
        found = await app.database.read(lambda tx: archive_statistics.read_responses(tx, account, limit))
        if now or found.counted_at is None:
            with errors.status("counting ..."):
                await archive_statistics.count_archive(app.database, app.archive.backend, app.clock)
            found = await app.database.read(lambda tx: archive_statistics.read_responses(tx, account, limit))
        return found

    found = with_app(run)
    if json:
        print_json(found)
        return
    print_table(
        ["person", "your replies", "median", "90%", "theirs", "median", "90%", "search"],
        ([row.person or "everyone", *_times(row.owner), *_times(row.others), row.search] for row in found.rows),
        empty="The archive holds no replies.",
    )
    if len(found.rows) <= found.people:
        console.print(f"{len(found.rows) - 1:,} of {found.people:,}; --limit shows more.", markup=False)
    _say_when(found.counted_at)


def _say_when(counted_at: datetime | None) -> None:
    if counted_at is not None:
        console.print(f"Counted {age(counted_at, SystemClock().now())} ago; --now counts again.", markup=False)


def _times(found: ResponseTimes | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    return [f"{found.replies:,}", duration(found.median_s), duration(found.p90_s)]
