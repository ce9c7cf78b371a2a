"""The queue benchmark still runs: its own contenders at tiny counts, without the peers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks import queue, queue_contenders, queue_workers, report
from benchmarks.databases import Kind, Stores, stores
from benchmarks.queue_contenders import ENTRIES
from benchmarks.queue_contract import Load, Measure
from benchmarks.queue_postroom import CLAIM_SIZES, Level, latency, measure_claim_cost, throughput
from benchmarks.queue_raw_loops import sqlite_loop
from benchmarks.report import Figures, Verdict, judge_claims, judge_enqueuing, judge_throughput
from rich.console import Console

TINY = Load(single=3, batched=30)


@pytest.fixture(scope="module")
def places() -> Iterator[Stores]:
    with stores() as opened:
        yield opened


@pytest.mark.parametrize("kind", Kind)
def test_postroom_contender_takes_in_and_drains_every_job(places: Stores, kind: Kind) -> None:
    with places.fresh(kind) as store:
        rates = throughput(store, TINY, {})

    assert set(rates) == set(Measure)
    assert all(rate > 0 for rate in rates.values())


def test_several_workers_drain_one_queue(places: Stores) -> None:
    assert queue_workers.drain(places, queue_workers.POSTROOM, workers=2, at_a_time=10, jobs=50).jobs_per_second > 0


def test_raw_loop_works_on_the_schema_of_the_product(places: Stores) -> None:
    with places.fresh(Kind.SQLITE_FULL) as store:
        rates = sqlite_loop(store, Load(single=3, batched=250), {})

    assert set(rates) == set(Measure) - {Measure.ENQUEUE_CALLERS}


def test_contender_runs_in_a_process_of_its_own(places: Stores) -> None:
    with places.fresh(Kind.SQLITE_NORMAL) as store:
        rates = queue_contenders.run("benchmarks.queue_raw_loops:sqlite_loop", store, TINY, {}, time_limit_s=60)

    assert rates[Measure.DRAIN] > 0


def test_contender_that_breaks_is_reported_with_its_reason(places: Stores) -> None:
    with (
        places.fresh(Kind.SQLITE_NORMAL) as store,
        pytest.raises(queue_contenders.ContenderFailed, match="no_such_loop"),
    ):
        queue_contenders.run("benchmarks.queue_raw_loops:no_such_loop", store, TINY, {}, time_limit_s=60)


@pytest.mark.parametrize("kind", [Kind.SQLITE_FULL, Kind.POSTGRESQL])
def test_claims_are_timed_at_every_level(places: Stores, kind: Kind) -> None:
    levels = (Level(), Level(scheduled=20), Level(finished=10), Level(finished=20))
    with ExitStack() as stack:
        filled = [(level, stack.enter_context(places.fresh(kind))) for level in levels]
        costs = asyncio.run(measure_claim_cost(filled, samples=2))

    assert {(cost.level, cost.claim_size) for cost in costs} == {
        (level, size) for level in levels for size in CLAIM_SIZES
    }
    assert len(judge_claims(kind, costs)) == 2 * len(CLAIM_SIZES)


@pytest.mark.parametrize("kind", [Kind.SQLITE_FULL, Kind.POSTGRESQL])
def test_idle_latency_has_a_figure_for_every_sample(places: Stores, kind: Kind) -> None:
    with places.fresh(kind) as store:
        samples = latency(store, samples=3)

    assert len(samples) == 3
    assert min(samples) > 0


def test_every_peer_is_optional() -> None:
    assert all(entry.needs for entry in ENTRIES if entry.is_peer)


def test_missed_goal_is_said_plainly_and_kept(tmp_path: Path) -> None:
    ours = Figures("Postroom", Kind.SQLITE_FULL, rates={Measure.DRAIN: [100.0, 90.0, 110.0]})
    peer = Figures("peer", Kind.SQLITE_FULL, rates={Measure.DRAIN: [80.0]})
    verdicts = judge_throughput(Kind.SQLITE_FULL, [ours, peer])
    console = Console(record=True, width=140, file=(tmp_path / "console.txt").open("w"))

    console.print(report.verdict_table(verdicts))
    report.write_json(tmp_path / "out" / "queue.json", {"cores": 2}, [ours, peer], {}, [], verdicts)
    console.file.close()

    assert "MISSED" in console.export_text()
    kept = json.loads((tmp_path / "out" / "queue.json").read_text())
    assert kept["goals"][0]["measured"] == pytest.approx(1.25)
    assert kept["goals"][0]["met"] is False


def test_goal_without_its_figures_is_neither_met_nor_missed() -> None:
    verdicts = [*judge_throughput(Kind.POSTGRESQL, []), *judge_enqueuing(Kind.POSTGRESQL, [])]

    assert all(isinstance(verdict, Verdict) and verdict.met is None for verdict in verdicts)


def test_quick_run_measures_less_of_everything() -> None:
    assert queue.QUICK.rounds < queue.FULL.rounds
    assert queue.QUICK.share_of_load < queue.FULL.share_of_load
    assert queue.QUICK.samples < queue.FULL.samples
