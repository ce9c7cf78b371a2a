"""Kept figures are judged by today's goals, whatever the goals were when they were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import goals, judging, queue_workers, scale, starting, whole_way
from benchmarks.goals import PARTS
from benchmarks.queue_workers import PEER, POSTROOM, Drain
from benchmarks.scale import ScaleRun, WaitingRun
from benchmarks.starting import StartFigures


def test_the_kept_verdicts_are_those_of_todays_goals() -> None:
    assert goals.unjudged() == {}


def test_a_goal_that_changes_is_seen_without_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    burst = {"messages": 1_000, "seconds": 4.0, "cpu_s": 3.5, "stages": {}}
    file = tmp_path / "whole_way.json"
    kept = judging.judged("whole_way", {"burst": burst, "latencies_ms": [10.0, 10.0]})
    file.write_text(json.dumps(kept), "utf-8")
    monkeypatch.setattr(goals, "RESULTS", tmp_path)
    assert goals.unjudged() == {}
    monkeypatch.setattr(whole_way, "LEAST_A_SECOND", 300.0)
    assert list(goals.unjudged()) == [file]
    goals.judge()
    first = json.loads(file.read_text("utf-8"))["goals"][0]
    assert (first["goal"], first["met"]) == ("at least 300/s", False)


def test_every_part_with_goals_of_its_own_can_be_judged_again() -> None:
    assert set(judging.JUDGES) == {part.name for part in PARTS}


def test_starts_and_the_idle_cost_are_judged_one_by_one() -> None:
    found = StartFigures(0.3, 0.3, 0.6, 0.5, 1.9, 1.5, idle_percent=0.4, idle_mb=151.0, idle_seconds=60.0)
    assert [verdict.met for verdict in starting.judge(found)] == [True, False, True, True, False]


def test_workers_are_compared_at_the_best_setting_of_each_and_with_themselves_behind_a_transaction() -> None:
    drains = [
        Drain(POSTROOM, 1, 250, 100.0),
        Drain(POSTROOM, 1, 500, 300.0),
        Drain(PEER, 1, 250, 150.0),
        Drain(POSTROOM, 4, 500, 300.0),
        Drain(POSTROOM, 1, 500, 100.0, held=True),
        Drain(POSTROOM, 1, 500, 150.0, held=False),
    ]
    judged = [(verdict.measured, verdict.met) for verdict in queue_workers.judge(drains)]
    assert judged == [(2.0, True), (None, None), (1.5, False)]


def test_workers_side_by_side_are_judged_by_cpu_and_by_what_grows_with_them() -> None:
    runs = [
        ScaleRun(1, 100, 50.0, cpu_ms=5.0, lock_waits=150, samples=100, connections=5),
        ScaleRun(3, 100, 80.0, cpu_ms=7.0, lock_waits=400, samples=50, connections=14),
    ]
    judged = [verdict.met for verdict in scale.judge(runs, [WaitingRun(1, 80.0), WaitingRun(8, 400.0)])]
    assert judged == [True, False, False, True, False]
    quiet = [ScaleRun(1, 100, 50.0, cpu_ms=5.0, lock_waits=0, samples=100, connections=5)]
    assert [verdict.met for verdict in scale.judge(quiet, [WaitingRun(8, 400.0)])][1] is True
