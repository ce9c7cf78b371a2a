"""Marks of answers before a subject, in the languages of mail programs."""

from __future__ import annotations

import pytest

from postroom.mail.headers import bare_subject

pytestmark = pytest.mark.req("FD-5")


@pytest.mark.parametrize(
    "subject",
    ["Re: Lunch", "RE : lunch", "AW: Re[2]: Lunch", "Sv: [choir] Lunch", "R: Lunch", "Odp: Lunch", "Vá: Lunch",
     "YNT: Lunch", "Отв: Lunch", "回复\uff1aLunch", "返信: Lunch", "답장: Lunch",
     "رد: Lunch", "Re^3:  LUNCH ", "Re (4): Lunch"],
)  # fmt: skip
def test_an_answer_is_known_by_its_mark(subject: str) -> None:
    assert bare_subject(subject) == ("lunch", True)


@pytest.mark.parametrize("subject", ["Lunch", "[choir] Lunch", "  lunch"])
def test_other_subjects_are_no_answers(subject: str) -> None:
    assert bare_subject(subject) == ("lunch", False)


def test_words_that_begin_like_a_mark_stay() -> None:
    assert bare_subject("Reorder: lunch") == ("reorder: lunch", False)
    assert bare_subject("Fwd: Lunch") == ("fwd: lunch", False)
    assert bare_subject("Re: Fwd: Lunch") == ("fwd: lunch", True)
    assert bare_subject("Re: " * 10_000).is_reply
