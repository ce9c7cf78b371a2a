"""The learned part of the categories: a linear model over the features of a header, without heavy libraries. Pure.

`make train` writes its weights; `tools/train_categories.py` has the form of the file. A feature is found by its hash,
and one that training did not see weighs nothing. What each feature weighs is kept for the next message.
"""

from __future__ import annotations

import array
import math
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from postroom.mail.header_features import pieces

NONE = "none"
CLASSES = ("finance", "health", "relationship", "travel", "newsletters", NONE)
"""In the order of the weights."""
WEIGHTS = "category_weights.bin"
MAGIC = b"PRCW1\n"
HEAD = struct.Struct("<6sIId")
_REMEMBERED = 200_000

Vector = tuple[int, ...]


def feature_hash(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Prediction:
    """How likely each class is; they add up to one."""

    shares: dict[str, float]

    @property
    def best(self) -> str:
        return max(self.shares, key=self.shares.__getitem__)


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
        rows = zip(*(weights[number::width] for number in range(width)), strict=True)
        self.weights: dict[int, Vector] = dict(zip(hashes, rows, strict=True))
        self._nothing = (0,) * width
        self._start = self.weights.get(feature_hash(""), self._nothing)
        self._known: dict[str, Vector] = {}
        self._sums: dict[tuple[str, ...], Vector] = {}

    def __len__(self) -> int:
        return len(self.weights)

    def predict(self, groups: Iterable[Sequence[str]]) -> Prediction:
        """A group that is a tuple is expected to come again, and its sum is kept."""
        sums = [self._sum(group) if isinstance(group, list) else self._kept_sum(group) for group in groups]
        totals = [sum(column) * self._scale for column in zip(self._start, *sums, strict=True)]
        most = max(totals)
        grown = [math.exp(total - most) for total in totals]
        whole = sum(grown)
        return Prediction(dict(zip(CLASSES, [each / whole for each in grown], strict=True)))

    def reasons(self, features: Sequence[str], category: str, most: int = 4) -> list[str]:
        """The features that speak most for a class against the others, strongest first."""
        place = CLASSES.index(category)
        weighed = []
        for feature in features:
            vector = self._weigh(feature)
            others = sum(vector) - vector[place]
            weighed.append((vector[place] - others / (len(CLASSES) - 1), feature))
        weighed.sort(key=lambda each: (-each[0], each[1]))
        return [feature for weight, feature in weighed[:most] if weight * self._scale > 0.1]

    def _kept_sum(self, group: Sequence[str]) -> Vector:
        key = tuple(group)
        found = self._sums.get(key)
        if found is None:
            if len(self._sums) >= _REMEMBERED:
                self._sums.clear()
            found = self._sums[key] = self._sum(key)
        return found

    def _sum(self, features: Sequence[str]) -> Vector:
        known, weigh, nothing = self._known, self._weigh, self._nothing
        found = [vector for each in features if (vector := known.get(each) or weigh(each)) is not nothing]
        return tuple(map(sum, zip(nothing, *found, strict=True)))

    def _weigh(self, feature: str) -> Vector:
        """What the feature and its pieces weigh together, for each class."""
        known = self._known.get(feature)
        if known is not None:
            return known
        find = self.weights.get
        found = [vector for piece in pieces(feature) if (vector := find(feature_hash(f"~{piece}")))]
        whole = find(feature_hash(feature))
        if whole:
            found.append(whole)
        vector = tuple(map(sum, zip(*found, strict=True))) if found else self._nothing
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[feature] = vector
        return vector


@cache
def shipped_model() -> CategoryModel:
    """The weights that come with Postroom."""
    return CategoryModel(files("postroom.mail.categories").joinpath(WEIGHTS).read_bytes())
