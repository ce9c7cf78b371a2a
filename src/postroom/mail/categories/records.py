"""Header records as lines of JSON, for judging mail outside a mailbox: reading them, and precision and recall by
category and language. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from postroom.domain.errors import BadInput
from postroom.mail.categories.model import CLASSES, NONE
from postroom.mail.header_features import HeaderFacts, header_facts
from postroom.mail.headers import MAX_HEADERS, MAX_VALUE_CHARS, Headers

_LONGEST_LINE = 4 << 20


@dataclass(frozen=True)
class HeaderRecord:
    id: str
    headers: Headers
    known: bool
    labels: tuple[str, ...]
    category: str | None = None
    """What it is, where the record says so."""
    lang: str = ""

    @property
    def facts(self) -> HeaderFacts:
        return header_facts(self.headers, is_known=self.known, labels=self.labels)


def read_records(lines: Iterable[str]) -> Iterator[HeaderRecord]:
    """One record a line; blank lines are passed over. A mistake is refused with its line and field."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _record(line, f"line {number}")


def _record(line: str, place: str) -> HeaderRecord:
    if len(line) > _LONGEST_LINE:
        raise BadInput(place, f"is longer than {_LONGEST_LINE:,} characters")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInput(place, "is not JSON") from None
    if not isinstance(data, dict):
        raise BadInput(place, "is not a JSON object")
    category = _text(data.get("category", ""), f"{place}, category")
    if category and category not in CLASSES:
        raise BadInput(f"{place}, category", f"is none of {', '.join(CLASSES)}")
    known = data.get("known", False)
    if not isinstance(known, bool):
        raise BadInput(f"{place}, known", "is neither true nor false")
    labels = _list(data.get("gmail_labels", []), f"{place}, gmail_labels")
    if "id" not in data:
        raise BadInput(f"{place}, id", "is missing")
    return HeaderRecord(
        id=_text(data["id"], f"{place}, id"),
        headers=_headers(data, f"{place}, headers"),
        known=known,
        labels=tuple(_text(label, f"{place}, gmail_labels[{at}]") for at, label in enumerate(labels)),
        category=category or None,
        lang=_text(data.get("lang", ""), f"{place}, lang"),
    )


def _headers(data: Mapping[str, Any], place: str) -> Headers:
    if "headers" not in data:
        raise BadInput(place, "is missing")
    pairs = _list(data["headers"], place)
    if len(pairs) > MAX_HEADERS:
        raise BadInput(place, f"has {len(pairs)} entries; the most is {MAX_HEADERS}")
    found = []
    for at, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise BadInput(f"{place}[{at}]", "is not a pair of a name and a value")
        found.append((pair[0], pair[1][:MAX_VALUE_CHARS]))
    return Headers(tuple(found))


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadInput(place, "is not a list")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise BadInput(place, "is not a text")
    return value


@dataclass(slots=True)
class Score:
    found: int = 0
    """Selected, and rightly so."""
    missed: int = 0
    mistaken: int = 0

    @property
    def recall(self) -> float | None:
        whole = self.found + self.missed
        return self.found / whole if whole else None

    @property
    def precision(self) -> float | None:
        whole = self.found + self.mistaken
        return self.found / whole if whole else None

    def to_json(self) -> dict[str, Any]:
        counts = {"found": self.found, "missed": self.missed, "mistaken": self.mistaken}
        return {"precision": _rounded(self.precision), "recall": _rounded(self.recall), **counts}


@dataclass
class Scores:
    by_category: dict[str, Score] = field(default_factory=dict)
    by_language: dict[str, Score] = field(default_factory=dict)
    """Of all categories but `none` together."""
    records: Counter[str] = field(default_factory=Counter)
    """How many of each language."""

    def add(self, wanted: str, found: Iterable[str], lang: str) -> None:
        """`wanted` may be `none`; `found` may hold several categories, or none."""
        self.records[lang] += 1
        chosen = set(found) - {NONE} or {NONE}
        for name in chosen | {wanted}:
            scores = [self.by_category.setdefault(name, Score())]
            if name != NONE:
                scores.append(self.by_language.setdefault(lang, Score()))
            for score in scores:
                score.found += name == wanted and name in chosen
                score.missed += name == wanted and name not in chosen
                score.mistaken += name != wanted

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.records.total(),
            "categories": {name: self.by_category[name].to_json() for name in CLASSES if name in self.by_category},
            "languages": {
                lang: {"records": self.records[lang], **score.to_json()}
                for lang, score in sorted(self.by_language.items())
            },
        }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
