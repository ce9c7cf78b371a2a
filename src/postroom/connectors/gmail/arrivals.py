"""New mail by its ids, wherever they came from: each is stored in the archive, then taken in as what it is.

Every message is stored, whatever its tier, drafts and spam too, so that the archive has no holes. A message that the
archive has already is not fetched again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from postroom.connectors import instruments
from postroom.connectors.gmail.intake import NOBODYS_FAULT, Intake, as_our_error
from postroom.connectors.gmail.mail import TRASH, SourceMail, from_gmail
from postroom.connectors.gmail.parking import Parking
from postroom.connectors.instruments import Fate, PassName
from postroom.connectors.sent_index import SentIndex, message_id_of
from postroom.connectors.switchboard import Switchboard, TroubledMail
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.gmail.client import GmailClient
from postroom.gmail.fetching import Failed, Got, Missing
from postroom.gmail.resources import Format

CHUNK = 50
Wanted = Callable[[SourceMail], bool]


@dataclass
class Tally:
    """What a pass has done so far."""

    stored: int = 0
    ingested: int = 0
    duplicates: int = 0
    skipped: int = 0
    sent: int = 0
    gone: int = 0
    parked: int = 0
    compared: int = 0
    """Known mail that had changed while nobody looked."""
    gap: str | None = None
    """The history id that Gmail has forgotten, where the gap is left for another pass to fill."""
    waiting: PostroomError | None = None
    """Why a message that still holds up the pass could not be read."""


class Arrivals:
    def __init__(
        self,
        switchboard: Switchboard,
        client: GmailClient,
        intake: Intake,
        sent: SentIndex,
        parking: Parking,
        clock: Clock,
    ) -> None:
        self._switchboard = switchboard
        self._client = client
        self._intake = intake
        self._sent = sent
        self._parking = parking
        self._clock = clock

    async def take(
        self, ids: Sequence[str], name: PassName, tally: Tally, *, wanted: Wanted = lambda mail: True
    ) -> None:
        """Store these and take in those that are wanted. What fails is noted in the tally or parked, never dropped."""
        mails, failures = await self._fetched(ids, tally)
        stored = await self._stored(mails, failures, tally, name)
        outbound = [mail for mail in stored if mail.is_outbound and not mail.is_unfinished]
        failures |= await self._remember_sent(outbound, tally)
        handled = await self._intake.take([mail for mail in stored if _is_inbound(mail) and wanted(mail)], name)
        for each in handled:
            if each.error is not None:
                failures[each.mail.id] = each.error
            elif each.fate is not None:
                self._count(each.fate, each.mail, name, tally)
        await self._settle(ids, failures, {mail.id for mail in stored}, name, tally)

    async def _fetched(self, ids: Sequence[str], tally: Tally) -> tuple[list[SourceMail], dict[str, PostroomError]]:
        """What the archive has needs only its headers; the rest comes whole."""
        known = await self._switchboard.archive_lookup(ids)
        answers = [
            *await self._client.get_messages([each for each in ids if each not in known]),
            *await self._client.get_messages([each for each in ids if each in known], Format.METADATA),
        ]
        mails: list[SourceMail] = []
        failures: dict[str, PostroomError] = {}
        for answer in answers:
            match answer:
                case Got():
                    mail = await asyncio.to_thread(from_gmail, answer.message)
                    mails.append(mail.found_at(known.get(answer.id)))
                case Missing():
                    tally.gone += 1
                case Failed():
                    failures[answer.id] = answer.error
        order = {each: number for number, each in enumerate(ids)}
        return sorted(mails, key=lambda mail: order[mail.id]), failures

    async def _stored(
        self, mails: Sequence[SourceMail], failures: dict[str, PostroomError], tally: Tally, name: PassName
    ) -> list[SourceMail]:
        fresh = [mail for mail in mails if mail.archived is None]
        results = await self._intake.store(fresh, name) if fresh else []
        found: dict[str, SourceMail] = {mail.id: mail for mail in mails if mail.archived}
        for mail, result in zip(fresh, results, strict=True):
            if isinstance(result, PostroomError):
                failures[mail.id] = result
            else:
                found[mail.id] = result
                tally.stored += 1
        return [found[mail.id] for mail in mails if mail.id in found]

    async def _remember_sent(self, mails: Sequence[SourceMail], tally: Tally) -> dict[str, PostroomError]:
        """Those that could not be remembered, and why."""
        try:
            await self._sent.add(found for mail in mails if (found := message_id_of(mail.headers)))
        except NOBODYS_FAULT:
            raise
        except Exception as error:
            if len(mails) == 1:
                return {mails[0].id: as_our_error(error)}
            apart = [await self._remember_sent([mail], tally) for mail in mails]
            return {key: problem for each in apart for key, problem in each.items()}
        tally.sent += len(mails)
        return {}

    def _count(self, fate: Fate, mail: SourceMail, name: PassName, tally: Tally) -> None:
        if fate in (Fate.FULL, Fate.METADATA):
            tally.ingested += 1
            if name is PassName.LIVE:
                instruments.record_live_lag(self._clock.now().timestamp() - mail.received_ms / 1_000)
        elif fate is Fate.DUPLICATE:
            tally.duplicates += 1
        elif fate is Fate.SKIPPED_BY_POLICY:
            tally.skipped += 1
        elif fate is Fate.GONE:
            tally.gone += 1

    async def _settle(
        self,
        ids: Sequence[str],
        failures: dict[str, PostroomError],
        archived: Collection[str],
        name: PassName,
        tally: Tally,
    ) -> None:
        settled = self._parking.done([each for each in ids if each not in failures])
        parked: list[TroubledMail] = []
        for key, error in failures.items():
            if self._parking.failed(key, error, alone=len(failures) < len(ids)):
                parked.append(TroubledMail(key, key in archived, error.message))
            else:
                tally.waiting = error
        tally.parked += len(parked)
        if parked or settled:
            await self._switchboard.report_trouble(name.lane, parked, settled)


def _is_inbound(mail: SourceMail) -> bool:
    return not mail.is_unfinished and not mail.is_outbound and TRASH not in mail.label_ids
