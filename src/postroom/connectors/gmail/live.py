"""The live pass: what changed in the mailbox since the one history cursor, taken in before the cursor moves (SY-13).

A pass that ends early, however, leaves the cursor where it was; the next one does the same work again, and whatever
was done already is recognised. One reader at a time: the claim is a lease with a fence.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroom.connectors.gmail.arrivals import CHUNK, Arrivals, Tally
from postroom.connectors.gmail.changes import Changes, in_chunks
from postroom.connectors.gmail.comparing import Comparison
from postroom.connectors.gmail.gap import Gap
from postroom.connectors.gmail.labels import LabelBook
from postroom.connectors.gmail.parking import Parking
from postroom.connectors.instruments import PassName
from postroom.connectors.switchboard import Switchboard
from postroom.connectors.wire import HistoryClaim
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import HistoryExpired
from postroom.gmail.fetching import Failed, Got
from postroom.gmail.resources import Format
from postroom.telemetry import logs

log = logs.get(__name__)


class LivePass:
    def __init__(
        self,
        switchboard: Switchboard,
        client: GmailClient,
        arrivals: Arrivals,
        labels: LabelBook,
        parking: Parking,
        gap: Gap,
        instance: str,
        clock: Clock,
    ) -> None:
        self._switchboard = switchboard
        self._client = client
        self._arrivals = arrivals
        self._labels = labels
        self._parking = parking
        self._gap = gap
        self._instance = instance
        self._clock = clock
        self._comparison = Comparison(switchboard, client, labels)

    async def run(self, *, fills_gap: bool = True) -> Tally:
        """One look at the mailbox. Raises Retryable where it has to be repeated.

        A pass that does not fill gaps says where one begins, and leaves the cursor there.
        """
        claim = await self._switchboard.history_claim(self._instance)
        self._gap.look_again()
        tally = Tally()
        try:
            await self._from(claim, tally, fills_gap=fills_gap)
        except PostroomError:
            await self._let_go(claim)
            raise
        if tally.waiting is not None:
            await self._let_go(claim)
            raise tally.waiting
        return tally

    async def _from(self, claim: HistoryClaim, tally: Tally, *, fills_gap: bool) -> None:
        if claim.history_id is None:
            # What was there before anybody looked is history, and history has a budget: backfill brings it.
            profile = await self._client.get_profile()
            await self._commit(claim, profile.history_id)
            return
        await self._retry_parked(tally)
        try:
            changes = await self._changes(claim, claim.history_id)
        except HistoryExpired:
            log.warning("history.expired", since=self._gap.last_seen)
            if fills_gap:
                await self._fill(claim, tally)
            else:
                tally.gap = claim.history_id
                await self._let_go(claim)
            return
        await self._take(claim, changes, tally)
        if tally.waiting is None:
            await self._commit(claim, changes.history_id)
            await self._gap.go_on()

    async def _fill(self, claim: HistoryClaim, tally: Tally) -> None:
        reached = await self._gap.fill(claim, tally)
        tally.compared = await self._comparison.run(self._clock.now(), lambda: self._renew(claim))
        await self._commit(claim, reached)

    async def _changes(self, claim: HistoryClaim, since: str) -> Changes:
        changes = Changes()
        async for page in self._client.list_history(since):
            changes.read(page)
            await self._renew(claim)
        changes.settle()
        return changes

    async def _take(self, claim: HistoryClaim, changes: Changes, tally: Tally) -> None:
        self._labels.forget()
        for chunk in in_chunks(changes.added, CHUNK):
            await self._arrivals.take(chunk, PassName.LIVE, tally)
            await self._renew(claim)
        labels = await self._labels_now(changes.labels)
        if labels or changes.deleted:
            named = {key: await self._labels.names(ids) for key, ids in labels.items()}
            await self._switchboard.archive_changes(named, sorted(changes.deleted))

    async def _labels_now(self, told: Mapping[str, frozenset[str] | None]) -> dict[str, frozenset[str]]:
        """The labels of changed messages; where the history leaves them out, Gmail is asked."""
        known = {key: labels for key, labels in told.items() if labels is not None}
        for answer in await self._client.get_messages([key for key in told if key not in known], Format.MINIMAL):
            if isinstance(answer, Got):
                known[answer.id] = answer.message.label_ids
            elif isinstance(answer, Failed):
                raise answer.error
        return known

    async def _retry_parked(self, tally: Tally) -> None:
        for chunk in in_chunks(self._parking.due(), 1):
            await self._arrivals.take(chunk, PassName.LIVE, tally)

    async def _renew(self, claim: HistoryClaim) -> None:
        await self._switchboard.history_commit(claim.fence)

    async def _commit(self, claim: HistoryClaim, history_id: str | None) -> None:
        """Everything up to here is in; the next reader may come."""
        await self._switchboard.history_commit(claim.fence, history_id, release=True)
        self._gap.seen()

    async def _let_go(self, claim: HistoryClaim) -> None:
        try:
            await self._switchboard.history_commit(claim.fence, release=True)
        except PostroomError as error:
            log.info("history.not_released", problem=error.message)
