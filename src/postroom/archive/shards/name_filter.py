"""Which names (keys and Message-IDs) may stand in an account's shards, so that an import need not ask every shard about
every message.

A Bloom filter: "no" is certain, "yes" is wrong for about one name in fifty, and then the shards are asked after all.
"""

from __future__ import annotations

from collections.abc import Iterable

_BITS_A_NAME = 16
_FIRST_NAMES = 1 << 15
_GROWTH = 4


class NameFilter:
    """Use from one thread at a time. Takes two to three bytes a name."""

    def __init__(self) -> None:
        self._tables: list[tuple[bytearray, int]] = []
        self._names = 0
        self._room = 0

    def add(self, names: Iterable[str]) -> list[str]:
        """Returns those that may have been added before."""
        possible: list[str] = []
        for name in names:
            digest = hash(name)
            for table, mask in self._tables:
                one, other = digest & mask, digest >> 32 & mask
                if table[one >> 3] >> (one & 7) & 1 and table[other >> 3] >> (other & 7) & 1:
                    possible.append(name)
                    break
            else:
                self._keep(digest)
        return possible

    def _keep(self, digest: int) -> None:
        if not self._room:
            self._grow()
        self._room -= 1
        table, mask = self._tables[-1]
        one, other = digest & mask, digest >> 32 & mask
        table[one >> 3] |= 1 << (one & 7)
        table[other >> 3] |= 1 << (other & 7)

    def _grow(self) -> None:
        """Names are not kept, so a full table stays and a larger one takes what comes after it."""
        self._names = self._names * _GROWTH or _FIRST_NAMES
        self._room = self._names
        bits = self._names * _BITS_A_NAME
        self._tables.append((bytearray(bits >> 3), bits - 1))
