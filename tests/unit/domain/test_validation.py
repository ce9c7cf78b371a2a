"""Refusals of values are in our words: no sentence of pydantic, no pattern."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import AwareDatetime, BaseModel, Field, ValidationError
from pydantic_core.core_schema import ErrorType

from postroom.domain.validation import problem_text, unstorable_place


class Sample(BaseModel, extra="forbid"):
    name: str = Field("x", min_length=1, max_length=3, pattern="^[a-z]+$")
    long: str = Field("xx", min_length=2)
    number: int = Field(1, ge=1, le=9)
    ratio: float = 0.5
    flag: bool = True
    choice: Literal["a", "b"] = "a"
    day: date | None = None
    moment: AwareDatetime | None = None
    items: Annotated[list[int], Field(max_length=2)] = []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "A!"}, "has characters, or a form, that is not allowed here"),
        ({"name": "abcd"}, "has more than 3 characters"),
        ({"name": ""}, "is empty"),
        ({"name": 7}, "is not text"),
        ({"long": "x"}, "has fewer than 2 characters"),
        ({"number": 0}, "is less than 1"),
        ({"number": 10}, "is more than 9"),
        ({"number": "x"}, "is not a whole number"),
        ({"ratio": "x"}, "is not a number"),
        ({"flag": "perhaps"}, "is neither true nor false"),
        ({"choice": "c"}, "is not one of 'a' or 'b'"),
        ({"day": "tomorrow"}, "is not a day such as 2026-01-31"),
        ({"moment": datetime(2026, 1, 1)}, "has no time zone; write for example 2026-01-31T12:00:00Z"),  # noqa: DTZ001
        ({"items": [1, 2, 3]}, "has more than 2 items"),
        ({"items": 3}, "is not a list"),
        ({"other": 3}, "is not a field of this object"),
    ],
)
def test_a_refusal_is_in_our_words(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Sample.model_validate(given)
    assert problem_text(refused.value.errors()[0]) == text


@pytest.mark.parametrize("kind", sorted(set(get_args(ErrorType)) - {"value_error", "assertion_error"}))
def test_no_sentence_of_pydantic_is_shown_whatever_it_finds(kind: str) -> None:
    assert (
        "Input should" not in problem_text({"type": kind, "msg": "Input should be a counter", "ctx": {}}).capitalize()
    )


def test_a_validator_of_ours_keeps_its_words() -> None:
    assert problem_text({"type": "value_error", "msg": "Value error, needs a label"}) == "needs a label"
    assert problem_text({"type": "storable", "msg": "holds a NUL character"}) == "holds a NUL character"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("a\0", ""),
        ("\ud800", ""),
        (["\0"], "0"),
        ({"\0": 1}, ""),
        ({"a": {"b": ["c", "\udcff"]}}, "a.b.1"),
        (({"\0"},), "0.0"),
    ],
)
def test_text_that_no_database_holds_is_found_at_any_depth(value: object, place: str) -> None:
    found = unstorable_place(value)
    assert found is not None
    assert ".".join(found) == place


@pytest.mark.parametrize("value", ["", "caf\u00e9 \U0001f468", b"\0", {"a": [1, None, "b\n"]}, 7, None])
def test_other_values_can_be_stored(value: object) -> None:
    assert unstorable_place(value) is None
