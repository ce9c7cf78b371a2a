"""The quick benchmark compares what it measures with what was kept, and a small one runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import quick


def test_a_ratio_that_dropped_by_a_third_fails_and_one_that_is_new_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quick.json"
    measured = {"import": 3.0, "search": 2.0}
    monkeypatch.setattr(quick, "measure", lambda messages: (dict(measured), ["the queue: not installed"]))
    assert quick.main(["--file", str(file)]) == 0, "nothing was kept"
    assert quick.main(["--file", str(file), "--keep"]) == 0
    assert json.loads(file.read_text())["ratios"] == measured
    measured |= {"search": 1.4, "rules": 9.0}
    assert quick.main(["--file", str(file)]) == 0
    measured["search"] = 1.3
    assert quick.main(["--file", str(file)]) == 1
    said = capsys.readouterr()
    assert "dropped by a third or more: search: 1.30x, was 2.00x" in said.err
    assert "not measured: the queue: not installed" in said.out


def test_a_small_run_has_the_ratios_of_rules_and_of_the_queue(tmp_path: Path) -> None:
    ratios = quick.rule_ratios(300) | quick.queue_ratios(tmp_path, 200, rounds=1)
    assert len(ratios) == 2
    assert all(ratio > 0 for ratio in ratios.values())
