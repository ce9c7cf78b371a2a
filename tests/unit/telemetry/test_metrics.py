"""The registry is global to a process, so what is collected is looked at in one of its own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from postroom.telemetry import metrics
metrics.configure()
metrics.meter.create_gauge("age", unit="s").set(7)
metrics.meter.create_histogram("took", unit="s").record(0.02)
mails = metrics.meter.create_counter("mails")
mails.add(2, {"lane": "live", "tier": "full"})
mails.add(1, {"tier": "full", "lane": "live"})
mails.add(1)
print(metrics.exposition().decode())
"""


def test_histograms_have_buckets_gauges_raise_no_warning_and_counters_add_up_by_attributes() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert 'took_seconds_bucket{le="0.025"' in done.stdout
    assert "age_seconds{" in done.stdout
    assert 'mails_total{lane="live",otel_scope_name="postroom"' in done.stdout
    assert [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("mails_total{")] == ["3.0", "1.0"]
