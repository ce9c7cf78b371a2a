"""Pages of Gmail's history as changes of a mailbox. Pure.

History ids are numbers of any length, and text to all other code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from postroom.mailboxes.gmail.resources import HistoryPage, HistoryRecord, LabelChange
from postroom.mailboxes.protocol import ChangePage, Cursor, LabelDelta


class HistoryFolder:
    """Folds the pages of one reading, in their order, into pages of changes with a cursor each."""

    def __init__(self, since: Cursor) -> None:
        self._since = since
        self._reached: str | None = None

    def fold(self, page: HistoryPage) -> ChangePage:
        # Where the mailbox stood when the first page was answered: what came later may be on no page.
        self._reached = latest([self._since, self._reached or page.history_id, *(each.id for each in page.records)])
        return fold(page.records, self._reached if page.next_token is None else resume_point(page.records))


def fold(records: Sequence[HistoryRecord], cursor: Cursor | None = None) -> ChangePage:
    """Records may come in any order, and twice."""
    added: dict[str, None] = {}
    deleted: dict[str, None] = {}
    relabelled: list[LabelDelta] = []
    for record in sorted(records, key=lambda each: int(each.id)):
        number = int(record.id)
        added.update(dict.fromkeys(ref.id for ref in record.added))
        deleted.update(dict.fromkeys(ref.id for ref in record.deleted))
        for each in record.labels_added:
            now = each.message.label_ids if each.message.label_ids >= each.label_ids else None
            relabelled.append(LabelDelta(each.message.id, add=each.label_ids, now=now, sequence=number))
        for each in record.labels_removed:
            relabelled.append(_removal(each, number))
    kept = tuple(each for each in added if each not in deleted)
    return ChangePage(kept, tuple(deleted), tuple(relabelled), cursor, len(records))


def _removal(change: LabelChange, number: int) -> LabelDelta:
    """A message without any label looks like one whose labels Gmail left out."""
    now = change.message.label_ids or None
    return LabelDelta(change.message.id, remove=change.label_ids, now=now, sequence=number)


def latest(history_ids: Iterable[str]) -> str | None:
    return max(history_ids, key=int, default=None)


def resume_point(records: Sequence[HistoryRecord]) -> str | None:
    """Where to resume if the next page is never read; None: where this page began.

    Not the last id, because the next page may hold more records with that id.
    """
    last = latest(each.id for each in records)
    return latest(each.id for each in records if each.id != last)
