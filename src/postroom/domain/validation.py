"""Bounds that the arguments of a tool and the code behind it share, and what pydantic found wrong, in words for people:
neither its sentences nor the patterns that we check with. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ErrorType

DEFAULT_RULE_PRIORITY = 100
LONGEST_NOTE = 500
"""Characters of a note with the answer to an approval."""
LONGEST_REASON = 300
"""Characters that say why a message gave trouble."""
MOST_AUDIT_ENTRIES = 500
"""Entries of the audit log on one page."""
MOST_BACKFILLS = 1_000
"""Backfill jobs in one listing."""
MOST_RESULTS = 50
"""Messages that one search on demand takes in."""
MOST_CEILING_CENTS = 10_000_000

_NOT_OURS = frozenset(get_args(ErrorType)) - {"value_error", "assertion_error"}
"""Kinds whose text is pydantic's own."""
_KINDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this object",
    "string_type": "is not text",
    "string_unicode": "holds half of a character",
    "invalid_key": "has a name that is not text",
    "tuple_type": "is not a list",
    "set_type": "is not a list",
    "string_pattern_mismatch": "has characters, or a form, that is not allowed here",
    "list_type": "is not a list",
    "dict_type": "is not an object",
    "model_type": "is not an object",
    "model_attributes_type": "is not an object",
    "json_invalid": "is not JSON",
    "finite_number": "is not a number",
    "recursion_loop": "is nested in itself",
    "recursion_depth_exceeded": "is nested too deeply",
    "timezone_aware": "has no time zone; write for example 2026-01-31T12:00:00Z",
}
_BEGINNINGS = {
    "int_": "is not a whole number",
    "float_": "is not a number",
    "decimal_": "is not a number",
    "bool_": "is neither true nor false",
    "datetime_": "is not a time such as 2026-01-31T12:00:00Z",
    "date_": "is not a day such as 2026-01-31",
    "time_delta_": "is not a duration such as 30m",
    "url_": "is not an address such as https://example.org",
    "uuid_": "is not an id such as 0199a1c2-7e5b-7abc-8def-0123456789ab",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "is less than {}"),
    "greater_than": ("gt", "is not more than {}"),
    "less_than_equal": ("le", "is more than {}"),
    "less_than": ("lt", "is not less than {}"),
    "string_too_long": ("max_length", "has more than {} characters"),
    "too_long": ("max_length", "has more than {} items"),
    "too_short": ("min_length", "has fewer than {} items"),
    "literal_error": ("expected", "is not one of {}"),
    "enum": ("expected", "is not one of {}"),
}


def problem_text(problem: Mapping[str, Any]) -> str:
    """One of `ValidationError.errors()`, in our words; an error of our own validators keeps its text."""
    kind, context = str(problem["type"]), problem.get("ctx") or {}
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "string_too_short":
        least = context.get("min_length", 1)
        return "is empty" if least == 1 else f"has fewer than {least} characters"
    if kind in _BOUNDS and _BOUNDS[kind][0] in context:
        name, text = _BOUNDS[kind]
        return text.format(context[name])
    for beginning, text in _BEGINNINGS.items():
        if kind.startswith(beginning):
            return text
    if kind in _NOT_OURS:
        return "is not allowed here"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:]


def problem_steps(problem: Mapping[str, Any]) -> list[str]:
    """Where it is: the path that pydantic knows, and what a validator of ours found below it."""
    below = (problem.get("ctx") or {}).get("below")
    return [*map(str, problem["loc"]), *([below] if below else [])]


def shaped(pattern: str, problem: str) -> AfterValidator:
    """For a text of a certain form that people write: the refusal says what is wanted."""
    fits = re.compile(pattern).fullmatch

    def check(text: str) -> str:
        if fits(text) is None:
            raise PydanticCustomError("form", "{problem}", {"problem": problem})
        return text

    return AfterValidator(check)


def unstorable_place(value: object) -> tuple[str, ...] | None:
    """Where a value holds text that no database of ours and no JSON can keep: a NUL, or half of a character. Empty: the
    value itself, or a key of it. None: nowhere."""
    return None if _is_storable(value) else _unstorable_place(value)


def _is_storable(value: object) -> bool:
    """The same without the place, which almost no one asks for: in a tenth of the time."""
    if isinstance(value, str):
        return "\0" not in value and (value.isascii() or _is_whole(value))
    if isinstance(value, dict):
        return all(map(_is_storable, value)) and all(map(_is_storable, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_storable, value))
    return True


def _unstorable_place(value: object) -> tuple[str, ...] | None:
    inner: list[tuple[object, object]]
    match value:
        case str():
            return () if "\0" in value or not (value.isascii() or _is_whole(value)) else None
        case dict():
            if any(unstorable_place(key) is not None for key in value):
                return ()
            inner = list(value.items())
        case list() | tuple() | set() | frozenset():
            inner = list(enumerate(value))
        case _:
            return None
    for step, each in inner:
        if (place := unstorable_place(each)) is not None:
            return (str(step), *place)
    return None


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
