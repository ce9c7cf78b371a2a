"""The registry of hostile kinds: what an outsider can send, as named generators of bytes.

A kind makes its bytes from a number `n` alone, so every run sees the same bytes, and a larger `n` makes the same
trouble larger. The harness chooses `n` so that an item has about the size it wants (`sized`). A kind whose bytes do not
grow with `n`, or grow into something else once unpacked, names its own `n`.

To add a kind, add a line to a table of `tests/hostile/kinds_*.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

Make = Callable[[int], bytes]

MODULES = ("kinds_mail", "kinds_markup", "kinds_files", "kinds_web", "kinds_wire")
_PROBES = (50, 100)


@dataclass(frozen=True)
class Kind:
    name: str
    """`family.what`, unique."""
    family: str
    make: Make
    readers: tuple[str, ...]
    """Names of functions in `readers.py`, each of which must read every item."""
    n: int | None = None
    """The smaller of the two sizes; None lets the harness choose by the number of bytes."""

    def sized(self, size: int) -> bytes:
        return self.make(self._number_for(size))

    def doubled(self, size: int) -> bytes:
        return self.make(2 * self._number_for(size))

    def _number_for(self, size: int) -> int:
        if self.n is not None:
            return self.n
        few, many = (len(self.make(n)) for n in _PROBES)
        each = (many - few) / (_PROBES[1] - _PROBES[0])
        return max(1, int(size / each)) if each > 0 else _PROBES[1]


_KINDS: dict[str, Kind] = {}


def register(family: str, readers: tuple[str, ...], kinds: Mapping[str, Make], *, n: int | None = None) -> None:
    for what, make in kinds.items():
        name = f"{family}.{what}"
        if name in _KINDS:
            raise ValueError(f"two kinds are called {name}")
        _KINDS[name] = Kind(name, family, make, readers, n)


def corpus() -> dict[str, Kind]:
    """All kinds, by name."""
    for module in MODULES:
        import_module(f"tests.hostile.{module}")
    return dict(_KINDS)


def items() -> Iterator[tuple[Kind, str]]:
    """Each kind with each of its readers."""
    return ((kind, reader) for kind in corpus().values() for reader in kind.readers)
