"""Retries messages that could not be fetched or parsed: after a day, when the code that reads mail has changed, or on
request. Those that the archive has are parsed again from its bytes; the others are fetched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom.accounts.troubled import TroubledMessage, TroubleKind, troubled_of
from postroom.archive.service import AccountStore
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import NotFound
from postroom.reading.mail import READER_VERSION
from postroom.settings import SyncSettings
from postroom.sync.fetch import FetchOutcome, MailFetcher
from postroom.sync.state import record_outcome
from postroom.telemetry import logs

log = logs.get(__name__)

_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class RetriedMessages:
    """What became of messages that were tried again. Stored and gone ones are no longer listed."""

    stored: frozenset[str] = frozenset()
    """In the archive now, or read at last."""
    gone: frozenset[str] = frozenset()
    still_bad: frozenset[str] = frozenset()

    def __or__(self, other: RetriedMessages) -> RetriedMessages:
        return RetriedMessages(self.stored | other.stored, self.gone | other.gone, self.still_bad | other.still_bad)


def is_due(message: TroubledMessage, settings: SyncSettings, now: datetime, version: int = READER_VERSION) -> bool:
    """Its time has come, or it was tried by other code than this."""
    return message.reader_version != version or now - message.last_tried >= timedelta(hours=settings.bad_retry_hours)


class BadMessageRetry:
    """`fetcher` is None where the mailbox has no login; then only those that the archive has are retried."""

    def __init__(
        self,
        database: Database,
        account_id: str,
        store: AccountStore,
        fetcher: MailFetcher | None,
        settings: SyncSettings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._account_id = account_id
        self._store = store
        self._fetcher = fetcher
        self._settings = settings
        self._clock = clock

    async def retry_due(self) -> RetriedMessages:
        now = self._clock.now()
        return await self._retry([each for each in await self._bad() if is_due(each, self._settings, now)])

    async def retry(self, keys: Sequence[str] | None = None) -> RetriedMessages:
        """By hand: these, or all."""
        listed = {each.key: each for each in await self._bad()}
        for key in keys or ():
            if key not in listed:
                raise NotFound("id", f"{key} is not among the bad messages; `postroom sync bad list` shows them")
        return await self._retry([listed[key] for key in (listed if keys is None else dict.fromkeys(keys))])

    async def _bad(self) -> list[TroubledMessage]:
        return await self._database.read(lambda tx: troubled_of(tx, self._account_id))

    async def _retry(self, messages: Sequence[TroubledMessage]) -> RetriedMessages:
        """Some at a time: each is on record before the next is asked for."""
        retried = RetriedMessages()
        archived = [each.key for each in messages if each.kind is TroubleKind.READ]
        for start in range(0, len(archived), _AT_ONCE):
            retried |= await self._record(await self._reread(archived[start : start + _AT_ONCE]))
        # What could not be taken in is tried by its connector, which has a list of them; here only its bytes are looked
        # for.
        lacking = [each.key for each in messages if each.kind is TroubleKind.FETCH]
        if self._fetcher is not None:
            for start in range(0, len(lacking), _AT_ONCE):
                retried |= await self._record(await self._fetcher.bring(lacking[start : start + _AT_ONCE]))
        if archived or lacking:
            sizes = {"stored": len(retried.stored), "gone": len(retried.gone), "still_bad": len(retried.still_bad)}
            log.info("sync.bad_retried", **sizes)
        return retried

    async def _reread(self, keys: Sequence[str]) -> FetchOutcome:
        """From the archive's own bytes; one that the archive has no more is no trouble any more."""
        found = await self._store.reread(keys)
        unread = {key: reason for key, reason in found.items() if reason}
        return FetchOutcome(stored=frozenset(found), gone=frozenset(keys) - found.keys(), unread=unread)

    async def _record(self, brought: FetchOutcome) -> RetriedMessages:
        await self._database.write(lambda tx: record_outcome(tx, self._account_id, brought, self._clock.now()))
        still_bad = frozenset({*brought.failed, *brought.unread})
        return RetriedMessages((brought.stored | brought.duplicates) - still_bad, brought.gone, still_bad)
