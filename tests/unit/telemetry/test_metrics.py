"""The registry is global to a process, so what is collected is looked at in one of its own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from postroom.telemetry import metrics
metrics.configure()
metrics.meter.create_gauge("age", unit="s").set(7)
metrics.meter.create_histogram("took", unit="s").record(0.02)
print(metrics.exposition().decode())
"""


def test_seconds_of_a_histogram_have_buckets_and_those_of_a_gauge_raise_no_warning() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert 'took_seconds_bucket{le="0.025"' in done.stdout
    assert "age_seconds{" in done.stdout
