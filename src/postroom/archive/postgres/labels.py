"""The labels of one account's messages, changed within a transaction that has the account's lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from postroom.archive.postgres.connections import Session


class Labels:
    def __init__(self, session: Session, account: int) -> None:
        self._db = session
        self._account = account
        self._numbers: dict[str, int] = {}

    def replace(self, row_id: int, names: Collection[str]) -> None:
        self._db.query(
            "DELETE FROM archive.message_labels WHERE account = %s AND id = %s AND label <> ALL(%s)",
            (self._account, row_id, self.numbers(names)),
        )
        self.give([(row_id, names)])

    def begin(self, given: Iterable[tuple[int, Collection[str]]]) -> None:
        """The first labels of new messages."""
        given = list(given)
        self.numbers({name for _, names in given for name in names})
        rows = ((self._numbers[name], row_id, self._account) for row_id, names in given for name in names)
        self._db.copy("archive.message_labels", "label, id, account", rows)

    def give(self, given: Iterable[tuple[int, Collection[str]]]) -> None:
        """What a message has already is no change."""
        given = list(given)
        self.numbers({name for _, names in given for name in names})
        rows = [(self._numbers[name], row_id, self._account) for row_id, names in given for name in names]
        sql = "INSERT INTO archive.message_labels (label, id, account) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        self._db.many(sql, rows)

    def take(self, row_id: int, names: Collection[str]) -> None:
        sql = "DELETE FROM archive.message_labels WHERE account = %s AND id = %s AND label = ANY(%s)"
        self._db.query(sql, (self._account, row_id, self.numbers(names)))

    def rename(self, old: str, new: str) -> None:
        """Where both names exist, those who had the old one join those who have the new one."""
        known: dict[str, int] = dict(
            self._db.query("SELECT name, label FROM archive.labels WHERE account = %s", (self._account,))
        )
        if old not in known:
            return
        if new not in known:
            self._db.query("UPDATE archive.labels SET name = %s WHERE label = %s", (new, known[old]))
            return
        self._db.query(
            "INSERT INTO archive.message_labels (label, id, account) "
            "SELECT %s, id, account FROM archive.message_labels WHERE label = %s ON CONFLICT DO NOTHING",
            (known[new], known[old]),
        )
        self._db.query("DELETE FROM archive.message_labels WHERE label = %s", (known[old],))
        self._db.query("DELETE FROM archive.labels WHERE label = %s", (known[old],))

    def numbers(self, names: Collection[str]) -> list[int]:
        """The labels' numbers; those that are new get one."""
        if not self._numbers.keys() >= set(names):
            known = "SELECT name, label FROM archive.labels WHERE account = %s"
            self._numbers |= dict(self._db.query(known, (self._account,)))
        for name in sorted(set(names) - self._numbers.keys()):
            made = "INSERT INTO archive.labels (account, name) VALUES (%s, %s) RETURNING label"
            [(self._numbers[name],)] = self._db.query(made, (self._account, name))
        return [self._numbers[name] for name in names]
