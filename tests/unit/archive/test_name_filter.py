"""The filter that spares an import from asking every shard about every message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.archive.shards.name_filter import NameFilter


@given(st.lists(st.text()), st.lists(st.text()))
def test_no_name_that_was_added_is_ever_denied(added: list[str], later: list[str]) -> None:
    names = NameFilter()
    names.add(added)
    assert names.add(added) == added
    names.add(later)
    assert names.add(added + later) == added + later


def test_a_name_that_was_never_added_is_seldom_possible_however_many_were() -> None:
    names = NameFilter()
    added = [f"<{number}@example.org>" for number in range(200_000)]
    assert len(names.add(added)) < 10_000
    assert names.add(added) == added
    assert len(names.add(f"<{number}@example.com>" for number in range(20_000))) < 2_000
