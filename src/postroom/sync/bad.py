"""Bad messages are tried again: after a day, when the code that reads mail has changed, or when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import NotFound
from postroom.settings import SyncSettings
from postroom.sync.bringing import READER_VERSION, Bringer, Brought
from postroom.sync.state import BadMessage, bad_of, forget_bad, record_bad
from postroom.telemetry import logs

log = logs.get(__name__)

_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of bad messages that were tried again. Stored and gone ones are no longer listed."""

    stored: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    still_bad: frozenset[str] = frozenset()

    def __or__(self, other: Retried) -> Retried:
        return Retried(self.stored | other.stored, self.gone | other.gone, self.still_bad | other.still_bad)


def is_due(message: BadMessage, settings: SyncSettings, now: datetime, version: int = READER_VERSION) -> bool:
    """Its time has come, or it was tried by other code than this."""
    return message.reader_version != version or now - message.last_tried >= timedelta(hours=settings.bad_retry_hours)


class BadRetry:
    def __init__(
        self, database: Database, account_id: str, bringer: Bringer, settings: SyncSettings, clock: Clock
    ) -> None:
        self._database = database
        self._account_id = account_id
        self._bringer = bringer
        self._settings = settings
        self._clock = clock

    async def retry_due(self) -> Retried:
        now = self._clock.now()
        return await self._retry([each.gmail_id for each in await self._bad() if is_due(each, self._settings, now)])

    async def retry(self, gmail_ids: Sequence[str] | None = None) -> Retried:
        """By hand: these, or all."""
        listed = [each.gmail_id for each in await self._bad()]
        for gmail_id in gmail_ids or ():
            if gmail_id not in listed:
                raise NotFound("id", f"{gmail_id} is not among the bad messages; `postroom sync bad list` shows them")
        return await self._retry(listed if gmail_ids is None else list(dict.fromkeys(gmail_ids)))

    async def _bad(self) -> list[BadMessage]:
        return await self._database.read(lambda tx: bad_of(tx, self._account_id))

    async def _retry(self, ids: Sequence[str]) -> Retried:
        """Some at a time: each is on record before the next is asked for."""
        retried = Retried()
        for start in range(0, len(ids), _AT_ONCE):
            brought = await self._bringer.bring(ids[start : start + _AT_ONCE])
            await self._database.write(lambda tx, brought=brought: self._record(tx, brought))  # type: ignore[misc]
            stored = brought.stored | brought.duplicates
            retried |= Retried(stored, brought.gone, frozenset(brought.failed))
        if ids:
            sizes = {"stored": len(retried.stored), "gone": len(retried.gone), "still_bad": len(retried.still_bad)}
            log.info("sync.bad_retried", **sizes)
        return retried

    def _record(self, tx: Tx, brought: Brought) -> None:
        forget_bad(tx, self._account_id, brought.settled)
        for gmail_id, error in brought.failed.items():
            record_bad(tx, self._account_id, gmail_id, logs.clean(error.message), READER_VERSION, self._clock.now())
