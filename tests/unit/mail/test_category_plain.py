# ruff: noqa: RUF001 (other scripts are meant)
"""Categories are judged by fast ways of reading and adding. Each says exactly what the plain way, written out here,
says: on every line and record of `data/categories`, and on any text."""

from __future__ import annotations

import array
import math
import re
import sys
import unicodedata
import zlib
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tools.train_categories import DATA, SHIPPED, TARGET, read_lines

from postroom.mail import authentication, header_features
from postroom.mail.categories.model import CLASSES, HEAD, CategoryModel, apart, shipped_model, together
from postroom.mail.categories.records import read_records
from postroom.mail.header_features import HeaderFacts, feature_groups, features_of, words_of
from postroom.mail.patterns import fold

PLAIN_FORMS = {
    "amount": r"[€$£¥₹₺₽₴₩₪₫฿]\s?-?\d|\d\s?[€$£¥₹₺₽₴₩₪₫฿円元]|\b(?:eur|usd|gbp|chf|pln|zl|czk|kc|sek|nok|dkk|kr|huf|ft|"
    r"ron|lei|rsd|rs|inr|idr|rp|rm|sgd|aud|cad|nzd|zar|brl|r\$|mxn|ars|clp|cop|pen|try|tl|uah|rub|руб|грн|jpy|krw|twd|"
    r"nt\$|hkd|cny|vnd|thb|aed|sar|ngn|kes|ksh|php|euros?|dollars?)\s?\d|\d\s?(?:eur|usd|gbp|chf|pln|zl|czk|kc|sek|nok|"
    r"dkk|kr|huf|ft|ron|lei|rsd|tl|try|uah|грн|руб|rub|euros?|dollars?|원|บาท|vnd|ден)\b",
    "cents": r"\d[.,]\d\d(?!\d)",
    "percent": r"\d\s?[%٪]|%\s?\d",
    "time": r"\b\d{1,2}[:h]\d\d|\b\d{1,2}\s?(?:am|pm|uhr|h)\b|\d時|\d点",
    "date": r"\b\d{1,2}[./-]\d{1,2}(?:[./-]\d{2,4})?\b|\b\d{4}-\d\d-\d\d\b|\d月",
    "code": r"\b(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{5,8}\b",
    "dashed": r"\b[a-z]{1,5}-?\d{3}[-/\d]*\b|\b\d+-[a-z\d]+\b",
    "number": r"\b\d{7,}\b",
    "digits4-6": r"(?<![\d.,-])\d{4,6}(?![\d.,-])",
    "flight": r"\b[a-z][a-z0-9] ?\d{3,4}\b",
    "hash": r"#\s?\d",
}
pieces_of_subjects = st.sampled_from(
    [
        *"0123456789٣५abcdhkprtuxyz€$£%٪#.,:/-_ \t月時点円元",
        *PLAIN_FORMS,
        *(
            " ",
            "am",
            "pm",
            "uhr",
            "eur",
            "euros",
            "kr",
            "r$",
            "nt$",
            "руб",
            "грн",
            "rs",
            "dollars",
            "원",
            "บาท",
            "tl",
            "ft",
        ),
        *("2024", "12", "123", "123456", "1234567", "lh", "u2"),
    ]
)


def plain_forms(text: str) -> list[str]:
    found = [f"x:{name}" for name, form in PLAIN_FORMS.items() if re.search(form, text)]
    return found if re.search(r"\d", text) else []


def forms(subject: str) -> list[str]:
    found = HeaderFacts("", "", subject, frozenset())
    return [each for each in feature_groups(found)[0] if each[2:] in PLAIN_FORMS and each.startswith("x:")]


def facts() -> list[HeaderFacts]:
    records = read_records((DATA / "dev.jsonl").read_text("utf-8").splitlines())
    return [*(one.facts for one in records), *(line.facts for line in read_lines(SHIPPED))]


@given(st.lists(pieces_of_subjects, max_size=12).map("".join))
@example("a eur 5 b")
@example("50 euros")
def test_the_forms_of_numbers_are_found_as_plain_patterns_find_them(text: str) -> None:
    assert [name for name, form in header_features._FORMS_WITH_DIGITS if form.search(text)] == [
        name for name, form in PLAIN_FORMS.items() if re.search(form, text)
    ]
    bare = fold(text).lstrip()  # `r:` and the like begin a reply
    if not header_features._REPLY.match(bare):
        assert forms(bare) == plain_forms(bare)


@given(st.text(max_size=60))
@example("Grüße, Zoë: 100 ½ ﬁn\N{COMBINING ACUTE ACCENT}")
@example("snake_case and 注文 번호 x²")
def test_folding_and_words_are_those_of_plain_ways(text: str) -> None:
    lowered = unicodedata.normalize("NFKD", text.casefold())
    assert fold(text) == "".join(char for char in lowered if not unicodedata.combining(char))
    found: list[str] = []
    for word in re.findall(r"[^\W\d_]+", fold(text)):
        found += header_features._letters(word) if header_features._TOGETHER.search(word) else [word]
    assert words_of(fold(text)) == found[: header_features._MOST_WORDS]


def test_a_part_of_a_word_is_found_wherever_it_stands() -> None:
    """Each `*part` in the middle of a word, at its end, and with another in the same word."""
    known = header_features.concepts()
    parts = dict(known._within)
    assert len(parts) > 100
    for (part, concept), (other, second) in zip(known._within, known._within[::-1], strict=True):
        for word in (f"qq{part}qq", f"qq{part}", f"qq{part}{other}{part}"):
            assert concept in known.of([word], word)
        found = [each for each in known.of([f"qq{part}q{other}"], "") if each in (concept, second)]
        assert found == list(dict.fromkeys(each for _, each in known._within if each in (concept, second)))


@given(st.text('ab;=." ()\\', max_size=40))
@example(r'mx.example; spf=pass (a \) (nested) "b") "quoted; (text)"')
def test_comments_are_left_out_as_if_read_letter_by_letter(value: str) -> None:
    out, depth, at = "", 0, 0
    while at < len(value):
        quoted = re.match(r'"((?:[^"\\]|\\.)*+)"', value[at:]) if not depth else None
        if quoted:
            out += re.sub(r"[;\s]", "_", quoted[1])
            at += quoted.end()
            continue
        char = value[at]
        closes = char == ")" and depth > 0
        out += " " if closes else "" if depth or char == "(" else char
        at += 1 + (char == "\\" and depth > 0)
        depth += (char == "(") - closes
    assert authentication._without_comments(value) == (out, depth == 0)


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=6, max_size=6), max_size=20))
def test_weights_in_one_integer_add_up_like_weights_beside_each_other(rows: list[list[int]]) -> None:
    sums = [sum(row[place] for row in rows) for place in range(6)]
    assert apart(sum(together([row[place] for row in rows] for place in range(6)))) == sums


class PlainModel:
    """The same file, read and added up without any short cut."""

    def __init__(self, packed: bytes) -> None:
        data = zlib.decompress(packed)
        _, count, width, self.scale = HEAD.unpack_from(data)
        hashes, weights = array.array("I"), array.array("h")
        hashes.frombytes(data[HEAD.size : HEAD.size + 4 * count])
        weights.frombytes(data[HEAD.size + 4 * count :])
        if sys.byteorder == "big":
            hashes.byteswap()
            weights.byteswap()
        self.weights = {one: tuple(weights[width * at : width * (at + 1)]) for at, one in enumerate(hashes)}
        self.weigh = cache(self._weigh)

    def _weigh(self, feature: str) -> tuple[int, ...]:
        names = [feature]
        is_word = feature[0] in "snld" and feature[1] == ":" and not header_features._TOGETHER.search(feature)
        if is_word:
            word = f"<{feature[2:]}>"
            sizes = [size for size in (3, 4, 5) if size < len(word)]
            runs = [word[at : at + size] for size in sizes for at in range(len(word) - size + 1)]
            names += [f"~{feature[:2]}{run}" for run in dict.fromkeys(runs)]
        rows = [self.weights.get(zlib.crc32(name.encode("utf-8", "replace")), (0,) * len(CLASSES)) for name in names]
        return tuple(sum(column) for column in zip(*rows, strict=True))

    def shares(self, features: list[str]) -> dict[str, float]:
        rows = [self.weights[zlib.crc32(b"")], *map(self.weigh, features)]
        totals = [sum(column) * self.scale for column in zip(*rows, strict=True)]
        grown = [math.exp(total - max(totals)) for total in totals]
        return {name: each / sum(grown) for name, each in zip(CLASSES, grown, strict=True)}


@pytest.mark.req("DQ-1")
@pytest.mark.timeout(300)
def test_every_line_and_record_is_scored_as_a_plain_model_scores_it() -> None:
    """Not nearly: exactly. And once more when everything is remembered."""
    plain, fast, all_facts = PlainModel(TARGET.read_bytes()), shipped_model(), facts()
    assert len(all_facts) > 9_900
    for one in all_facts:
        if not header_features._REPLY.match(fold(one.subject)):
            assert forms(one.subject) == plain_forms(fold(one.subject)), one.subject
        expected = plain.shares(features_of(one))
        assert fast.predict(feature_groups(one)).shares == expected, one
        assert fast.predict([features_of(one)]).shares == expected, one


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.mail.categories.model._REMEMBERED", 50)
    model, plain = CategoryModel(TARGET.read_bytes()), PlainModel(TARGET.read_bytes())
    for number in range(300):
        features = [f"s:invoice{number}", f"b:your invoice{number}", "s:invoice"]
        assert model.predict([features, tuple(features)]).shares == plain.shares([*features, *features])
        assert len(model._known) <= 50
        assert len(model._sums) <= 50
