"""When each message arrives, and to which conversation it belongs, as functions of its index.

Every block of 128 messages holds 106 conversations of fixed lengths in an order of its own, so a message's thread
is found without knowing any other block. Mail grows over ten years, with working days and nights.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from postroom.sim.gmail.generated.seeded_random import SeededRandom, derive

END = datetime(2026, 11, 1, tzinfo=UTC)
YEARS = 10
START = END - timedelta(days=365 * YEARS + 3)
_HOUR_MS = 3_600_000
_START_MS = int(START.timestamp()) * 1000
_WEEKDAY = (10, 11, 11, 10, 9, 4, 4)  # Monday first
_HOUR = (1, 1, 1, 1, 1, 2, 5, 9, 12, 12, 11, 10, 9, 10, 11, 10, 9, 8, 6, 5, 5, 4, 3, 2)
_JITTER_BITS = 20
_TIME_SALT = 0x7468796D


@cache
def _hours() -> array[int]:
    """The weight of all hours up to and including each; by the end three times as much arrives as at the start."""
    days = (END - START).days
    first_weekday = START.weekday()
    total = 0
    sums = array("q")
    for day in range(days):
        daily = (days + 2 * day) * _WEEKDAY[(first_weekday + day) % 7]
        for hour in _HOUR:
            total += daily * hour
            sums.append(total)
    return sums


def instant(seed: int, index: int, messages: int) -> int:
    """When the message at this index arrived, in epoch milliseconds; never falls as the index grows.

    The index plus a fraction of its own is a position in the ten years' worth of mail, so that no two messages need to
    know of each other. Whole numbers only: the same instant on every machine.
    """
    hours = _hours()
    scale = messages << _JITTER_BITS
    jitter = derive(seed, index, _TIME_SALT) >> (64 - _JITTER_BITS)
    whole, rest = divmod(((index << _JITTER_BITS) + jitter) * hours[-1], scale)
    hour = bisect_right(hours, whole)
    before = hours[hour - 1] if hour else 0
    within = ((whole - before) * scale + rest) * _HOUR_MS // ((hours[hour] - before) * scale)
    return _START_MS + hour * _HOUR_MS + within


BLOCK = 128
LENGTHS = (8, 5, 4, 3, 3, 2, 2, 2, 2) + (1,) * 97
_CLOSENESS = 6  # a reply follows its parent within so many messages
_CACHED_BLOCKS = 64
_PLAN_SALT = 0x706C616E


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """A thread: its number within the block, and where its messages are."""

    number: int
    block: int
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    conversation: PlannedConversation
    position: int


class ConversationPlan:
    def __init__(self, seed: int, messages: int) -> None:
        self._seed = seed
        self._messages = messages
        self._blocks: OrderedDict[int, list[PlannedPlace]] = OrderedDict()

    def place(self, index: int) -> PlannedPlace:
        block, slot = divmod(index, BLOCK)
        return self._block(block)[slot]

    def thread_count(self) -> int:
        whole, rest = divmod(self._messages, BLOCK)
        last = {place.conversation.number for place in self._block(whole)[:rest]} if rest else ()
        return whole * len(LENGTHS) + len(last)

    def _block(self, block: int) -> list[PlannedPlace]:
        places = self._blocks.get(block)
        if places is None:
            places = self._blocks[block] = _laid_out(self._seed, block)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return places


def _laid_out(seed: int, block: int) -> list[PlannedPlace]:
    order = _order(SeededRandom(seed, block, _PLAN_SALT))
    slots: list[list[int]] = [[] for _ in LENGTHS]
    for slot, number in enumerate(order):
        slots[number].append(block * BLOCK + slot)
    conversations = [PlannedConversation(number, block, tuple(indexes)) for number, indexes in enumerate(slots)]
    seen = [0] * len(LENGTHS)
    places: list[PlannedPlace] = []
    for number in order:
        places.append(PlannedPlace(conversations[number], seen[number]))
        seen[number] += 1
    return places


def _order(dice: SeededRandom) -> list[int]:
    """The conversation of each slot: starts are spread over the block, replies follow close behind."""
    moments: list[tuple[int, int, int]] = []
    for number, length in enumerate(LENGTHS):
        moment = dice.below(BLOCK << 16)
        for position in range(length):
            moments.append((moment, number, position))
            moment += 1 + dice.below(_CLOSENESS << 16)
    return [number for _, number, _ in sorted(moments)]
