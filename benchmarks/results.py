"""The figures of one run, and how they compare with the goals of the design."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from benchmarks.claim_cost import CLAIM_SIZES, ClaimCost
from benchmarks.contenders import POSTROOM, RAW
from benchmarks.contract import Measure
from benchmarks.stores import Kind

LEAST_OVER_PEERS = {Kind.SQLITE_NORMAL: 2.0, Kind.SQLITE_FULL: 2.0, Kind.POSTGRESQL: 1.5}
MOST_UNDER_RAW = 2.0
MOST_CLAIM_GROWTH = 1.5
MOST_LATENCY_MS = 50.0


@dataclass(slots=True)
class Figures:
    """What one contender did on one database. `rates` holds every run; the median is what counts."""

    contender: str
    kind: Kind
    options: dict[str, int] = field(default_factory=dict)
    rates: dict[Measure, list[float]] = field(default_factory=dict)
    failure: str | None = None

    def add(self, rates: dict[Measure, float]) -> None:
        for measure, rate in rates.items():
            self.rates.setdefault(measure, []).append(rate)

    def rate(self, measure: Measure) -> float | None:
        return median(self.rates[measure]) if measure in self.rates else None


@dataclass(frozen=True, slots=True)
class Latency:
    kind: Kind
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, kind: Kind, samples_ms: Sequence[float]) -> Latency:
        return cls(kind, median(samples_ms), quantiles(samples_ms, n=20)[-1])


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the summary. `measured` is None where something it needs could not be measured."""

    what: str
    measured: float | None
    goal: str
    met: bool | None
    unit: str = "x"
    ours: float | None = None
    """Where `measured` is a ratio, the figures that it is made of."""
    peer: str | None = None
    theirs: float | None = None


def judge_throughput(kind: Kind, figures: Iterable[Figures]) -> list[Verdict]:
    drains = {each.contender: rate for each in figures if each.kind is kind and (rate := each.rate(Measure.DRAIN))}
    ours = drains.pop(POSTROOM, None)
    raw = drains.pop(RAW, None)
    best = max(drains, key=drains.__getitem__, default=None)
    over = ours / drains[best] if ours and best else None
    under = raw / ours if ours and raw else None
    least = LEAST_OVER_PEERS[kind]
    verdicts = [
        Verdict(f"{kind}: drain, Postroom over the best peer ({best or 'none measured'})", over, f"at least {least:g}x",
                None if over is None else over >= least, ours=ours, peer=best, theirs=drains.get(best or ""))
    ]  # fmt: skip
    is_goal = kind is not Kind.POSTGRESQL  # the design sets none there; the figure is worth seeing all the same
    goal = f"at most {MOST_UNDER_RAW:g}x" if is_goal else "none"
    met = under <= MOST_UNDER_RAW if under is not None and is_goal else None
    beside = Verdict(
        f"{kind}: drain, raw loop over Postroom", under, goal, met, ours=ours, peer="a raw loop", theirs=raw
    )
    return [*verdicts, beside]


def judge_claims(kind: Kind, costs: Sequence[ClaimCost]) -> list[Verdict]:
    verdicts = []
    for size in CLAIM_SIZES:
        ahead = [cost for cost in costs if cost.claim_size == size and not cost.level.finished]
        behind = [cost for cost in costs if cost.claim_size == size and cost.level.finished]
        for line, attribute in ((ahead, "scheduled"), (behind, "finished")):
            low, high = (getattr(line[end].level, attribute) for end in (0, -1))
            growth = max(cost.median_us for cost in line) / line[0].median_us
            what = f"{kind}: claim of {size}, from {low:,} to {high:,} {attribute} jobs"
            verdicts.append(Verdict(what, growth, f"at most {MOST_CLAIM_GROWTH:g}x", growth <= MOST_CLAIM_GROWTH))
    return verdicts


def judge_latency(latency: Latency) -> Verdict:
    met = latency.p95_ms <= MOST_LATENCY_MS
    goal = f"at most {MOST_LATENCY_MS:g} ms"
    return Verdict(
        f"{latency.kind}: enqueue into idle system until handler starts, p95", latency.p95_ms, goal, met, " ms"
    )
