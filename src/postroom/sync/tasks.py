"""Task groups that speak our language: what goes wrong inside comes out as the one error that says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from postroom.domain.errors import PostroomError


@contextmanager
def first_error() -> Iterator[None]:
    """Around a task group: its first PostroomError, alone. Anything else in it is a mistake and comes out whole."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PostroomError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from None


def _first(group: BaseExceptionGroup[PostroomError]) -> PostroomError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
