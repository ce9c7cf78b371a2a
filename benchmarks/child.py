"""Runs one contender in a process of its own, so that neither imports nor state of one touch another."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.contract import Contender, Load, Measure, Store
from postroom.telemetry import logs

_LAST_LINES = 5


class ContenderFailed(Exception):
    """The contender did not finish; the message says why."""


def run(
    function: str, store: Store, load: Load, options: Mapping[str, int], time_limit_s: float
) -> dict[Measure, float]:
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        task = {
            "function": function,
            "store": asdict(store),
            "load": asdict(load),
            "options": dict(options),
            "answer": answer.name,
        }
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.child", json.dumps(task)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=time_limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise ContenderFailed(f"not done within {time_limit_s:g} s") from None
        if done.returncode:
            reason = " | ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise ContenderFailed(f"exit code {done.returncode}: {reason}")
        return {Measure(name): rate for name, rate in json.load(answer).items()}


def main(task_json: str) -> None:
    logs.configure(level="warning")
    task = json.loads(task_json)
    module, _, name = task["function"].partition(":")
    contender: Contender = getattr(importlib.import_module(module), name)
    rates = contender(Store(**task["store"]), Load(**task["load"]), task["options"])
    Path(task["answer"]).write_text(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1])
