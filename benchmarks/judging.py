"""Judges kept figures by the goals in force today, so that the table needs no new run when a goal changes.

Every benchmark judges what it has just measured; here the same functions judge what it wrote down. A part without an
entry keeps the verdicts of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from tests.support.soaking import SoakRun

from benchmarks import (
    archive,
    dashboard,
    gmail,
    growth,
    imap,
    queue_workers,
    report,
    scale,
    soak,
    starting,
    switchboard,
    sync,
    triage,
    whole_way,
)
from benchmarks.archive_mail import Kind as MailKind
from benchmarks.databases import Kind
from benchmarks.detail import Kept
from benchmarks.queue_contract import Measure
from benchmarks.queue_postroom import ClaimCost, Level
from benchmarks.report import Figures, Latency, Verdict


def judge_queue(kept: Kept) -> Sequence[Verdict]:
    figures = [_throughput(each) for each in kept["throughput"]]
    claims = {Kind(kind): [_claim_cost(each) for each in costs] for kind, costs in kept["claims"].items()}
    latencies = [Latency(Kind(each["kind"]), each["p50_ms"], each["p95_ms"]) for each in kept["latency"]]
    return report.judge_queue(figures, claims, latencies)


def _throughput(kept: Kept) -> Figures:
    rates = {Measure(measure): found for measure, found in kept["rates"].items()}
    return Figures(kept["contender"], Kind(kept["kind"]), kept["options"], rates, kept["failure"])


def _claim_cost(kept: Kept) -> ClaimCost:
    return ClaimCost(Level(**kept["level"]), kept["claim_size"], kept["median_us"])


def judge_gmail(kept: Kept) -> Sequence[Verdict]:
    runs = [gmail.Run(**run) for run in kept["runs"]]
    return gmail.judge(runs, _delays(runs), [gmail.QuotaUse(**use) for use in kept["quota"]])


def judge_archive(kept: Kept) -> Sequence[Verdict]:
    imports = [archive.Import(**one) for one in kept["imports"]]
    searches = [archive.Latency(**one) for one in kept["searches"]]
    machine = kept["machine"]
    return archive.judge(imports, searches, MailKind(machine["mail"]), machine["messages"])


def judge_sync(kept: Kept) -> Sequence[Verdict]:
    runs = [sync.SyncRun(**run) for run in kept["runs"]]
    quotas = [sync.SyncQuotaUse(**use) for use in kept["quota"]]
    return sync.judge(runs, _delays(runs), quotas, sync.SyncRun(**kept["memory"]))


def _delays(runs: Sequence[gmail.Run] | Sequence[sync.SyncRun]) -> list[int]:
    return list(dict.fromkeys(run.delay_ms for run in runs))


def judge_imap(kept: Kept) -> Sequence[Verdict]:
    return imap.judge([imap.ImapRun(**run) for run in kept["runs"]])


def judge_soak(kept: Kept) -> Sequence[Verdict]:
    return soak.judge(SoakRun(**kept["run"]))


def judge_switchboard(kept: Kept) -> Sequence[Verdict]:
    return switchboard.judge([switchboard.Run(**(run | {"kind": Kind(run["kind"])})) for run in kept["runs"]])


def judge_whole_way(kept: Kept) -> Sequence[Verdict]:
    return whole_way.judge(whole_way.Burst(**kept["burst"]), kept["latencies_ms"])


def judge_triage(kept: Kept) -> Sequence[Verdict]:
    rates, trials = kept["rates"], kept["trials"]
    return triage.judged([triage.Rate(**rate) for rate in rates], [triage.TrialTime(**trial) for trial in trials])


def judge_dashboard(kept: Kept) -> Sequence[Verdict]:
    return dashboard.judge([dashboard.PageTime(**each) for each in kept["pages"]], kept["not_reached"])


def judge_queue_workers(kept: Kept) -> Sequence[Verdict]:
    return queue_workers.judge([queue_workers.Drain(**each) for each in kept["drains"]])


def judge_starting(kept: Kept) -> Sequence[Verdict]:
    return starting.judge(starting.StartFigures(**kept["figures"]))


def judge_scale(kept: Kept) -> Sequence[Verdict]:
    waiting = [scale.WaitingRun(**each) for each in kept["waiting"]]
    return scale.judge([scale.ScaleRun(**run) for run in kept["runs"]], waiting)


def judge_growth(kept: Kept) -> Sequence[Verdict]:
    return growth.judge([growth.Cost(**each) for each in kept["costs"]])


JUDGES: dict[str, Callable[[Kept], Sequence[Verdict]]] = {
    "queue": judge_queue,
    "queue_workers": judge_queue_workers,
    "gmail": judge_gmail,
    "archive": judge_archive,
    "archive_documents": judge_archive,
    "archive_million": judge_archive,
    "sync": judge_sync,
    "imap": judge_imap,
    "switchboard": judge_switchboard,
    "whole_way": judge_whole_way,
    "triage": judge_triage,
    "scale": judge_scale,
    "growth": judge_growth,
    "starting": judge_starting,
    "dashboard": judge_dashboard,
    "soak": judge_soak,
}


def judged(part: str, kept: Kept) -> Kept:
    """The same figures with today's verdicts."""
    judge = JUDGES.get(part)
    return kept if judge is None else kept | {"goals": [asdict(verdict) for verdict in judge(kept)]}
