"""The tables of docs/benchmarks.md that show a part's figures one by one, made from what the part left behind. Each
takes the place between its marks on the page; `benchmarks.goals` puts them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median, quantiles
from typing import Any

Kept = dict[str, Any]
"""The figures of one part, as its file has them."""
Figures = Mapping[str, Kept]
"""The same of all parts that were measured, by name."""
Row = Sequence[str]

_DRAIN = "drain, jobs/s"


def table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def fine(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def spread(values: Sequence[float]) -> str:
    """The median, and the lowest and highest where there were several."""
    if not values:
        return ""
    around = f" ({count(min(values))} to {count(max(values))})" if len(values) > 1 else ""
    return f"{count(median(values))}{around}"


def when(kept: Kept) -> str:
    machine = kept["machine"]
    loads = machine.get("load_average_before", [0.0])
    return f"{datetime.fromisoformat(machine['date']):%d %B %Y}, Python {machine['python']}, load before {loads[0]:g}."


def queue(figures: Figures) -> Iterator[str]:
    kept = figures["queue"]
    kinds = list(dict.fromkeys(each["kind"] for each in kept["throughput"]))
    rows = []
    for name in dict.fromkeys(each["contender"] for each in kept["throughput"]):
        found = {each["kind"]: each["rates"] for each in kept["throughput"] if each["contender"] == name}
        rows.append([name, *(spread(found.get(kind, {}).get(_DRAIN, [])) for kind in kinds)])
    yield from table(["jobs drained a second", *kinds], rows)
    yield ""
    ours = {each["kind"]: each["rates"] for each in kept["throughput"] if each["contender"] == "Postroom"}
    measures = list(dict.fromkeys(measure for rates in ours.values() for measure in rates))
    listed = [[measure, *(spread(ours[kind].get(measure, [])) for kind in kinds)] for measure in measures]
    yield from table(["Postroom", *kinds], listed)
    yield ""
    yield when(kept)


def queue_workers(figures: Figures) -> Iterator[str]:
    kept = figures["queue_workers"]
    settings = dict.fromkeys((each["contender"], each["at_a_time"]) for each in kept["drains"])
    workers = list(dict.fromkeys(each["workers"] for each in kept["drains"]))
    rows = []
    for name, at_a_time in settings:
        rates = [
            [each["jobs_per_second"] for each in kept["drains"] if _is_drain(each, name, at_a_time, many)]
            for many in workers
        ]
        rows.append([f"{name}, {at_a_time:,} at a time", *map(spread, rates)])
    yield from table(
        ["jobs drained a second", *(f"{many} workers" if many > 1 else "1 worker" for many in workers)], rows
    )
    yield ""
    yield when(kept)


def _is_drain(drain: Kept, contender: str, at_a_time: int, workers: int) -> bool:
    same = (drain["contender"], drain["at_a_time"], drain["workers"]) == (contender, at_a_time, workers)
    return same and drain["held"] is None


def gmail(figures: Figures) -> Iterator[str]:
    kept = figures["gmail"]
    yield from _over_delays(kept, "messages fetched a second", "client_cpu_us")


def sync(figures: Figures) -> Iterator[str]:
    kept = figures["sync"]
    yield from _over_delays(kept, "messages a second, stored but for the first", "cpu_us")


def _over_delays(kept: Kept, head: str, cpu: str) -> Iterator[str]:
    delays = list(dict.fromkeys(run["delay_ms"] for run in kept["runs"]))
    rows = []
    for name in dict.fromkeys(run["contender"] for run in kept["runs"]):
        runs = [[run for run in kept["runs"] if (run["contender"], run["delay_ms"]) == (name, ms)] for ms in delays]
        rates = [spread([run["messages_per_second"] for run in some]) for some in runs]
        rows.append([name, *rates, f"{median(run[cpu] for run in runs[0]):.0f} µs"])
    named = [f"{delay} ms of delay" if delay else "loopback" for delay in delays]
    yield from table([head, *named, "its CPU a message"], rows)
    yield ""
    yield when(kept)


def imports(figures: Figures) -> Iterator[str]:
    rows = []
    for part, what in (
        ("archive", "250,000"),
        ("archive_documents", "with documents"),
        ("archive_million", "1,000,000"),
    ):
        if part in figures:
            rows += list(_imports(figures[part], what))
    yield from table(["import", "of", "messages a second", "over notmuch", "CPU a message", "memory", "disk"], rows)
    yield ""
    yield when(figures["archive"])


def _imports(kept: Kept, what: str) -> Iterator[Row]:
    rates = {one["contender"]: one["messages_per_second"] for one in kept["imports"]}
    theirs = next((rate for name, rate in rates.items() if name.startswith("notmuch")), None)
    for one in kept["imports"]:
        rate, is_peer = one["messages_per_second"], one["contender"].startswith("notmuch")
        over = f"{rate / theirs:.2f}x" if theirs and not is_peer else ""
        cpu = one["cpu_seconds"] * 1e6 / kept["machine"]["messages"]
        disk = f"{one['disk_mb'] / 1_000:.1f} GB"
        yield [one["contender"], what, count(rate), over, f"{cpu:.0f} µs", f"{one['peak_mb']:.0f} MB", disk]


def searches(figures: Figures) -> Iterator[str]:
    columns = [("archive", "ours"), ("archive", "theirs"), ("archive_documents", "ours"), ("archive_million", "ours")]
    found = {name: {one["kind"]: one for one in figures.get(name, {}).get("searches", ())} for name, _ in columns}
    kinds = dict.fromkeys(kind for name in found for kind in found[name])
    rows = [
        [kind, *(_milliseconds(found[name].get(kind), whose, p) for name, whose in columns for p in ("p50", "p95"))]
        for kind in kinds
    ]
    head = ["ms", "250,000: p50", "p95", "notmuch: p50", "p95", "with documents: p50", "p95", "1,000,000: p50", "p95"]
    yield from table(head, rows)
    yield ""
    yield when(figures["archive"])


def _milliseconds(one: Kept | None, whose: str, which: str) -> str:
    value = None if one is None else one[f"{whose}_{which}_ms"]
    return "" if value is None else f"{value:.1f}"


def imap(figures: Figures) -> Iterator[str]:
    runs = figures["imap"]["runs"]
    rows = []
    for messages, extensions, name in dict.fromkeys((r["messages"], r["extensions"], r["contender"]) for r in runs):
        some = [r for r in runs if (r["messages"], r["extensions"], r["contender"]) == (messages, extensions, name)]
        rates = spread([messages / run["first_s"] for run in some])
        again, check = (median(run[figure] for run in some) for figure in ("again_s", "check_s"))
        server = "all extensions" if extensions else "none"
        process = f"{check:.2f} s" if name == "postroom" else ""
        rows.append([f"{messages:,}", server, name, rates, f"{again:.2f} s", process])
    head = ["messages", "the server has", "", "first sync, a second", "nothing new: a process", "in a running one"]
    yield from table(head, rows)
    yield ""
    yield when(figures["imap"])


def whole_way(figures: Figures) -> Iterator[str]:
    kept = figures["whole_way"]
    burst, alone = kept["burst"], kept["latencies_ms"]
    cpu_ms = burst["cpu_s"] * 1_000 / burst["messages"]
    rows = [[stage, f"{share * cpu_ms:.2f} ms"] for stage, share in burst["stages"].items()]
    yield from table(["stage", "CPU a message"], [*rows, ["**all**", f"**{cpu_ms:.2f} ms**"]])
    yield ""
    rate = burst["messages"] / burst["seconds"]
    yield (
        f"{count(rate)} messages a second in a burst of {burst['messages']:,}; one message on an idle system is acted "
        f"on {median(alone):.0f} ms (p95 {quantiles(alone, n=20)[-1]:.0f}) after the look that found it. {when(kept)}"
    )


def starting(figures: Figures) -> Iterator[str]:
    kept = figures["starting"]
    found = kept["figures"]
    rows = [
        ["`postroom --help`", f"{found['help_s']:.2f} s", f"{found['help_cpu_s']:.2f} s"],
        ["`postroom search`", f"{found['search_s']:.2f} s", f"{found['search_cpu_s']:.2f} s"],
        ["`postroom up`, until it serves", f"{found['up_s']:.2f} s", f"{found['up_cpu_s']:.2f} s"],
        ["an idle `up`", f"{found['idle_mb']:.0f} MB", f"{found['idle_percent']:.2f} % of a core"],
    ]
    yield from table(["", "clock, or memory", "CPU"], rows)
    yield ""
    yield when(kept)


def scale(figures: Figures) -> Iterator[str]:
    kept = figures["scale"]
    rows = [
        [
            f"{run['workers']}",
            count(run["decided_per_second"]),
            f"{run['cpu_ms']:.1f} ms",
            fine(run["lock_waits"] / run["samples"]),
            f"{run['connections']}",
        ]
        for run in kept["runs"]
    ]
    head = [
        "workers",
        "decided a second",
        "CPU of all workers a message",
        "connections waiting for a lock",
        "connections",
    ]
    yield from table(head, rows)
    yield ""
    yield when(kept)


def growth(figures: Figures) -> Iterator[str]:
    kept = figures["growth"]
    sizes = sorted({cost["size"] for cost in kept["costs"]})
    rows = []
    for what in dict.fromkeys(cost["what"] for cost in kept["costs"]):
        found = {cost["size"]: cost["microseconds"] for cost in kept["costs"] if cost["what"] == what}
        rows.append([what, *(fine(found[size]) for size in sizes), f"{found[sizes[-1]] / found[sizes[0]]:.2f}x"])
    yield from table(["CPU of a unit, µs", *(f"{size:,}" for size in sizes), "last over first"], rows)
    yield ""
    yield when(kept)


def switchboard(figures: Figures) -> Iterator[str]:
    kept = figures["switchboard"]
    columns = sorted({(run["kind"], run["clients"]) for run in kept["runs"]}, key=lambda each: (each[0] < "S", each))
    rates = {(run["what"], run["kind"], run["clients"]): run["per_second"] for run in kept["runs"]}
    rows = [
        [what, *(count(rates.get((what, *column))) for column in columns)]
        for what in dict.fromkeys(run["what"] for run in kept["runs"])
    ]
    named = [f"{kind}: {clients} client{'s' if clients > 1 else ''}" for kind, clients in columns]
    yield from table(["envelopes a second", *named], rows)
    yield ""
    yield when(kept)


def triage(figures: Figures) -> Iterator[str]:
    kept = figures["triage"]
    sizes = list(dict.fromkeys(rate["rules"] for rate in kept["rates"]))
    rates = {(rate["what"], rate["rules"]): rate["per_second"] for rate in kept["rates"]}
    names = dict.fromkeys(rate["what"] for rate in kept["rates"])
    rows = [[name, *(count(rates.get((name, size))) for size in sizes)] for name in names]
    yield from table(["messages a second", *(f"{size} rules" for size in sizes)], rows)
    yield ""
    tried = [[each["rule"], f"{each['seconds']:.2f} s", count(each["matched"])] for each in kept["trials"]]
    yield from table([f"trial of a rule over {kept['trials'][0]['messages']:,} messages", "", "matched"], tried)
    yield ""
    yield when(kept)


_USUAL_PAGES = (
    "/",
    "/mail",
    "/mail/{account}/{key}",
    "/queue",
    "/approvals",
    "/archive",
    "/rules",
    "/backfill/{job_id}",
)
_SLOWEST = 4


def dashboard(figures: Figures) -> Iterator[str]:
    kept = figures["dashboard"]
    found = {(each["page"], each["database"]): each for each in kept["pages"]}
    databases = list(dict.fromkeys(each["database"] for each in kept["pages"]))
    by_time = sorted(kept["pages"], key=lambda each: -each["p95_ms"])
    slowest = [
        each["page"] for name in databases for each in [one for one in by_time if one["database"] == name][:_SLOWEST]
    ]
    rows = [
        [f"`{page}`", *(_page_times(found.get((page, name))) for name in databases)]
        for page in dict.fromkeys([*_USUAL_PAGES, *slowest])
    ]
    middle = [f"{median(one['p95_ms'] for one in kept['pages'] if one['database'] == name):.0f}" for name in databases]
    head = ["page: median, p95 in ms", *databases]
    yield from table(
        head, [*rows, [f"**the middle one of {len({each['page'] for each in kept['pages']})}, p95**", *middle]]
    )
    yield ""
    yield when(kept)


def _page_times(each: Kept | None) -> str:
    return "" if each is None else f"{each['p50_ms']:.0f}, {each['p95_ms']:.0f}"


def soak(figures: Figures) -> Iterator[str]:
    kept = figures["soak"]
    run = kept["run"]
    yield (
        f"{run['messages']:,} messages, {run['decided']:,} decisions: {run['seconds'] / 60:.1f} minutes, "
        f"{max(run['sizes_mb']):.0f} MB at most. {when(kept)}"
    )


TABLES: dict[str, tuple[str, Callable[[Figures], Iterator[str]]]] = {
    "queue": ("queue", queue),
    "queue_workers": ("queue_workers", queue_workers),
    "gmail": ("gmail", gmail),
    "imports": ("archive", imports),
    "searches": ("archive", searches),
    "sync": ("sync", sync),
    "imap": ("imap", imap),
    "whole_way": ("whole_way", whole_way),
    "starting": ("starting", starting),
    "scale": ("scale", scale),
    "growth": ("growth", growth),
    "switchboard": ("switchboard", switchboard),
    "triage": ("triage", triage),
    "dashboard": ("dashboard", dashboard),
    "soak": ("soak", soak),
}
"""By the name in its marks, the part that it needs first of all, and what makes it."""


def tables(figures: Figures) -> Iterator[tuple[str, list[str]]]:
    for name, (part, made) in TABLES.items():
        yield name, list(made(figures)) if part in figures else ["Not measured."]
