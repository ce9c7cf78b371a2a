"""Which message belongs to which conversation, block by block.

Every block of 128 messages holds 106 conversations of fixed lengths in an order of its own, so that a message's thread
is found without knowing any other block, and the number of threads without counting.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from postroom.gmail.sim.mailbox.dice import Dice

BLOCK = 128
LENGTHS = (8, 5, 4, 3, 3, 2, 2, 2, 2) + (1,) * 97
_CLOSENESS = 6  # a reply follows its parent within so many messages
_CACHED_BLOCKS = 64
_SALT = 0x706C616E


@dataclass(frozen=True, slots=True)
class Conversation:
    """A thread: its number within the block, and where its messages are."""

    number: int
    block: int
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    conversation: Conversation
    position: int


class Plan:
    def __init__(self, seed: int, messages: int) -> None:
        self._seed = seed
        self._messages = messages
        self._blocks: OrderedDict[int, list[Place]] = OrderedDict()

    def place(self, index: int) -> Place:
        block, slot = divmod(index, BLOCK)
        return self._block(block)[slot]

    def thread_count(self) -> int:
        whole, rest = divmod(self._messages, BLOCK)
        last = {place.conversation.number for place in self._block(whole)[:rest]} if rest else ()
        return whole * len(LENGTHS) + len(last)

    def _block(self, block: int) -> list[Place]:
        places = self._blocks.get(block)
        if places is None:
            places = self._blocks[block] = _laid_out(self._seed, block)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return places


def _laid_out(seed: int, block: int) -> list[Place]:
    order = _order(Dice(seed, block, _SALT))
    slots: list[list[int]] = [[] for _ in LENGTHS]
    for slot, number in enumerate(order):
        slots[number].append(block * BLOCK + slot)
    conversations = [Conversation(number, block, tuple(indexes)) for number, indexes in enumerate(slots)]
    seen = [0] * len(LENGTHS)
    places: list[Place] = []
    for number in order:
        places.append(Place(conversations[number], seen[number]))
        seen[number] += 1
    return places


def _order(dice: Dice) -> list[int]:
    """The conversation of each slot: starts are spread over the block, replies follow close behind."""
    moments: list[tuple[int, int, int]] = []
    for number, length in enumerate(LENGTHS):
        moment = dice.below(BLOCK << 16)
        for position in range(length):
            moments.append((moment, number, position))
            moment += 1 + dice.below(_CLOSENESS << 16)
    return [number for _, number, _ in sorted(moments)]
