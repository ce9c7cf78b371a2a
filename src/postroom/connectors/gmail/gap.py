"""After Gmail has forgotten the history: the mailbox is gone through month by month, newest first.

Mail that came while nobody looked is stored and taken in as live mail; what was taken in before is recognised. That the
archive has a message says nothing here: a sync may have brought it since. Older mail that the archive lacks is stored
only, little by little beside live work: history is taken in under a budget, by backfill. Being live work, none of this
asks the kill switch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroom.connectors.files import read_json, write_json
from postroom.connectors.gmail.arrivals import CHUNK, Arrivals, Tally
from postroom.connectors.gmail.changes import in_chunks
from postroom.connectors.instruments import PassName
from postroom.connectors.switchboard import Switchboard
from postroom.connectors.wire import HistoryClaim
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient
from postroom.telemetry import logs

FILE = "live.json"
_MARGIN = timedelta(days=1)
"""A message may be dated a little before it arrived."""
_UNKNOWN_GAP = timedelta(days=30)
"""Where nobody knows when the mailbox was last looked at: Gmail keeps its history for a week or more."""
_BESIDE_LIVE = 200
"""Older messages that are looked at after each live pass."""
_GMAIL_BEGAN = 2004
"""Mail dated before that was brought along, and is too little to be cut into months."""
log = logs.get(__name__)


@dataclass
class _State:
    """What survives a restart."""

    seen_at: str | None = None
    """When everything up to the cursor was last known to be in."""
    target: str | None = None
    """The history id that the gap leads to; read before anything was listed."""
    begins: int | None = None
    """Mail received from then on (seconds) came while nobody looked."""
    before: int | None = None
    """Months that begin then or later are compared; None: not begun."""
    older_before: int | None = None
    """The same for what is older than the gap; None: nothing left to compare."""


class Gap:
    def __init__(
        self, switchboard: Switchboard, client: GmailClient, arrivals: Arrivals, folder: Path, clock: Clock
    ) -> None:
        self._switchboard = switchboard
        self._client = client
        self._arrivals = arrivals
        self._path = folder / FILE
        self._clock = clock
        self._state = _read(self._path)

    @property
    def last_seen(self) -> str | None:
        return self._state.seen_at

    @property
    def is_open(self) -> bool:
        return self._state.target is not None

    def look_again(self) -> None:
        """Another process may have gone on with this mailbox since: what it wrote down counts."""
        self._state = _read(self._path)

    def seen(self) -> None:
        """Everything up to now is in."""
        self._state.seen_at = self._clock.now().isoformat()
        self._write()

    async def fill(self, claim: HistoryClaim, tally: Tally) -> str:
        """Bring in what came while nobody looked; the history id to go on from."""
        state = self._state
        if state.target is None:
            profile = await self._client.get_profile()
            state.target, state.begins, state.before = profile.history_id, self._beginning(), None
            self._write()
        target, begins = state.target, state.begins or 0
        for start, end in _months(self._clock.now(), begins, state.before):
            await self._take_in(start, end, tally, claim)
            if tally.waiting is not None:
                # The cursor keeps its place, and the next pass comes back to this month.
                raise tally.waiting
            state.before = start
            self._write()
        state.target = state.begins = state.before = None
        state.older_before = begins
        self._write()
        log.info("history.gap_filled", stored=tally.stored, ingested=tally.ingested)
        return target

    async def go_on(self) -> None:
        """Compare a little more of what is older than the last gap. A message that fails here holds up nobody."""
        if self._state.older_before is None:
            return
        tally, looked_at = Tally(), 0
        for start, end in _months(self._clock.now(), 0, self._state.older_before):
            missing = await self._missing(start, end)
            for chunk in in_chunks(missing[: max(0, _BESIDE_LIVE - looked_at)], CHUNK):
                await self._arrivals.take(chunk, PassName.GAP, tally, wanted=lambda mail: False)
            looked_at += len(missing)
            if looked_at > _BESIDE_LIVE:
                return
            self._state.older_before = start if await self._is_more_before(start) else None
            self._write()
            if looked_at == _BESIDE_LIVE or self._state.older_before is None:
                return

    def _beginning(self) -> int:
        seen_at = self._state.seen_at
        since = datetime.fromisoformat(seen_at) - _MARGIN if seen_at else self._clock.now() - _UNKNOWN_GAP
        return max(0, int(since.timestamp()))

    async def _take_in(self, start: int, end: int | None, tally: Tally, claim: HistoryClaim) -> None:
        listed = [gmail_id async for page in self._listed(start, end) for gmail_id in page]
        for chunk in in_chunks(list(dict.fromkeys(listed)), CHUNK):
            await self._arrivals.take(chunk, PassName.GAP, tally)
            await self._switchboard.history_commit(claim.fence)
        await self._switchboard.history_commit(claim.fence)

    async def _is_more_before(self, start: int) -> bool:
        """Whether anything is older than that; else twenty years of empty months would be asked for."""
        async for page in self._client.list_messages(f"before:{start + 1}", include_spam_trash=True, page_size=1):
            if page.messages:
                return start > 0
        return False

    async def _missing(self, start: int, end: int | None) -> list[str]:
        """Those of this stretch that the archive does not have."""
        missing: list[str] = []
        async for ids in self._listed(start, end):
            known = await self._switchboard.archive_lookup(ids)
            missing += [each for each in ids if each not in known]
        return list(dict.fromkeys(missing))

    async def _listed(self, start: int, end: int | None) -> AsyncIterator[list[str]]:
        """Ids of the mailbox in this stretch, page by page; newest first, nearly."""
        # A second of overlap on both sides: how the edges are counted is not written down anywhere.
        query = f"after:{max(0, start - 1)}" + (f" before:{end + 1}" if end is not None else "")
        async for page in self._client.list_messages(query, include_spam_trash=True):
            yield [message.id for message in page.messages]

    def _write(self) -> None:
        write_json(self._path, asdict(self._state))


def _months(now: datetime, begins: int, before: int | None) -> Iterator[tuple[int, int | None]]:
    """From the newest month back to the beginning, as half-open stretches; the first has no end, for mail from the
    future, the last reaches down to the beginning."""
    end: int | None = before
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while True:
        start = int(first.timestamp())
        if end is None or start < end:
            yield max(start, begins), end
            end = start
        if start <= begins:
            return
        first = (first - timedelta(days=1)).replace(day=1)
        if first.year < _GMAIL_BEGAN:
            yield begins, end
            return


def _read(path: Path) -> _State:
    held = read_json(path)
    try:
        return _State(**held) if isinstance(held, dict) else _State()
    except TypeError:
        return _State()
