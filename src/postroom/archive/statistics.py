"""What the archive holds, counted by sender, domain, year, month, hour, size, label and type of attachment, and how
long replies take.

An archive counts a shard at a time and says of each whether it changed since it was last counted; the counts of shards
add up. Pure, apart from that protocol.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from heapq import nsmallest
from itertools import groupby, pairwise
from typing import NamedTuple

MOST_VALUES = 1_000
"""So many values of each kind can be listed; how many there are in all is known too."""


class StatisticsBy(StrEnum):
    SENDER = "sender"
    DOMAIN = "domain"
    YEAR = "year"
    MONTH = "month"
    HOUR = "hour"
    SIZE = "size"
    LABEL = "label"
    TYPE = "type"


IN_ORDER = (StatisticsBy.YEAR, StatisticsBy.MONTH, StatisticsBy.HOUR, StatisticsBy.SIZE)
"""Listed by their value; the others by the number of messages."""


class Tally(NamedTuple):
    messages: int = 0
    bytes: int = 0
    attachments: int = 0
    """Messages with an attachment; by type, the attachments themselves."""

    def plus(self, other: Tally) -> Tally:
        return Tally(self.messages + other.messages, self.bytes + other.bytes, self.attachments + other.attachments)


def shown_value(by: StatisticsBy, value: str) -> str:
    """For people; mail without the thing that is counted has an empty value."""
    return value or ("(no sender)" if by in (StatisticsBy.SENDER, StatisticsBy.DOMAIN) else "none")


Counts = dict[str, Tally]
Groups = dict[str, Counts]
"""By kind: those of `StatisticsBy`, and RESPONSES."""


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    account: str
    shard: str
    stamp: str
    """Another one after any change of the shard."""
    groups: Groups | None
    """None: it has the stamp that was known."""


Row = tuple[str | None, int, int, int]
Query = Callable[[str], Iterable[Row]]
"""Runs a statement that returns a value, messages, bytes and attachments."""

SIZES = (
    ("under 10 kB", 0, 10 * 1024),
    ("10 to 100 kB", 10 * 1024, 100 * 1024),
    ("100 kB to 1 MB", 100 * 1024, 1024 * 1024),
    ("1 to 10 MB", 1024 * 1024, 10 * 1024 * 1024),
    ("10 MB and more", 10 * 1024 * 1024, None),
)
SIZE_NUMBER = "CASE " + " ".join(f"WHEN {{size}} < {end} THEN '{n}'" for n, (_, _, end) in enumerate(SIZES[:-1]))
SIZE_NUMBER += f" ELSE '{len(SIZES) - 1}' END"
"""The place of a size in SIZES, as SQL."""
_ENDING_LONGEST = 8


def grouped(rows: Iterable[Row]) -> Counts:
    counts: dict[str, Tally] = defaultdict(Tally)
    for value, messages, size, attachments in rows:
        counts[value or ""] = counts[value or ""].plus(Tally(messages, int(size), int(attachments)))
    return dict(counts)


def by_prefix(counts: Counts, shorter: Callable[[str], str]) -> Counts:
    return grouped((shorter(value), *tally) for value, tally in counts.items())


def domain_of(address: str) -> str:
    return address.rpartition("@")[2]


def ending_of(filename: str) -> str:
    """`pdf`; empty if the name has none."""
    stem, _, ending = filename.rpartition(".")
    ending = ending.strip().lower()
    return ending if stem and ending.isalnum() and len(ending) <= _ENDING_LONGEST else ""


def all_groups(query: Query, statements: Mapping[StatisticsBy, str], turns: Iterable[Turn], owner: str) -> Groups:
    """The counts of one shard; `statements` has those of the kinds that are not derived from another."""
    groups: Groups = {kind: grouped(query(statement)) for kind, statement in statements.items()}
    groups[StatisticsBy.DOMAIN] = by_prefix(groups[StatisticsBy.SENDER], domain_of)
    groups[StatisticsBy.YEAR] = by_prefix(groups[StatisticsBy.MONTH], lambda month: month[:4])
    groups[StatisticsBy.TYPE] = by_prefix(groups[StatisticsBy.TYPE], ending_of)
    groups[StatisticsBy.SIZE] = by_prefix(groups[StatisticsBy.SIZE], lambda number: SIZES[int(number)][0])
    groups[RESPONSES] = response_counts(turns, owner)
    return groups


def merged(parts: Iterable[Counts]) -> Counts:
    return grouped((value, *tally) for part in parts for value, tally in part.items())


@dataclass(frozen=True, slots=True)
class Ranking:
    """The values with the most messages, and how many values there are in all."""

    counts: Counts
    values: int


def ranked(counts: Counts, most: int = MOST_VALUES) -> Ranking:
    best = nsmallest(most, counts.items(), key=lambda item: (-item[1].messages, -item[1].bytes, item[0]))
    return Ranking(dict(best), len(counts))


def packed(ranking: Ranking) -> bytes:
    return zlib.compress(json.dumps([ranking.values, ranking.counts], ensure_ascii=False).encode(), 3)


def unpacked(data: bytes) -> Ranking:
    values, counts = json.loads(zlib.decompress(data))
    return Ranking({value: Tally(*tally) for value, tally in counts.items()}, values)


RESPONSES = "responses"
RESPONSE_WITHIN_MS = 30 * 24 * 3_600_000
"""What comes later is not counted as a reply."""
_STEPS_PER_DOUBLING = 8


class Responder(StrEnum):
    OWNER = "owner"
    OTHERS = "others"


class Turn(NamedTuple):
    """A message in a conversation."""

    conversation: str
    date_ms: int
    sender: str
    was_sent: bool
    """It has the label SENT, as mail from the owner's other addresses has."""
    is_here: bool
    """It is in the shard that is counted, not in the one before."""


def response_counts(turns: Iterable[Turn], owner: str) -> Counts:
    """Replies by who replied, how long it took (in steps, so that counts of shards add up) and the other person. A
    reply is a message that follows one of the other side in its conversation."""
    rows = []
    for _, conversation in groupby(sorted(turns), key=lambda turn: turn.conversation):
        for before, after in pairwise(conversation):
            is_mine = [turn.was_sent or turn.sender == owner for turn in (before, after)]
            took_ms = after.date_ms - before.date_ms
            if after.is_here and is_mine[0] != is_mine[1] and 0 < took_ms <= RESPONSE_WITHIN_MS:
                responder, other = (Responder.OWNER, before) if is_mine[1] else (Responder.OTHERS, after)
                seconds = max(1, took_ms // 1_000)
                step = round(_STEPS_PER_DOUBLING * math.log2(seconds))
                rows.append((f"{responder} {step} {other.sender}", 1, seconds, 0))
    return grouped(rows)


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    replies: int
    median_s: int
    p90_s: int
    """Nine of ten were faster."""


def response_times(counts: Counts) -> Counts:
    """Of each person, and of all together: replies, median and 90th percentile in seconds, in place of a tally."""
    by_person: dict[str, list[tuple[int, Tally]]] = defaultdict(list)
    for key, tally in counts.items():
        responder, step, person = key.split(" ", 2)
        for name in dict.fromkeys((person, "")):
            by_person[f"{responder} {name}"].append((int(step), tally))
    return {key: _spread(steps) for key, steps in by_person.items()}


def _spread(steps: list[tuple[int, Tally]]) -> Tally:
    steps = sorted(steps)
    return Tally(sum(tally.messages for _, tally in steps), _percentile(steps, 50), _percentile(steps, 90))


def _percentile(steps: list[tuple[int, Tally]], percent: int) -> int:
    """The mean of the step in which it lies, so at most a tenth off."""
    by_step = [(step, merged({"": tally} for _, tally in each)[""]) for step, each in groupby(steps, key=_step_of)]
    left = math.ceil(sum(tally.messages for _, tally in by_step) * percent / 100)
    for _, tally in by_step:
        left -= tally.messages
        if left <= 0:
            return tally.bytes // tally.messages
    return 0


def _step_of(step: tuple[int, Tally]) -> int:
    return step[0]


def responses_by_person(counts: Counts) -> dict[str, dict[Responder, ResponseTimes]]:
    """As `response_times` keeps them; those of all together have an empty name."""
    people: dict[str, dict[Responder, ResponseTimes]] = defaultdict(dict)
    for key, tally in counts.items():
        responder, _, person = key.partition(" ")
        people[person][Responder(responder)] = ResponseTimes(*tally)
    return dict(people)


def search_for_person(person: str) -> str:
    """Mail from and to a person; everything the owner sent where no name is given."""
    return f"in:anywhere {{from:{_quoted(person)} to:{_quoted(person)}}}" if person else "in:anywhere from:me"


def search_for(by: StatisticsBy, value: str) -> str | None:
    """The search that finds what was counted; None if there is none."""
    match by:
        case StatisticsBy.SENDER | StatisticsBy.DOMAIN:
            found = f"from:{_quoted(value)}" if value else None
        case StatisticsBy.YEAR:
            found = f"after:{int(value):04}/01/01 before:{int(value) + 1:04}/01/01"
        case StatisticsBy.MONTH:
            start = date.fromisoformat(f"{value}-01")
            end = date(start.year + start.month // 12, start.month % 12 + 1, 1)
            found = f"after:{start:%Y/%m/%d} before:{end:%Y/%m/%d}"
        case StatisticsBy.SIZE:
            found = " ".join(_size_words(*next(bounds for name, *bounds in SIZES if name == value)))
        case StatisticsBy.LABEL:
            found = f"label:{_quoted(value)}" if value else None
        case StatisticsBy.TYPE:
            found = f"filename:{value}" if value else None
        case StatisticsBy.HOUR:
            found = None
    return None if found is None else f"in:anywhere {found}"


def _size_words(low: int, high: int | None) -> Iterator[str]:
    if low:
        yield f"larger:{low - 1}"
    if high is not None:
        yield f"smaller:{high}"


_PLAIN = re.compile(r"[\w@.+-]+")


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else '"' + value.replace('"', " ") + '"'
