"""The learned part of the categories: a linear model over the features of a header, without heavy libraries. Pure.

`make train` writes its weights; `tools/train_categories.py` has the form of the file. A feature is found by its hash,
and one that training did not see weighs nothing. What each feature weighs is kept for the next message.

What something weighs for each class stands in one integer, side by side (`together`), so that adding is one step for
all classes.
"""

from __future__ import annotations

import array
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import repeat
from math import exp
from operator import add, lshift

from postroom.mail.header_features import pieces

NONE = "none"
CLASSES = ("finance", "health", "relationship", "travel", "newsletters", NONE)
"""In the order of the weights."""
WEIGHTS = "category_weights.bin"
MAGIC = b"PRCW1\n"
HEAD = struct.Struct("<6sIId")
_REMEMBERED = 200_000
_BITS = 64
_APART = struct.Struct(f"<{len(CLASSES)}Q")
_MIDDLE = 1 << (_BITS - 1)
_MIDDLES = sum(_MIDDLE << (_BITS * place) for place in range(len(CLASSES)))


def feature_hash(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "replace"))


def piece_name(feature: str, piece: str) -> str:
    """How a piece of a word is called among the features: by the kind of the word."""
    return f"~{feature[:2]}{piece}"


def together(columns: Iterable[Iterable[int]]) -> Iterable[int]:
    """From the weights for each class, one integer a row; the sum of such integers has the sums of their weights."""
    rows: Iterable[int] = repeat(0)
    for place, column in enumerate(columns):
        rows = map(add, rows, map(lshift, column, repeat(_BITS * place)))
    return rows


def apart(weights: int) -> list[int]:
    """The weight of each class."""
    return [each - _MIDDLE for each in _APART.unpack((weights + _MIDDLES).to_bytes(_APART.size, "little"))]


@dataclass(frozen=True, slots=True)
class Prediction:
    weights: list[int]
    """What speaks for each class."""
    scale: float

    @property
    def best(self) -> str:
        return CLASSES[self.weights.index(max(self.weights))]

    @property
    def shares(self) -> dict[str, float]:
        """How likely each class is; they add up to one. Reckoned when asked for: most only ask which is best."""
        totals = [weight * self.scale for weight in self.weights]
        most = max(totals)
        grown = [exp(total - most) for total in totals]
        whole = sum(grown)
        return {name: each / whole for name, each in zip(CLASSES, grown, strict=True)}


class _Remembered(dict[str, int]):
    """What features weigh, with their pieces."""

    def __init__(self, weights: dict[int, int]) -> None:
        self._weights = weights

    def __missing__(self, feature: str) -> int:
        find = self._weights.get
        weight = find(feature_hash(feature), 0)
        if parts := pieces(feature):
            letters = map(str.encode, parts, repeat("utf-8"), repeat("replace"))
            hashes = map(zlib.crc32, letters, repeat(feature_hash(piece_name(feature, ""))))
            weight = sum(filter(None, map(find, hashes)), weight)
        if len(self) >= _REMEMBERED:
            self.clear()
        self[feature] = weight
        return weight


class CategoryModel:
    def __init__(self, packed: bytes) -> None:
        data = zlib.decompress(packed)
        magic, count, classes, self._scale = HEAD.unpack_from(data)
        if magic != MAGIC or classes != len(CLASSES):
            raise ValueError("these are not the weights of this version")
        hashes, weights = array.array("I"), array.array("h")
        middle = HEAD.size + count * hashes.itemsize
        hashes.frombytes(data[HEAD.size : middle])
        weights.frombytes(data[middle:])
        if sys.byteorder == "big":
            hashes.byteswap()
            weights.byteswap()
        width = len(CLASSES)
        rows = together(weights[number::width] for number in range(width))
        self.weights = dict(zip(hashes, rows, strict=True))
        """Of the features that training saw, by their hashes."""
        self._start = self.weights.get(feature_hash(""), 0)
        self._known = _Remembered(self.weights)
        self._sums: dict[tuple[str, ...], int] = {}

    def __len__(self) -> int:
        return len(self.weights)

    def predict(self, groups: Iterable[Sequence[str]]) -> Prediction:
        """A group that is a tuple is expected to come again, and its sum is kept."""
        weight = self._start
        for group in groups:
            weight += self._kept_sum(group) if isinstance(group, tuple) else self._sum(group)
        return Prediction(apart(weight), self._scale)

    def reasons(self, features: Sequence[str], category: str, most: int = 4) -> list[str]:
        """The features that speak most for a class against the others, strongest first."""
        place = CLASSES.index(category)
        weighed = []
        for feature in features:
            vector = apart(self._known[feature])
            others = sum(vector) - vector[place]
            weighed.append((vector[place] - others / (len(CLASSES) - 1), feature))
        weighed.sort(key=lambda each: (-each[0], each[1]))
        return [feature for weight, feature in weighed[:most] if weight * self._scale > 0.1]

    def _kept_sum(self, group: tuple[str, ...]) -> int:
        found = self._sums.get(group)
        if found is None:
            if len(self._sums) >= _REMEMBERED:
                self._sums.clear()
            found = self._sums[group] = self._sum(group)
        return found

    def _sum(self, features: Iterable[str]) -> int:
        return sum(map(self._known.__getitem__, features))


@cache
def shipped_model() -> CategoryModel:
    """The weights that come with Postroom."""
    return CategoryModel(files("postroom.mail.categories").joinpath(WEIGHTS).read_bytes())
