"""The table of all goals says what the figures say, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import detail, goals
from benchmarks.goals import Part

PARTS = (Part("queue", 1), Part("search", 1), Part("other", 1))
MACHINE = {
    "date": "2026-11-16T00:00:00+00:00",
    "cores": 2,
    "platform": "Linux",
    "load_average_before": [0.1, 0, 0],
    "python": "3.11",
}


def verdict(what: str, measured: float | None, **more: Any) -> dict[str, Any]:
    return {"what": what, "measured": measured, "goal": "at least 2x", "met": True, "unit": "x", **more}


def figures(*verdicts: dict[str, Any], **machine: Any) -> dict[str, Any]:
    return {"machine": MACHINE | machine, "goals": list(verdicts)}


def test_a_ratio_stands_beside_both_figures_that_it_is_made_of() -> None:
    drained = verdict("drain", 3.74, ours=14_454.0, peer="huey", theirs=3_861.0)
    assert "| queue: drain | 14,454 | huey 3,861 | 3.74x | at least 2x | met |" in goals.table(
        {"queue": figures(drained)}
    )


def test_a_plain_figure_has_its_unit_and_a_miss_is_called_one() -> None:
    slow = verdict("p95", 14.9, unit=" ms", goal="at most 10 ms", met=False)
    none = verdict("beside nothing", 5.0, goal="none", met=None)
    lines = list(goals.table({"search": figures(slow, none)}, PARTS))
    assert "| search: p95 | 14.9 ms |  |  | at most 10 ms | **missed** |" in lines
    assert not any("beside nothing" in line for line in lines)


def test_what_is_missing_stale_or_from_elsewhere_is_said() -> None:
    found = {
        "queue": figures(verdict("a", 1.0), date="2026-10-01T00:00:00+00:00"),
        "search": figures(verdict("b", None), load_average_before=[5.0, 0, 0]),
        "other": figures(verdict("c", 1.0), cores=64),
    }
    text = "\n".join(goals.table(found, PARTS))
    assert "queue: 01 October 2026; 2 cores, Linux; **stale**" in text
    assert "| search: b |  |  |  | at least 2x | not measured |" in text
    assert "search: 16 November 2026; 2 cores, Linux; began at a load of 5" in text
    assert "**another machine**" in text
    assert "| queue | | | | | not measured: `python -m benchmarks.queue` |" in goals.table({}, PARTS)
    assert "Nothing was measured." in goals.table({}, PARTS)


def test_the_tables_take_their_places_and_a_page_that_says_otherwise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme, whole = tmp_path / "README.md", tmp_path / "benchmarks.md"
    for name, value in (("RESULTS", tmp_path), ("README", readme), ("WHOLE", whole)):
        monkeypatch.setattr(goals, name, value)
    marked = {name: "\nold\n".join(goals.marks(name)) for name in ("goals", *detail.TABLES)}
    readme.write_text(f"above\n{marked['goals']}\nbelow\n")
    whole.write_text("above\n" + "\nbetween\n".join(marked.values()) + "\nbelow\n")
    assert goals.check() == ["README.md", "benchmarks.md"]
    goals.write()
    assert goals.check() == []
    assert readme.read_text().count("not measured") == len(goals.HIGHLIGHTS) == 10
    assert whole.read_text().startswith(f"above\n{goals.marks('goals')[0]}\n| what |")
    assert whole.read_text().endswith("\nNot measured.\n<!-- end of soak -->\nbelow\n")
    drain = verdict("SQLite, synchronous FULL: drain, Postroom over the best peer (huey)", 3.7)
    (tmp_path / "queue.json").write_text(json.dumps(figures(drain) | {"throughput": []}))
    assert goals.check() == ["README.md", "benchmarks.md"]
    goals.write()
    assert readme.read_text().count("not measured") == 9
    whole.write_text("no place")
    with pytest.raises(ValueError, match="no place"):
        goals.write()


def test_the_pages_say_what_the_figures_say() -> None:
    assert goals.check() == []


def test_a_part_that_fails_is_told_and_keeps_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    assert goals.run([Part("no_such_benchmark", 1), Part("nor_this", 1)]) == 1
    told = capfd.readouterr()
    assert "2 parts, about 2 minutes on two cores, at most 8" in told.out
    assert "no_such_benchmark, nor_this" in told.err


def test_single_parts_can_be_measured_again_and_an_unknown_one_is_refused_with_the_known() -> None:
    assert [part.name for part in goals.chosen(["sync", "queue"])] == ["queue", "sync"]
    assert goals.chosen([]) == goals.PARTS
    with pytest.raises(SystemExit, match="no part is called speed; there are queue, "):
        goals.chosen(["speed"])
