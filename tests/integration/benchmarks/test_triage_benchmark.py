"""The benchmark of rules still runs, and what it compares agrees."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import triage


def test_it_measures_ours_beside_the_loop_and_writes_it_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out" / "triage.json"
    few = ["--messages", "400", "--rules", "60", "--runs", "2", "--tried", "200"]
    monkeypatch.setattr(sys, "argv", ["triage", *few, "--json", str(file)])
    triage.main()
    found = json.loads(file.read_text())
    assert [(rate["what"], rate["rules"]) for rate in found["rates"]] == [
        ("Postroom", 60),
        ("a loop with re", 60),
        ("Postroom", 500),
        ("a loop with re", 500),
    ]
    assert all(rate["per_second"] > 0 for rate in found["rates"])
    assert all(100 < trial["messages"] <= 200 for trial in found["trials"])
    assert any(trial["matched"] for trial in found["trials"])
