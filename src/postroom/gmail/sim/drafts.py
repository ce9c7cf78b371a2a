"""Drafts: a name for a message that can be rewritten until it is sent."""

from __future__ import annotations

from postroom.gmail.sim.errors import not_found
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.store import Store


class Drafts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._messages: dict[str, str] = {}
        self._next = 1_000_001

    def create(self, raw: bytes, thread_id: str | None) -> tuple[str, MailSummary]:
        draft_id = f"r{self._next * 7_919_317}"
        self._next += 1
        mail = self._store.insert(raw, frozenset({"DRAFT"}), thread_id=thread_id)
        self._messages[draft_id] = mail.id
        return draft_id, mail

    def update(self, draft_id: str, raw: bytes, thread_id: str | None) -> MailSummary:
        """The draft keeps its id; its message is a new one."""
        old = self.get(draft_id)
        mail = self._store.insert(raw, frozenset({"DRAFT"}), thread_id=thread_id or old.thread_id)
        self._store.delete(old)
        self._messages[draft_id] = mail.id
        return mail

    def get(self, draft_id: str) -> MailSummary:
        if draft_id not in self._messages:
            raise not_found()
        return self._store.get(self._messages[draft_id])

    def remove(self, draft_id: str) -> MailSummary:
        """The draft and its message are gone; what the message was is the answer."""
        mail = self.get(draft_id)
        del self._messages[draft_id]
        self._store.delete(mail)
        return mail

    def forget(self, message_id: str) -> None:
        """A message was deleted by itself: a draft of it is no draft any more."""
        self._messages = {key: value for key, value in self._messages.items() if value != message_id}

    def all(self) -> list[tuple[str, MailSummary]]:
        """Newest first."""
        live = [(key, self._store.find(message_id)) for key, message_id in reversed(self._messages.items())]
        return [(key, mail) for key, mail in live if mail is not None]
