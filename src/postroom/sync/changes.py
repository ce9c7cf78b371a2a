"""A page of history, folded into what has to be done about it. Pure.

Records may come twice or out of order: they are sorted by their id, and everything they ask for can be done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroom.gmail.resources import HistoryRecord


@dataclass(frozen=True, slots=True)
class LabelIdChange:
    gmail_id: str
    add: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PageChanges:
    wanted: tuple[str, ...] = ()
    """Added or relabelled, and not deleted as far as the page tells: they should be in the archive."""
    deleted: tuple[str, ...] = ()
    relabelled: tuple[LabelIdChange, ...] = ()
    """In the order in which it happened."""

    @property
    def label_ids(self) -> frozenset[str]:
        return frozenset[str]().union(*(each.add | each.remove for each in self.relabelled))


def fold(records: Sequence[HistoryRecord]) -> PageChanges:
    """Ids of messages do not come back, so a deletion is final wherever it stands."""
    wanted: dict[str, None] = {}
    deleted: dict[str, None] = {}
    relabelled: list[LabelIdChange] = []
    for record in sorted(records, key=lambda each: int(each.id)):
        wanted.update(dict.fromkeys(ref.id for ref in record.added))
        deleted.update(dict.fromkeys(ref.id for ref in record.deleted))
        relabelled += [LabelIdChange(each.message.id, add=each.label_ids) for each in record.labels_added]
        relabelled += [LabelIdChange(each.message.id, remove=each.label_ids) for each in record.labels_removed]
    wanted.update(dict.fromkeys(each.gmail_id for each in relabelled))
    return PageChanges(tuple(each for each in wanted if each not in deleted), tuple(deleted), tuple(relabelled))


def latest(history_ids: Iterable[str]) -> str | None:
    """History ids are numbers, of any length, and text to everybody else."""
    return max(history_ids, key=int, default=None)


def resume_point(records: Sequence[HistoryRecord]) -> str | None:
    """From where to go on if the next page is never reached; None: from where this page began.

    It is not the last id: records that share it may go on behind the page's end.
    """
    last = latest(each.id for each in records)
    return latest(each.id for each in records if each.id != last)
