"""Proves from the log alone that the watermark was always right: it never went back, and never ran ahead.

It may stand at T only if slices that were stored before (listed to the end, every message accounted for, the shards
checkpointed) cover all time before T, without a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
_SETTLED = ("stored", "known", "gone", "bad")


class TraceError(AssertionError):
    """The log tells of something that must never happen."""


@dataclass
class _Listing:
    start: int
    end: int | None
    listed: int
    outcomes: Counter[str]


@dataclass
class SyncTrace:
    """One account's log, event by event, over all its processes."""

    watermark: int = 0
    moves: int = 0
    _outcomes: dict[int, Counter[str]] = field(default_factory=dict)
    _listings: dict[int, _Listing] = field(default_factory=dict)
    _covered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def feed(self, event: Event) -> None:
        match event["event"]:
            case "walk.begun":
                self._covered[event["walk"]] = []
            case "walk.at":
                self._forget_listings()
                self._see(event["walk"], event["watermark"])
            case "job.attempted":
                self._add(event["listing"], event)
            case "message.bad":
                self._add(event["listing"], {"bad": 1})
            case "slice.listed":
                self._listed(event)
            case "slice.stored":
                self._stored(event)
            case "watermark.moved":
                self._moved(event)

    def _forget_listings(self) -> None:
        """A walk that goes on numbers its listings anew; those under way when it was broken off count for nothing."""
        self._outcomes.clear()
        self._listings.clear()

    def _add(self, listing: int, counts: Event) -> None:
        outcomes = self._outcomes.setdefault(listing, Counter())
        outcomes.update({name: counts.get(name, 0) for name in _SETTLED})

    def _listed(self, event: Event) -> None:
        self._add(event["listing"], event)
        listing = event["listing"]
        self._listings[listing] = _Listing(event["start"], event["end"], event["listed"], self._outcomes[listing])

    def _stored(self, event: Event) -> None:
        listing = self._listings.pop(event["listing"], None)
        if listing is None:
            raise TraceError(f"a slice is stored that was never listed to its end: {event}")
        if (listing.start, listing.end) != (event["start"], event["end"]):
            raise TraceError(f"another slice is stored than was listed: {event}")
        if listing.outcomes.total() != listing.listed:
            raise TraceError(f"{listing.listed} messages were listed, and {listing.outcomes} is known of them: {event}")
        if listing.end is not None:
            self._covered.setdefault(event["walk"], []).append((listing.start, listing.end))

    def _moved(self, event: Event) -> None:
        if event["to"] <= event["since"]:
            raise TraceError(f"the watermark did not move forward: {event}")
        self._see(event["walk"], event["since"])
        self._see(event["walk"], event["to"])
        self.moves += 1

    def _see(self, walk: int, watermark: int) -> None:
        if watermark < self.watermark:
            raise TraceError(f"the watermark went back from {self.watermark} to {watermark}")
        reached = max((self._reach(each) for each in self._covered), default=0)
        if watermark > reached:
            raise TraceError(f"the watermark ran ahead: it stands at {watermark}, and only {reached} is proved")
        self.watermark = watermark

    def _reach(self, walk: int) -> int:
        reached = 0
        for start, end in sorted(self._covered[walk]):
            if start > reached:
                break
            reached = max(reached, end)
        return reached


def check(runs: Iterable[Iterable[Event]]) -> SyncTrace:
    """The logs of the processes, one after the other."""
    trace = SyncTrace()
    for run in runs:
        for event in run:
            trace.feed(event)
    return trace
