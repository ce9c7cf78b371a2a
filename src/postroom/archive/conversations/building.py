"""Fills the index of conversations with what it lacks, in small transactions.

What it lacks is asked of the archive each time, so a kill repeats at most one batch, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from postroom.archive.backend import ArchiveBackend

_MESSAGES = 500


@dataclass(frozen=True, slots=True)
class IndexedConversations:
    added: int
    is_done: bool
    """False: it was over before all that waits was indexed."""


def index_conversations(
    archive: ArchiveBackend,
    progress: Callable[[int], None] = lambda done: None,
    is_over: Callable[[], bool] = lambda: False,
    *,
    messages: int = _MESSAGES,
) -> IndexedConversations:
    """Blocks until nothing waits, or it is over; needs no owner of the archive. `progress` is called with the number of
    messages added since its last call."""
    added = 0
    with archive.conversations() as index:
        for batch in index.waiting(messages):
            here = index.add(batch)
            added += here
            progress(here)
            if is_over():
                return IndexedConversations(added, False)
    return IndexedConversations(added, True)
