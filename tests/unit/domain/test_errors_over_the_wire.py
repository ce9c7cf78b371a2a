"""Errors that travel: what one side raises, the other side raises too."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import (
    BadInput,
    Fatal,
    NotAllowed,
    NotFound,
    PostroomError,
    Retryable,
    error_from_wire,
    error_to_wire,
)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("date_from", "is after date_to"),
        NotFound("job_id", "there is no such job"),
        NotAllowed("dashboard only"),
        Retryable("busy", retry_after=timedelta(seconds=2.5)),
        Retryable("busy"),
        Fatal("damaged"),
    ],
)
def test_an_error_arrives_as_what_it_was(error: PostroomError) -> None:
    arrived = error_from_wire(error_to_wire(error))
    assert type(arrived) is type(error)
    assert arrived.message == error.message
    assert vars(arrived) == vars(error)


@given(st.none() | st.dictionaries(st.text(), st.integers()) | st.builds(lambda x: {"error": x}, st.text()))
def test_an_answer_of_another_shape_is_fatal_and_keeps_its_text(answer: dict[str, object] | None) -> None:
    assert error_from_wire(answer, "what it said").message == "what it said"
