"""What happened to the mailbox, in order: the log behind `history.list`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum

from postroom.gmail.sim.errors import not_found
from postroom.gmail.sim.model import MailSummary

FIRST_ID = 10_000_000


class Kind(StrEnum):
    """The kinds of change, by their key in a history record."""

    ADDED = "messagesAdded"
    DELETED = "messagesDeleted"
    LABELS_ADDED = "labelsAdded"
    LABELS_REMOVED = "labelsRemoved"


TYPES = {"messageAdded": Kind.ADDED, "messageDeleted": Kind.DELETED, "labelAdded": Kind.LABELS_ADDED}
TYPES |= {"labelRemoved": Kind.LABELS_REMOVED}


@dataclass(frozen=True, slots=True)
class Change:
    id: int
    kind: Kind
    message_id: str
    thread_id: str
    label_ids: frozenset[str]
    """The labels after the change."""
    changed: tuple[str, ...] = ()
    at_ms: int = 0

    def concerns(self, label_id: str) -> bool:
        return label_id in self.label_ids or label_id in self.changed

    def as_json(self) -> dict[str, object]:
        short = {"id": self.message_id, "threadId": self.thread_id}
        labels = {"labelIds": sorted(self.label_ids)} if self.label_ids else {}
        entry: dict[str, object] = {"message": short | labels}
        if self.changed:
            entry["labelIds"] = list(self.changed)
        return {"id": str(self.id), "messages": [short], str(self.kind): [entry]}


class HistoryLog:
    """Ids grow, with gaps. Nothing is known from before the stand-in started, nor from before the last expiry."""

    def __init__(self, base_count: int) -> None:
        self._changes: list[Change] = []
        self.current = FIRST_ID + base_count
        self.oldest = self.current

    def record(self, kind: Kind, mail: MailSummary, changed: tuple[str, ...] = (), *, at_ms: int = 0) -> int:
        self.current += 1 + (self.current * 7919) % 13
        change = Change(self.current, kind, mail.id, mail.thread_id, mail.label_ids, changed, at_ms)
        self._changes.append(change)
        return self.current

    def expire(self) -> None:
        """Forget everything: every id handed out so far, the current one included, is too old from now on."""
        self.current += 1
        self.oldest = self.current
        self._changes.clear()

    def all(self) -> list[Change]:
        """Everything since the start or the last expiry."""
        return list(self._changes)

    def since(self, history_id: int, limit: int) -> tuple[list[Change], bool]:
        """At most `limit` changes after this id, and whether there are more."""
        if not self.oldest <= history_id <= self.current:
            raise not_found()
        start = bisect_right(self._changes, history_id, key=lambda change: change.id)
        return self._changes[start : start + limit], start + limit < len(self._changes)
