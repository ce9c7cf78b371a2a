"""What is called with the changes of a mailbox, such as the learner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from postroom.db import Tx


class MailboxObserver(Protocol):
    """Called with what changed in a mailbox, in the transaction that records it."""

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        """`labels`: by Gmail id, the labels that messages have now, or at least those they gained."""


class MailboxObservers:
    """Several, called one after the other."""

    def __init__(self, *observers: MailboxObserver) -> None:
        self._observers = observers

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        for observer in self._observers:
            observer.changed(tx, account_id, labels, deleted)


class ObserverWhenNeeded:
    """One that is made when something changes, and not before: most looks at a mailbox find nothing."""

    def __init__(self, make: Callable[[], MailboxObserver]) -> None:
        self._make = make
        self._made: MailboxObserver | None = None

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        self._made = self._made or self._make()
        self._made.changed(tx, account_id, labels, deleted)


class NoObserver:
    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        """Ignores changes."""
