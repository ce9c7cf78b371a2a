"""Which names (keys and Message-IDs) may stand in an account's shards, so that an import need not ask every shard about
every message.

A Bloom filter: "no" is certain, "yes" is wrong for about one name in fifty, and then the shards are asked after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BITS_A_NAME = 16
_FIRST_NAMES = 1 << 15
_GROWTH = 4


class NameFilter:
    """Use from one thread at a time. Takes two to three bytes a name."""

    def __init__(self) -> None:
        self._tables: list[tuple[bytearray, int]] = []
        self._names = 0
        self._room = 0

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            if not self._room:
                self._grow()
            self._room -= 1
            table, mask = self._tables[-1]
            digest = hash(name)
            one, other = digest & mask, digest >> 32 & mask
            table[one >> 3] |= 1 << (one & 7)
            table[other >> 3] |= 1 << (other & 7)

    def possible(self, names: Iterable[str]) -> Sequence[str]:
        """Those of these names that may have been added."""
        return [name for name in names if self._may_have(name)]

    def _may_have(self, name: str) -> bool:
        digest = hash(name)
        for table, mask in self._tables:
            one = digest & mask
            if table[one >> 3] >> (one & 7) & 1:
                other = digest >> 32 & mask
                if table[other >> 3] >> (other & 7) & 1:
                    return True
        return False

    def _grow(self) -> None:
        """Names are not kept, so a full table stays and a larger one takes what comes after it."""
        self._names = self._names * _GROWTH or _FIRST_NAMES
        self._room = self._names
        bits = self._names * _BITS_A_NAME
        self._tables.append((bytearray(bits >> 3), bits - 1))
