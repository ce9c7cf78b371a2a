"""Words as both databases compare them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from postroom.web.evidence import LONGEST_WORD, fold


@given(st.text())
def test_folded_text_is_words_with_one_space_around_each_and_stays_so(text: str) -> None:
    folded = fold(text)
    assert fold(folded) == folded
    assert folded == "" or re.fullmatch(r"( [^\W_]+)+ ", folded)


def test_of_a_word_without_end_only_the_beginning_counts() -> None:
    assert fold("a" * 5_000) == fold("a" * LONGEST_WORD) == f" {'a' * LONGEST_WORD} "
    assert fold("é" * 201 + " b") == f" {'e' * LONGEST_WORD} b "
