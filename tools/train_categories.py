"""Fits the categories' model to the labelled headers in `data/categories`, and scores it.

    python -m tools.train_categories                 write the weights that ship
    python -m tools.train_categories --score         without the senders of dev.jsonl, scored on dev.jsonl
    python -m tools.train_categories --cross         leaving organisations out of the training lines, in five parts

The weights are a compressed file: the number of features, a scale, the CRC-32 of each feature's name in ascending
order, and for each feature one small integer a class. A multinomial logistic regression finds them. A feature counts
only if at least three organisations show it, so that the model learns kinds of mail rather than names of senders.

Training lines name few flags, and a real mailbox mixes them more. So each line also counts a second time with flags as
they might have been, chosen with a fixed seed; half of these do not know the trade of well-known senders.
"""

from __future__ import annotations

import argparse
import array
import json
import random
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from postroom.mail.addresses import parse_addresses
from postroom.mail.categories.model import (
    CLASSES,
    HEAD,
    MAGIC,
    NONE,
    WEIGHTS,
    CategoryModel,
    feature_hash,
    judge,
    piece_name,
)
from postroom.mail.categories.records import HeaderRecord, Scores, read_records
from postroom.mail.header_features import FREEMAIL, HeaderFacts, features_of, pieces, split_domain

DATA = Path(__file__).parent.parent / "data" / "categories"
TARGET = Path(__file__).parent.parent / "src" / "postroom" / "mail" / "categories" / WEIGHTS
APART = ("train.tsv", "grown.tsv")
"""None of their organisations is in dev.jsonl."""
SHIPPED = (*APART, "train-senders-of-dev.tsv", "grown-senders-of-dev.tsv")
FLAGS = {
    "U": "unsubscribe",
    "I": "list",
    "B": "bulk",
    "A": "auto",
    "R": "reply",
    "K": "known",
    "F": "failed",
    "S": "spam",
    "P": "promotions",
    "D": "updates",
    "C": "social",
    "O": "forums",
}
LEAST_ORGANISATIONS = 3
PIECE = 0.45
"""What a piece of a word counts beside the word."""
STRENGTH = 1.0
"""The inverse of the regularisation."""
SHARE = {"health": 0.7, "newsletters": 1.5}
"""What a line of a class counts: of health there are more lines than its part of real mail, of newsletters fewer."""
ROUNDS = 60
SCALE = 0.002
FOLDS = 5


@dataclass(frozen=True)
class Example:
    category: str
    lang: str
    facts: HeaderFacts
    trades: bool = True
    """Whether the trade of its sender may be used."""

    @property
    def organisation(self) -> str:
        own = split_domain(self.facts.address.rpartition("@")[2])[0]
        return self.facts.address if own in FREEMAIL else own

    @property
    def features(self) -> list[str]:
        found = features_of(self.facts)
        return found if self.trades else [name for name in found if not name.startswith(("k:", "K:", "a:", "x:brand"))]


def read_lines(names: Iterable[str]) -> list[Example]:
    return [example(line) for name in names for line in (DATA / name).read_text("utf-8").splitlines() if line.strip()]


def example(line: str) -> Example:
    category, lang, sender, subject, flags = [*line.split("\t"), ""][:5]
    if category not in CLASSES:
        raise ValueError(f"{category!r} is not a class: {line}")
    first = parse_addresses(sender)[0]
    named = frozenset(FLAGS[flag.strip()] for flag in flags.split(",") if flag.strip())
    return Example(category, lang, HeaderFacts(first.display_name, first.canonical, subject, named))


def mixed(examples: Sequence[Example], seed: int = 1) -> list[Example]:
    """Each example, and each once more with other flags."""
    dice = random.Random(seed)  # noqa: S311 (training data, no secret)
    found: list[Example] = []
    for one in examples:
        flags = _other_flags(one, dice)
        found += [one, replace(one, facts=replace(one.facts, flags=flags), trades=dice.random() < 0.5)]
    return found


_TABS = ("promotions", "updates", "social", "personal")
_TAB_SHARES = {
    "newsletters": (0.75, 0.2, 0.0, 0.05),
    "relationship": (0.02, 0.1, 0.0, 0.88),
    NONE: (0.1, 0.7, 0.1, 0.1),
}


def _other_flags(one: Example, dice: random.Random) -> frozenset[str]:
    flags = set(one.facts.flags) - set(_TABS)
    if dice.random() < 0.5:
        shares = _TAB_SHARES.get(one.category, (0.12, 0.72, 0.0, 0.16))
        flags.add(dice.choices(_TABS, shares)[0])
    chances = [dice.random() for _ in range(4)]
    stranger = "known" not in flags
    match one.category:
        case "finance" | "health" | "travel":
            flags |= {"unsubscribe"} if stranger and chances[0] < 0.35 else set()
            flags |= {"list"} if stranger and chances[1] < 0.15 else set()
            flags -= {"auto"} if chances[2] < 0.5 else set()
        case "newsletters":
            flags -= {"unsubscribe", "list"} if chances[0] < 0.15 else set()
        case "relationship":
            flags -= {"known"} if chances[0] < 0.4 else set()
        case _:
            flags |= {"unsubscribe"} if stranger and chances[0] < 0.3 else set()
            flags -= {"spam"} if chances[1] < 0.7 else set()
            flags -= {"failed"} if chances[2] < 0.7 else set()
    return frozenset(flags)


def _least(name: str) -> int:
    """There are fewer lines in other scripts."""
    return LEAST_ORGANISATIONS if name.isascii() else 2


class Vocabulary:
    """The features that count, in the order of their names, and what each feature of a message adds."""

    def __init__(self, examples: Sequence[Example]) -> None:
        seen: dict[str, set[str]] = defaultdict(set)
        self._parts: dict[str, list[str]] = {}
        for one in examples:
            organisation = one.organisation
            for feature in one.features:
                for name in (feature, *self._pieces(feature)):
                    if len(seen[name]) < LEAST_ORGANISATIONS:
                        seen[name].add(organisation)
        self.names = sorted(name for name, shown_by in seen.items() if len(shown_by) >= _least(name))
        self._places = {name: number for number, name in enumerate(self.names)}

    def _pieces(self, feature: str) -> list[str]:
        found = self._parts.get(feature)
        if found is None:
            found = self._parts[feature] = [piece_name(feature, piece) for piece in pieces(feature)]
        return found

    def matrix(self, examples: Sequence[Example]) -> Any:
        ends: list[int] = [0]
        columns: list[int] = []
        values: list[float] = []
        for one in examples:
            row: dict[int, float] = defaultdict(float)
            for feature in one.features:
                for name, value in ((feature, 1.0), *((piece, PIECE) for piece in self._pieces(feature))):
                    if (place := self._places.get(name)) is not None:
                        row[place] += value
            columns += row
            values += row.values()
            ends.append(len(columns))
        return csr_matrix((values, columns, ends), shape=(len(examples), len(self.names)))


def fit(examples: Sequence[Example]) -> bytes:
    """The packed weights."""
    vocabulary = Vocabulary(examples)
    rows = mixed(examples)
    model = LogisticRegression(C=STRENGTH, max_iter=ROUNDS, tol=1e-3)
    wanted = np.array([CLASSES.index(one.category) for one in rows])
    counts = np.array([SHARE.get(one.category, 1.0) for one in rows])
    with threadpool_limits(1):
        model.fit(vocabulary.matrix(rows), wanted, sample_weight=counts)
    return packed(vocabulary.names, model.coef_.T, model.intercept_)


def packed(names: Sequence[str], weights: Any, start: Any) -> bytes:
    scaled = [np.rint(start / SCALE).astype(int).tolist()]
    hashes = [feature_hash("")]
    for name, row in zip(names, weights, strict=True):
        value = PIECE if name.startswith("~") else 1.0
        whole = np.clip(np.rint(row * value / SCALE), -32_000, 32_000).astype(int)
        if np.abs(whole).max() > 1:
            hashes.append(feature_hash(name))
            scaled.append(whole.tolist())
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    keys = array.array("I", [hashes[number] for number in order])
    values = array.array("h", [weight for number in order for weight in scaled[number]])
    if sys.byteorder == "big":
        keys.byteswap()
        values.byteswap()
    head = HEAD.pack(MAGIC, len(keys), len(CLASSES), SCALE)
    return zlib.compress(head + keys.tobytes() + values.tobytes(), 9)


def print_scores(title: str, scores: Scores) -> None:
    print(f"\n{title}\n{'':14}{'precision':>10}{'recall':>8}")
    for name, score in scores.to_json()["categories"].items():
        print(f"{name:14}{score['precision']:>10}{score['recall']:>8}")
    weak = [
        f"{lang} {score['recall']} ({score['found'] + score['missed']})"
        for lang, score in scores.to_json()["languages"].items()
        if score["recall"] is not None and score["recall"] < 0.9
    ]
    print(f"languages below a recall of 0.9: {', '.join(weak) or 'none'}")


def scored_records(records: Sequence[HeaderRecord], model: CategoryModel) -> Scores:
    scores = Scores()
    for record in records:
        scores.add(record.category or NONE, [judge(record.facts, model).category], record.lang)
    return scores


def scored_without_trades(records: Sequence[HeaderRecord], model: CategoryModel) -> Scores:
    """As if no sender were well known."""
    scores = Scores()
    for record in records:
        facts = record.facts
        found = (
            NONE if {"failed", "spam"} & facts.flags else model.predict([Example(NONE, "", facts, False).features]).best
        )
        scores.add(record.category or NONE, [found], record.lang)
    return scores


def cross(examples: Sequence[Example]) -> Scores:
    """Each organisation judged by a model that has not seen it."""
    part = {name: zlib.crc32(name.encode()) % FOLDS for name in {one.organisation for one in examples}}
    scores = Scores()
    for fold in range(FOLDS):
        model = CategoryModel(fit([one for one in examples if part[one.organisation] != fold]))
        for one in examples:
            if part[one.organisation] == fold:
                scores.add(one.category, [judge(one.facts, model).category], one.lang)
    return scores


def score_dev() -> None:
    records = list(read_records((DATA / "dev.jsonl").read_text("utf-8").splitlines()))
    for names in (("train.tsv",), APART):
        model = CategoryModel(fit(read_lines(names)))
        print_scores(f"Fitted to {' and '.join(names)}, scored on dev.jsonl", scored_records(records, model))
    print_scores("The same, as if no sender were well known", scored_without_trades(records, model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--cross", action="store_true")
    options = parser.parse_args()
    if options.cross:
        print_scores("Organisations left out, five parts", cross(read_lines(APART)))
    elif options.score:
        score_dev()
    else:
        weights = fit(read_lines(SHIPPED))
        TARGET.write_bytes(weights)
        print(json.dumps({"features": len(CategoryModel(weights)), "bytes": len(weights)}))


if __name__ == "__main__":
    main()
