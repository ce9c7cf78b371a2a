"""What is sealed comes back as it was, or is known not to be genuine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.security.sessions import Signer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST = timedelta(minutes=15)
SEAL = Signer()


def test_a_seal_is_good_for_its_purpose_and_its_time_only() -> None:
    sealed = SEAL.close("one", {"n": 1}, NOW)
    opened = SEAL.open("one", sealed)
    assert opened is not None
    assert opened.value == {"n": 1}
    assert opened.is_good(NOW + LONGEST, LONGEST)
    assert not opened.is_good(NOW + LONGEST + timedelta(seconds=1), LONGEST)
    assert not opened.is_good(NOW - timedelta(seconds=1), LONGEST), "the clock was set back"
    for other in (SEAL.open("two", sealed), Signer().open("one", sealed)):
        assert other is not None
        assert not other.is_good(NOW, LONGEST)


@given(st.text(max_size=200))
def test_anything_may_be_offered_and_nothing_of_it_is_genuine(text: str) -> None:
    opened = SEAL.open("one", text)
    assert opened is None or not opened.is_genuine


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_changed_seal_is_not_genuine(place: int, char: str) -> None:
    sealed = SEAL.close("one", {"wanted": {"days": 7}, "estimate": {"cost": 12}}, NOW)
    changed = sealed[:place] + char + sealed[place + 1 :]
    opened = SEAL.open("one", changed)
    assert changed == sealed or opened is None or not opened.is_genuine
