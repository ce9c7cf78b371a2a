"""The benchmark of the dashboard still runs: its data set can be made and used again, and it finds every page."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks import dashboard
from benchmarks.dashboard import Plan, links_of
from benchmarks.dashboard_data import DataSet, Size
from rich.console import Console
from sqlalchemy import Engine, event

from postroom.db import Dialect

SMALL = Size(660, 100)
WANTED = {
    "/",
    "/mail by query",
    "/mail/{account}/{key}",
    "/mail/{account}/{key}/thread",
    "/queue by state",
    "/queue, a later page",
    "/queue/{job_id}",
    "/backfill/{job_id}",
    "/archive",
    "/audit by action",
}


def quiet() -> Console:
    return Console(quiet=True)


READS_EVERYTHING = re.compile(
    r"SCAN (messages|decisions|actions|audit_log|jobs|model_calls)(?: AS \w+)?$"
    r"|SEARCH messages USING INDEX messages_event_idx \(provider=\?\)$"
)


@contextmanager
def statements() -> Iterator[dict[str, int]]:
    """Every statement that is executed meanwhile, with the number of its parameters."""
    seen: dict[str, int] = {}

    def note(connection: object, cursor: object, statement: str, parameters: tuple[object, ...], *_: object) -> None:
        seen[statement] = len(parameters)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def plan_of(connection: sqlite3.Connection, statement: str, parameters: int) -> list[str]:
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * parameters)]


def test_every_page_is_found_and_has_a_figure_and_none_reads_a_large_table_whole(tmp_path: Path) -> None:
    with DataSet(tmp_path, SMALL, quiet()).database(Dialect.SQLITE):  # its migrations are no pages
        pass
    with statements() as seen:
        found = dashboard.run(tmp_path, SMALL, [Dialect.SQLITE], dashboard.Effort(1, 2), quiet())
    connection = sqlite3.connect(tmp_path / "postroom.db")
    asked = {each: count for each, count in seen.items() if each.startswith(("SELECT", "WITH"))}
    plans = {each: plan_of(connection, each, count) for each, count in asked.items()}
    assert len(plans) > 100
    assert {each: plan for each, plan in plans.items() if any(map(READS_EVERYTHING.search, plan))} == {}
    pages = {page["page"]: page for page in found["pages"]}
    assert all(0 < page["p50_ms"] <= page["p95_ms"] for page in pages.values())
    assert set(pages) >= WANTED
    # Applications of rules, restores and suggested rules have a page only where there are some; a verdict's leads back.
    no_link = ("login", "applications", "restores/", "suggested", "verdict")
    assert all(any(word in path for word in no_link) for path in found["not_reached"]), found["not_reached"]
    assert found["goals"][0]["unit"] == " ms"


def test_a_data_set_is_made_once_and_only_for_its_size(tmp_path: Path) -> None:
    with DataSet(tmp_path, SMALL, quiet()).database(Dialect.SQLITE) as url:
        file = Path(url.removeprefix("sqlite:///"))
        counts = {
            table: sqlite3.connect(file).execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in ("messages", "jobs", "actions", "decisions")
        }
    assert counts == {"messages": 660, "jobs": 100, "actions": 66, "decisions": 132}
    made = file.stat().st_mtime_ns
    with DataSet(tmp_path, SMALL, quiet()).database(Dialect.SQLITE):
        assert file.stat().st_mtime_ns == made
    with (
        pytest.raises(SystemExit, match="another size"),
        DataSet(tmp_path, Size(99, 9), quiet()).database(Dialect.SQLITE),
    ):
        pass


def test_links_choices_and_later_pages_are_followed_and_nothing_else() -> None:
    html = """<a href="/mail/x">x</a> <a href="https://elsewhere.example/">no</a> <a href="#part">no</a>
    <form method="get" action="/queue"><input type="hidden" name="kind" value="k"><select name="state">
    <option value="">all</option><option value="failed">failed</option></select></form>
    <form method="post" action="/queue/retry"><select name="type"><option value="t">t</option></select></form>"""
    assert links_of(html, "http://127.0.0.1/queue") == ["/mail/x", "/queue", "/queue?kind=k&state=failed"]


def test_of_many_pages_of_a_kind_only_some_are_visited() -> None:
    plan = Plan(["/queue", "/queue/{job_id}"])
    assert sum(plan.offer(f"/queue/{number}") is not None for number in range(50)) == 3
    assert plan.offer("/nowhere") is None
    seen, deep = "/queue", 0
    while (kind := plan.offer(f"/queue?after={deep}", seen)) is not None:
        assert kind.is_deep
        seen, deep = f"/queue?after={deep}", deep + 1
    assert 3 < deep < 20
    assert plan.unreached() == []
