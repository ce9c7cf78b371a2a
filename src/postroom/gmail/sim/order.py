"""The order of a listing: newest first, but only roughly, because the real service promises no order either.

Messages stand in small blocks by age; the blocks are in order and what is inside one is mixed. A place in that order
stays where it is when mail comes and goes, so a page token that names one never skips or repeats a message.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 8
_BUCKET_MS = 600_000
_MASK = (1 << 64) - 1


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """Smaller comes first in a listing."""

    block: int
    bucket: int
    mix: int


def of_base(index: int) -> Place:
    return Place(-(index // BLOCK), 0, _mixed(index + 1))


def of_arrival(message_id: str, internal_date: int, base_index: int, base_count: int) -> Place:
    """Where a message that is not of the base stands; `base_index` is where its date would put it there."""
    mix = _mixed(int(message_id, 16))
    if base_index < base_count:
        return Place(-(base_index // BLOCK), 0, mix)
    return Place(newest_block(base_count), -(internal_date // _BUCKET_MS), mix)


def newest_block(base_count: int) -> int:
    """The block of mail newer than all of the base."""
    return -(base_count // BLOCK + 1)


def _mixed(value: int) -> int:
    value = (value * 0x9E37_79B9_7F4A_7C15) & _MASK
    return ((value ^ (value >> 31)) * 0xBF58_476D_1CE4_E5B9) & _MASK
