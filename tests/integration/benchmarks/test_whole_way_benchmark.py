"""The benchmark of the whole way still runs: a little mail goes all of it, and every figure is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import whole_way
from benchmarks.whole_way import Burst

from postroom.mail.headers import one_line


def test_a_small_run_has_a_figure_for_every_goal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "whole_way.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks.whole_way", "--messages", "5", "--alone", "2", "--out", str(out)])
    whole_way.main()
    kept = json.loads(out.read_text())
    assert [verdict["unit"] for verdict in kept["goals"]] == ["/s", " ms", " ms"]
    assert all(verdict["measured"] > 0 for verdict in kept["goals"])
    assert kept["burst"]["messages"] == 5
    assert len(kept["latencies_ms"]) == 2


def test_goals_are_judged_by_rate_the_slowest_and_cpu() -> None:
    done = Burst(messages=1_000, seconds=4.0, cpu_s=3.5, stages={"action": 1.0})
    measured = [(verdict.measured, verdict.met) for verdict in whole_way.judge(done, [10.0] * 18 + [400.0, 400.0])]
    assert measured == [(250.0, True), (400.0, False), (3.5, False)]


def test_a_stack_is_known_by_its_innermost_package_and_who_waits_is_not_at_work() -> None:
    class Watched(str):
        seen: str | None = None

        def isprintable(self) -> bool:
            Watched.seen = whole_way.stage_of(sys._getframe())
            return True

    assert one_line(Watched("a b")) == "a b"
    assert Watched.seen == "reading the message"

    def select() -> str | None:
        return whole_way.stage_of(sys._getframe())

    assert select() is None
