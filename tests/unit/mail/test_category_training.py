"""The weights that ship are those that `make train` makes from the data."""

from __future__ import annotations

import re
import zlib

import pytest
from tools.train_categories import APART, SCALE, SHIPPED, TARGET, Example, example, fit, mixed, read_lines

from postroom.mail.categories.model import CategoryModel, apart, in_words
from postroom.mail.categories.records import read_records


@pytest.mark.req("DQ-1")
@pytest.mark.timeout(400)
def test_the_weights_are_those_that_training_makes() -> None:
    """Bit for bit with the same libraries on the same kind of processor; elsewhere sums may be rounded otherwise."""
    made, held = fit(read_lines(SHIPPED)), TARGET.read_bytes()
    if made != held:
        one, other = CategoryModel(made).weights, CategoryModel(held).weights
        assert len(one.keys() ^ other.keys()) < len(other) / 1_000
        pairs = [(apart(one[key]), apart(other[key])) for key in one.keys() & other.keys()]
        assert max(abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True)) * SCALE < 0.05
    assert len(held) < 2_000_000
    assert zlib.decompress(held)


@pytest.mark.req("DQ-1")
def test_no_organisation_of_the_scored_records_is_in_the_lines_that_scores_are_fitted_to() -> None:
    scored = read_records((TARGET.parents[4] / "data" / "categories" / "dev.jsonl").read_text("utf-8").splitlines())
    own = {Example("none", "", record.facts).organisation for record in scored}
    lines = read_lines(APART)
    assert len(lines) > 9_000
    assert not {one.organisation for one in lines if one.facts.address} & own


def test_mixing_keeps_every_line_and_repeats_it_with_other_flags() -> None:
    lines = [
        example("travel\ten\tAir <no-reply@air.example>\tYour boarding pass\tA"),
        example("none\tde\tx@y.example\tHi"),
    ]
    made = mixed(lines)
    assert made == mixed(lines)
    assert made[::2] == lines
    assert [one.category for one in made[1::2]] == ["travel", "none"]


@pytest.mark.req("DQ-2")
def test_every_kind_of_feature_can_be_said_in_words() -> None:
    """A sentence is made of each, and no name of the code is left in it."""
    features = {feature for one in mixed(read_lines(SHIPPED))[::3] for feature in one.features}
    forms = {feature for feature in features if feature[:2] in ("x:", "f:")}
    assert len(forms) > 70
    for feature in features:
        assert in_words(feature).startswith(("the ", "how ", "it ", "you ", "Gmail ")), feature
    assert not [said for said in map(in_words, forms) if re.search(r"\d|local|:", said)]
