"""Secrets that are shown once."""

from __future__ import annotations

from postroom.dashboard.security.sessions import ShownOnce


def test_a_secret_is_taken_once_and_only_by_the_login_that_made_it() -> None:
    kept = ShownOnce()
    kept.keep("one", "token", "prt_x")
    assert kept.take("two", "token") is None
    assert kept.take("one", "token") == "prt_x"
    assert kept.take("one", "token") is None


def test_those_that_nobody_takes_make_room() -> None:
    kept = ShownOnce()
    for number in range(60):
        kept.keep("one", str(number), "prt_x")
    assert kept.take("one", "0") is None
    assert kept.take("one", "59") == "prt_x"
