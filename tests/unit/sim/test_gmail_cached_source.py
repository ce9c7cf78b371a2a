"""A source that remembers says what the source says, and keeps no more than it may."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.sim.gmail.sources import RememberingSource
from tests.support.gmail_sim import EndlessSource


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 1000))
def test_whatever_is_asked_the_answer_is_that_of_the_source(indexes: list[int], raw_bytes: int) -> None:
    plain = EndlessSource(31)
    remembering = RememberingSource(EndlessSource(31), summaries=3, raw_bytes=raw_bytes)
    for index in indexes:
        assert remembering.raw(index) == plain.raw(index)
        assert remembering.summary(index) == plain.summary(index)


def test_what_was_asked_for_lately_is_not_made_again() -> None:
    source = EndlessSource(1000)
    remembering = RememberingSource(source, summaries=10, raw_bytes=len(source.raw(0)) * 10)
    source.raws_written = 0
    for _ in range(3):
        for index in range(5):
            remembering.raw(index)
            remembering.summary(index)
    assert (source.raws_written, source.summaries_made) == (5, 5)
    for index in range(1000):
        remembering.raw(index)
    remembering.raw(0)
    assert source.raws_written == 1001
