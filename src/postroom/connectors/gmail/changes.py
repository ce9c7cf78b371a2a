"""What a mailbox's history says, put together over all its pages: what is new, what has other labels, what is gone.

Pure. Records may be repeated or come out of order; the latest word on a message is the one with the highest id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from postroom.connectors.gmail.mail import SPAM
from postroom.gmail.resources import HistoryPage, HistoryRecord, LabelChange


@dataclass
class Changes:
    added: dict[str, None] = field(default_factory=dict)
    """In the order in which they came."""
    labels: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """All labels after the latest change; None where the history does not say them."""
    deleted: set[str] = field(default_factory=set)
    history_id: str | None = None
    """Where the mailbox stood when the first page was answered; what came later may be seen again."""
    _label_records: dict[str, int] = field(default_factory=dict)

    def read(self, page: HistoryPage) -> None:
        self.history_id = self.history_id or page.history_id
        for record in page.records:
            self._read(record)

    def settle(self) -> None:
        """Whatever else happened to a message, gone is gone."""
        for gone in self.deleted:
            self.added.pop(gone, None)
            self.labels.pop(gone, None)

    def _read(self, record: HistoryRecord) -> None:
        number = int(record.id)
        self.added.update((message.id, None) for message in record.added)
        self.deleted.update(message.id for message in record.deleted)
        for change in record.labels_added:
            self._label(number, change, change.message.label_ids >= change.label_ids)
        for change in record.labels_removed:
            self._label(number, change, bool(change.message.label_ids))
            if SPAM in change.label_ids:
                # Somebody took it out of the spam folder, so it is mail after all.
                self.added.setdefault(change.message.id)

    def _label(self, number: int, change: LabelChange, told: bool) -> None:
        key = change.message.id
        if number >= self._label_records.get(key, -1):
            self._label_records[key] = number
            self.labels[key] = change.message.label_ids if told else None


def in_chunks(ids: Iterable[str], size: int) -> list[list[str]]:
    listed = list(ids)
    return [listed[start : start + size] for start in range(0, len(listed), size)]
