"""Numbers over time: how they are read from the series, charts of them with a table behind each, and their JSON.

The overview, the queue and the archive show the same series, over the last hour, 24 hours, 7 or 30 days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from postroom.dashboard.context import Here, api_router, permits
from postroom.dashboard.display.charts import Chart, Track, columns_over_time, lines_over_time
from postroom.dashboard.display.formatting import count, duration, money, percent, plural
from postroom.dashboard.forms import query_of
from postroom.db import Tx
from postroom.db.series import StoredBucket, read_buckets
from postroom.domain.roles import Permission
from postroom.telemetry.series import NO_BOUND, Amount, Resolution, Series, percentile


class TimeWindow(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def label(self) -> str:
        return _SHAPES[self].label


@dataclass(frozen=True, slots=True)
class _Shape:
    label: str
    resolution: Resolution
    buckets: int
    """So many buckets are one point."""
    points: int
    time_format: str

    @property
    def step(self) -> timedelta:
        return self.buckets * self.resolution.length


_SHAPES = {
    TimeWindow.HOUR: _Shape("Last hour", Resolution.MINUTE, 1, 60, "%H:%M"),
    TimeWindow.DAY: _Shape("24 hours", Resolution.HOUR, 1, 24, "%d %b %H:%M"),
    TimeWindow.WEEK: _Shape("7 days", Resolution.HOUR, 6, 28, "%d %b %H:%M"),
    TimeWindow.MONTH: _Shape("30 days", Resolution.DAY, 1, 30, "%d %b"),
}


class SeriesTopic(StrEnum):
    MAIL = "mail"
    DECISIONS = "decisions"
    SPEND = "spend"
    QUEUE = "queue"
    SYNC = "sync"


def _named(prefix: str) -> tuple[Series, ...]:
    return tuple(each for each in Series if each.startswith(prefix))


TOPICS: dict[SeriesTopic, tuple[Series, ...]] = {
    SeriesTopic.MAIL: _named("mail."),
    SeriesTopic.DECISIONS: _named("decided."),
    SeriesTopic.SPEND: (Series.SPEND,),
    SeriesTopic.QUEUE: _named("queue."),
    SeriesTopic.SYNC: _named("sync."),
}


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """What happened from `start` on, for one step."""

    start: datetime
    count: int
    total: float
    most: float
    median: float | None = None
    """Of lengths of time, in seconds: half of them are at most this."""
    slow: float | None = None
    """95 % of them are at most this."""

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class SeriesReading:
    window: TimeWindow
    step_s: float
    series: dict[Series, list[SeriesPoint]]
    """The oldest point first. The last one is not over yet."""


class SeriesQuery(BaseModel, frozen=True):
    window: TimeWindow = Field(TimeWindow.DAY, description="how far back")
    about: SeriesTopic | None = Field(None, description="only series about this")


def read_series(tx: Tx, names: Iterable[Series], window: TimeWindow, now: datetime) -> SeriesReading:
    """Every series with all its points, also those at which nothing happened."""
    shape, names = _SHAPES[window], tuple(names)
    starts = starts_of(window, now)
    stored = read_buckets(tx, names, shape.resolution, starts[0], starts[-1] + shape.step)
    sorted_in: dict[tuple[Series, int], list[StoredBucket]] = defaultdict(list)
    for bucket in stored:
        sorted_in[bucket.series, int((bucket.start - starts[0]) / shape.step)].append(bucket)
    series = {name: [_point(start, sorted_in[name, at]) for at, start in enumerate(starts)] for name in names}
    return SeriesReading(window, shape.step.total_seconds(), series)


def starts_of(window: TimeWindow, now: datetime) -> list[datetime]:
    """Of all points, the oldest first; the last one holds `now`."""
    shape = _SHAPES[window]
    last = shape.resolution.start_of(now)
    if shape.resolution is Resolution.HOUR:
        last = last.replace(hour=last.hour - last.hour % shape.buckets)
    return [last - back * shape.step for back in reversed(range(shape.points))]


def _point(start: datetime, buckets: Sequence[StoredBucket]) -> SeriesPoint:
    whole, bounds = Amount(), defaultdict[int, int](int)
    for bucket in buckets:
        whole += bucket.amount
        if bucket.bound != NO_BOUND:
            bounds[bucket.bound] += bucket.amount.count
    times = percentile(bounds, 0.5), percentile(bounds, 0.95)
    return SeriesPoint(start, whole.count, whole.total, whole.most, *times)


@dataclass(frozen=True, slots=True)
class SeriesPanel:
    """A chart over time, what its colours mean, and its numbers as a table."""

    id: str
    title: str
    summary: str
    chart: Chart
    is_stacked: bool
    names: list[str]
    most: str
    """The height of the chart, in words."""
    rows: list[tuple[datetime, str, list[str]]]
    """When, in words too, and the values as they are said; the newest first."""
    nothing: str = "No data in this period"
    """What it says where nothing was recorded."""

    @property
    def since(self) -> str:
        return self.rows[-1][1]

    @property
    def is_empty(self) -> bool:
        return not self.most


NOT_KNOWN = "\N{EN DASH}"
Values = Sequence[float | None]
Say = Callable[[float], str]


def _panel(
    window: TimeWindow,
    starts: Sequence[datetime],
    head: tuple[str, str, str],
    tracks: Mapping[str, Values],
    say: Say,
    *,
    stacked: bool = False,
) -> SeriesPanel:
    """`head` is id, title and summary."""
    panel_id, title, summary = head
    said = f"{title}, {_SHAPES[window].label.lower()}"
    whole = [Track(name, values, _whole(values, say, is_sum=stacked)) for name, values in tracks.items()]
    moments = list(zip(*tracks.values(), strict=True))
    heights = [
        sum(each or 0 for each in moment) if stacked else max(each or 0 for each in moment) for moment in moments
    ]
    shape = _SHAPES[window].time_format
    rows = [
        (start, start.strftime(shape), [NOT_KNOWN if value is None else say(value) for value in moment])
        for start, moment in zip(starts, moments, strict=True)
    ]
    return SeriesPanel(
        panel_id,
        title,
        summary,
        (columns_over_time if stacked else lines_over_time)(said, whole),
        stacked,
        list(tracks),
        say(max(heights)) if any(heights) else "",
        rows[::-1],
    )


def _whole(values: Values, say: Say, *, is_sum: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not known"
    return say(sum(known)) if is_sum else f"{say(known[-1])}, at most {say(max(known))}"


def _number(value: float) -> str:
    return count(round(value))


def _decimal(value: float) -> str:
    return (
        count(round(value))
        if value >= 10 or value == int(value)
        else f"{value:.1f}"
        if value >= 0.1
        else f"{value:.3f}"
    )


def _counts(reading: SeriesReading, *names: Series) -> list[float]:
    return [
        float(sum(point.count for point in points)) for points in zip(*(reading.series[n] for n in names), strict=True)
    ]


def _starts(reading: SeriesReading) -> list[datetime]:
    return [point.start for point in next(iter(reading.series.values()))]


_MAIL = {
    "High priority": (Series.MAIL_LIVE_HIGH_PRIORITY,),
    "Interactive": (Series.MAIL_LIVE_INTERACTIVE,),
    "Default": (Series.MAIL_LIVE_DEFAULT,),
    "Backfill": (
        Series.MAIL_HISTORY_HIGH_PRIORITY,
        Series.MAIL_HISTORY_INTERACTIVE,
        Series.MAIL_HISTORY_DEFAULT,
    ),
}
_DECIDED = {
    "Rules": (Series.DECIDED_BY_RULE,),
    "Learned": (Series.DECIDED_BY_LEARNING,),
    "Model": (Series.DECIDED_BY_MODEL,),
    "No decision": (Series.DECIDED_BY_NONE,),
}


def mail_panels(reading: SeriesReading) -> list[SeriesPanel]:
    """Mail by tier, decisions by who decided, and what the model cost."""
    starts = _starts(reading)
    found = []
    for panel_id, title, kinds, noun in (
        ("mail", "Mail by tier", _MAIL, "messages"),
        ("decisions", "Decisions by who decided", _DECIDED, "decisions"),
    ):
        tracks = {name: _counts(reading, *series) for name, series in kinds.items()}
        summary = f"{count(int(sum(map(sum, tracks.values()))))} {noun}"
        found.append(_panel(reading.window, starts, (panel_id, title, summary), tracks, _number, stacked=True))
    spent = [point.total for point in reading.series[Series.SPEND]]
    calls = int(sum(_counts(reading, Series.SPEND)))
    summary = f"{money(round(sum(spent)))} for {count(calls)} model {'call' if calls == 1 else 'calls'}"
    head = "spend", "Model spend", summary
    return [*found, _panel(reading.window, starts, head, {"Spend": spent}, lambda v: money(round(v)), stacked=True)]


_QUEUES = {"Live": "live", "Work": "work", "History": "history"}


def queue_panels(reading: SeriesReading, *, briefly: bool = False) -> list[SeriesPanel]:
    """Depth, waiting times and failures; `briefly` without the waiting times of the less urgent queues."""
    starts, window = _starts(reading), reading.window
    depths: dict[str, Values] = {
        name: [point.most if point.count else None for point in reading.series[Series(f"queue.depth.{queue}")]]
        for name, queue in _QUEUES.items()
    }
    panels = [_panel(window, starts, ("depth", "Queue depth", "most jobs waiting"), depths, _number)]
    for name, queue in list(_QUEUES.items())[: 1 if briefly else None]:
        head = f"wait-{queue}", f"Waiting time, {name.lower()} queue", "median and 95th percentile"
        panels.append(_panel(window, starts, head, _times(reading, Series(f"queue.wait.{queue}")), duration))
    failed, repeated = _counts(reading, Series.JOBS_FAILED), _counts(reading, Series.JOBS_RETRIED)
    head = "failures", "Failures", _failures(round(sum(failed)), round(sum(repeated)))
    ended = {"Jobs that failed": failed, "Attempts to repeat": repeated}
    ends = _panel(window, starts, head, ended, _number, stacked=True)
    return [*panels, replace(ends, nothing=head[2])]


def _failures(failed: int, repeated: int) -> str:
    """Whether anything is wrong: an attempt that is repeated needs no one, a job that failed may."""
    attempts = f"; {plural(repeated, 'attempt')} without success, repeated automatically" if repeated else ""
    return f"{plural(failed, 'job') if failed else 'No job'} failed{attempts}"


def sync_panels(reading: SeriesReading) -> list[SeriesPanel]:
    starts, window, series = _starts(reading), reading.window, reading.series
    rates: Values = [point.count / reading.step_s for point in series[Series.SYNC_REQUESTS]]
    trouble = {
        name: _counts(reading, each)
        for name, each in (
            ("Retries", Series.SYNC_RETRIES),
            ("Throttled", Series.SYNC_THROTTLED),
            ("Splits", Series.SYNC_SPLITS),
        )
    }
    done, bad = _counts(reading, Series.SYNC_MESSAGES), _counts(reading, Series.SYNC_BAD)
    shares: Values = [b / d if d else None for b, d in zip(bad, done, strict=True)]
    lags: Values = [point.mean for point in series[Series.SYNC_LAG]]
    requests = f"{_number(sum(_counts(reading, Series.SYNC_REQUESTS)))} requests to Gmail"
    total = f"{_number(sum(bad))} of {_number(sum(done))} messages"
    return [
        _panel(window, starts, ("requests", "Requests a second", requests), {"Requests a second": rates}, _decimal),
        _panel(
            window,
            starts,
            ("latency", "Latency", "median and 95th percentile"),
            _times(reading, Series.SYNC_REQUESTS),
            duration,
        ),
        _panel(
            window,
            starts,
            ("trouble", "Retries, throttling, splits", f"{_number(sum(map(sum, trouble.values())))} in all"),
            dict(trouble),
            _number,
            stacked=True,
        ),
        _panel(window, starts, ("bad", "Bad messages", total), {"Bad": shares}, lambda value: percent(value, 1)),
        _panel(window, starts, ("lag", "Watermark lag", "mailbox furthest behind"), {"Lag": lags}, duration),
    ]


def _times(reading: SeriesReading, name: Series) -> dict[str, Values]:
    points = reading.series[name]
    return {"Median": [point.median for point in points], "95th percentile": [point.slow for point in points]}


def window_links(path: str, chosen: TimeWindow, **filters: object) -> list[tuple[str, str, bool]]:
    """Tabs of a page that keeps its filters: address, text, and whether it is the current one."""
    return [
        (f"{path}?{query_of(**filters, window=each.value)}#over-time", each.label, each is chosen)
        for each in TimeWindow
    ]


api = api_router("series")


@api.get("")
@permits(Permission.READ)
async def show_series(here: Here, wanted: Annotated[SeriesQuery, Query()]) -> SeriesReading:
    """Mail, decisions, spend, queue and sync over time. Totals of spend are micro-dollars, those of times are seconds;
    depths and lag are samples, whose mean is total by count."""
    names = [name for topic, names in TOPICS.items() if wanted.about in (None, topic) for name in names]
    return await here.read(lambda tx: read_series(tx, names, wanted.window, here.now))
