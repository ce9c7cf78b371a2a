"""The learned part of the categories: a linear model over the features of a header, without heavy libraries, and what
it says of a header in words for people, forgeries first. Pure.

`make train` writes its weights; `tools/train_categories.py` has the form of the file. A feature is found by its hash,
and one that training did not see weighs nothing. What each feature weighs is kept for the next message.

What something weighs for each class stands in one integer, side by side (`together`), so that adding is one step for
all classes.
"""

from __future__ import annotations

import array
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import repeat
from math import exp
from operator import add, lshift

from postroom.mail.header_features import HeaderFacts, feature_groups, pieces
from postroom.mail.sender_kinds import imitated

NONE = "none"
CLASSES = ("finance", "health", "relationship", "travel", "newsletters", NONE)
"""In the order of the weights."""
WEIGHTS = "category_weights.bin"
MAGIC = b"PRCW1\n"
HEAD = struct.Struct("<6sIId")
_REMEMBERED = 32_768
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


_KINDS = {
    "s": 'the subject has "{}"',
    "b": 'the subject has "{}"',
    "n": 'the sender\'s name has "{}"',
    "m": 'the sender\'s name has "{}"',
    "l": 'the address has "{}"',
    "L": 'the address begins with "{}"',
    "d": 'the domain has "{}"',
    "u": 'the domain has "{}" before it',
    "a": 'the domain adds "{}" to a known name',
    "c": "the domain ends in .{}",
    "k": "the domain is that of a known sender: {}",
    "K": "the name is that of a known sender: {}",
    "t": "the subject is about: {}",
    "p": "the subject is about: {}",
    "T": "the sender's name or address is about: {}",
}
_TRADES = {"trip": "travel company", "care": "health care", "cause": "charity", "office": "tax or payroll office"}
_CONCEPTS = {
    "due": "what is due",
    "dues": "rent or fees",
    "policy": "insurance",
    "rail": "train, bus or ship",
    "stay": "a place to stay",
    "event": "an event or a table",
    "service_case": "a request to a service",
    "notice": "terms or registration",
    "machine": "machines or calendars",
    "social": "a social network",
    "lure": "a lure or threat",
    "chat": "talk among people",
    "digest": "news or tips",
    "specialty": "a field of medicine",
    "animal": "animals",
}
_FORMS = {
    "reply": "the subject is a reply",
    "forward": "the subject is a forward",
    "tag": "the subject begins with a tag in brackets",
    "question": "the subject asks a question",
    "exclamation": "the subject has an exclamation mark",
    "colon": "the subject has a colon",
    "bar": "the subject has a vertical bar",
    "route": "the subject has an arrow or a long dash",
    "dash": "the subject has a dash",
    "quoted": "the subject has words in quotation marks",
    "amount": "the subject has an amount of money",
    "cents": "the subject has a number with two decimals",
    "percent": "the subject has a percentage",
    "time": "the subject has a time of day",
    "date": "the subject has a date",
    "code": "the subject has a code of letters and digits",
    "dashed": "the subject has a reference number",
    "number": "the subject has a long number",
    "digits": "the subject has a number of four to six digits",
    "flight": "the subject has what looks like a flight number",
    "hash": "the subject has a number after #",
    "emoji": "the subject has an emoji",
    "no letters": "the subject has no letters",
    "begins small": "the subject begins with a small letter",
    "capitals": "the subject is in capitals",
    "length": "the length of the subject",
    "levels": "how many parts the domain has",
    "brand elsewhere": "the name is a known brand's, and the domain is not",
    "brand at freemail": "the name is a known brand's, and the address is at a free mail provider",
    "brand and more": "the domain adds something to a known brand's name",
    "freemail": "the address is at a free mail provider",
    "no name": "the sender gives no name",
    "name is domain": "the sender's name is its domain's",
    "local is domain": "the address repeats the name of its domain",
    "name in local": "how much of the sender's name is in the address",
    "person": "the sender's name looks like a person's",
    "digits in local": "the address has digits",
    "digits in domain": "the domain has digits",
    "hyphens": "the domain has hyphens",
    "long domain": "the domain is long",
}
_FLAGS = {
    "unsubscribe": "it can be unsubscribed from",
    "list": "it comes from a mailing list",
    "discussion": "it comes from a list that one can write to",
    "bulk": "it says that it went to many",
    "auto": "it says that a machine sent it",
    "reply": "it replies to a message",
    "known": "you know the sender",
    "new": "you do not know the sender",
    "failed": "the receiving server could not authenticate the sender",
    "no list": "it comes from no mailing list",
    "spam": "Gmail calls it spam",
    "promotions": "Gmail calls it a promotion",
    "updates": "Gmail calls it an update",
    "social": "Gmail calls it social",
    "forums": "Gmail calls it a forum's",
    "personal": "Gmail calls it personal",
}
_MEASURE = re.compile(r"f?[\d-]+f?$|f$")
"""Behind the name of a form: how much, or whether the provider is free."""
_FROM_WHERE = re.compile(r" (?:free|own|auto)$")


def in_words(feature: str) -> str:
    kind, _, rest = feature.partition(":")
    match kind:
        case "x":
            return _FORMS[rest] if rest in _FORMS else _FORMS[_MEASURE.sub("", rest)]
        case "f":
            return _FLAGS[_FROM_WHERE.sub("", rest)]
        case "t" | "p" | "T":
            rest = " and ".join(_CONCEPTS.get(each, each).replace("_", " ") for each in rest.split("+"))
        case "k" | "K":
            rest = _TRADES.get(rest, rest).replace("_", " ")
    return _KINDS[kind].format(rest.replace("^ ", "").replace(" $", ""))


@dataclass(frozen=True, slots=True)
class Judgement:
    category: str
    """One of the model's classes; `none` is one."""
    prediction: Prediction | None
    """None where the model was not asked."""
    forgery: str | None = None
    """Why it is taken for a forgery."""
    groups: Sequence[Sequence[str]] = field(default=(), repr=False)
    """The features it was judged by."""

    @property
    def scores(self) -> Mapping[str, float]:
        """How likely each class is; empty where the model was not asked."""
        return self.prediction.shares if self.prediction else {}


def forgery_of(facts: HeaderFacts, *, trusted: bool = False) -> str | None:
    """Why a message is not from whom it says; None where nothing speaks for that. `trusted`: the owner vouches for the
    sender's address, so that a likeness of names means nothing."""
    if "failed" in facts.flags:
        return "the receiving server could not authenticate the sender: SPF, DKIM or DMARC failed"
    if trusted or "known" in facts.flags:
        return None
    found = imitated(facts.name, facts.address)
    return f"the sender imitates {found}" if found else None


def judge(facts: HeaderFacts, model: CategoryModel | None = None, *, trusted: bool = False) -> Judgement:
    forgery = forgery_of(facts, trusted=trusted)
    return Judgement(NONE, None, forgery) if forgery else judge_genuine(facts, model)


def judge_genuine(facts: HeaderFacts, model: CategoryModel | None = None) -> Judgement:
    """What is no forgery."""
    if "spam" in facts.flags:
        return Judgement(NONE, None, "Gmail calls it spam")
    groups = feature_groups(facts)
    found = (model or shipped_model()).predict(groups)
    return Judgement(found.best, found, groups=groups)


def reasons(judgement: Judgement, model: CategoryModel | None = None) -> list[str]:
    """Why it was judged so, the strongest reason first."""
    if judgement.forgery:
        return [judgement.forgery]
    strong = (model or shipped_model()).reasons(
        [each for group in judgement.groups for each in group], judgement.category
    )
    share = judgement.scores[judgement.category]
    return [f"the headers look like {judgement.category} ({share:.0%})", *dict.fromkeys(map(in_words, strong))]
