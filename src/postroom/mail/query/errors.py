"""What is wrong with a query, and where."""

from __future__ import annotations

from postroom.domain.errors import BadInput


class QueryError(BadInput):
    """A query that means nothing: `position` is the column of the mistake, counted from 1."""

    def __init__(self, problem: str, *, position: int, expected: str) -> None:
        super().__init__("query", f"{problem} at column {position}; expected {expected}")
        self.reason = problem
        self.position = position
        self.expected = expected


class OperandError(Exception):
    """An operator cannot use its operand; the grammar adds where that stands."""

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
