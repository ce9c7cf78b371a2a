"""The sent folder, read back once so that replies to old letters are known too (PQ-3). New ones come by the live pass.

A little at a time, newest first; how far it has come is kept in a small file.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from postroom.connectors.files import read_json, write_json
from postroom.connectors.gmail.mail import Position
from postroom.connectors.gmail.walking import MailboxWalk, Scope, Window
from postroom.connectors.sent_index import SentIndex, message_id_of
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient

FILE = "sent.json"
_AT_ONCE = 200


class SentFilling:
    def __init__(self, client: GmailClient, sent: SentIndex, folder: Path, clock: Clock, days: int) -> None:
        self._client = client
        self._sent = sent
        self._path = folder / FILE
        self._clock = clock
        self._days = days
        self._place, self.is_done = _read(self._path)

    async def run(self, most: int = _AT_ONCE) -> bool:
        """Read some more; True once all that is wanted has been read."""
        if self.is_done:
            return True
        today = self._clock.now().date()
        window = Window.of(today - timedelta(days=self._days), today + timedelta(days=1))
        walk = MailboxWalk(self._client, Scope(window, "in:sent", frozenset({"sent"})))
        read = 0
        async for stretch in walk.stretches(self._place):
            if stretch.failures:
                raise next(iter(stretch.failures.values()))
            await self._sent.add(found for mail in stretch.mails if (found := message_id_of(mail.headers)))
            self._reach(stretch.reached, done=False)
            read += len(stretch.mails)
            if read >= most:
                return False
        self._reach(self._place, done=True)
        return True

    def _reach(self, place: Position | None, *, done: bool) -> None:
        self._place, self.is_done = place, done
        write_json(self._path, {"version": 1, "place": place, "done": done})


def _read(path: Path) -> tuple[Position | None, bool]:
    held = read_json(path)
    try:
        if held["version"] != 1:
            return None, False
        place = held["place"]
        return (None if place is None else (int(place[0]), str(place[1]))), bool(held["done"])
    except (KeyError, TypeError, ValueError, IndexError):
        return None, False
