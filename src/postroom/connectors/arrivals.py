"""Takes in new messages by id: stores each in the archive, then ingests it. Drafts and spam are stored too, so that the
archive has no holes; a message that the archive has is not fetched again.

A message that keeps failing is deferred: it no longer blocks the pass, and is retried at growing intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from postroom.connectors import metrics
from postroom.connectors.intake import NOT_THE_MESSAGE, MailIntake, as_our_error
from postroom.connectors.metrics import Fate, PassName
from postroom.connectors.priority import SentIndex, message_id_of
from postroom.connectors.source_mail import TRASH, SourceMail, from_mailbox
from postroom.connectors.state_files import read_json, write_json
from postroom.connectors.switchboard_client import SwitchboardClient, failed_mail
from postroom.contract.mail import TroubledMailArgument
from postroom.domain.clock import Backoff, Clock
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.domain.validation import LONGEST_REASON
from postroom.mailboxes.protocol import Detail, Mailbox
from postroom.mailboxes.reader import OUTAGE, sort_results
from postroom.telemetry import logs

DEFERRED_FILE = "parked.json"
_TRIES = 3
_PATIENT_TRIES = 20
"""For an error that may be an outage."""
_BACKOFF = Backoff(600, 86_400)
"""Seconds: from ten minutes to a day."""
log = logs.get(__name__)


class DeferredMessages(Protocol):
    """Messages that a live pass could not take in and leaves for later. In a worker each becomes a job
    `ingest.gmail`; a connector without a database keeps a file."""

    def due(self) -> list[str]:
        """Those that the pass itself has to try again now."""

    async def failed(self, key: str, error: PostroomError, *, alone: bool) -> bool:
        """Note a failure; True once the message is deferred, and the pass may go on without it.

        `alone` means that others in the same batch succeeded, so that the message is to blame and not an outage.
        """

    async def done(self, keys: Sequence[str]) -> list[str]:
        """These are in, or gone; returns those that had failed before."""


@dataclass(frozen=True, slots=True)
class DeferredMessage:
    tries: int
    first_seen: str
    due: str | None
    """None while it still holds up the pass that met it."""
    reason: str


class DeferredFile:
    """Holds up the pass for a few tries, then retries at growing intervals."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / DEFERRED_FILE
        self._clock = clock
        self._entries = _entries(self._path)

    def due(self, most: int = 50) -> list[str]:
        now = self._clock.now().isoformat()
        return [key for key, entry in self._entries.items() if entry.due is not None and entry.due <= now][:most]

    async def failed(self, key: str, error: PostroomError, *, alone: bool) -> bool:
        before = self._entries.get(key)
        tries = (before.tries if before else 0) + 1
        needed = _TRIES if alone or isinstance(error, BadInput) else _PATIENT_TRIES
        deferred = tries >= needed or (before is not None and before.due is not None)
        first_seen = before.first_seen if before else self._clock.now().isoformat()
        reason = logs.clean(error.message)[:LONGEST_REASON]
        self._entries[key] = DeferredMessage(tries, first_seen, self._due(tries, needed) if deferred else None, reason)
        self._write()
        return deferred

    async def done(self, keys: Sequence[str]) -> list[str]:
        known = [key for key in keys if key in self._entries]
        for key in known:
            del self._entries[key]
        if known:
            self._write()
        return known

    def _due(self, tries: int, needed: int) -> str:
        return (self._clock.now() + timedelta(seconds=_BACKOFF.delay_s(tries - needed + 1))).isoformat()

    def _write(self) -> None:
        write_json(self._path, {key: asdict(entry) for key, entry in self._entries.items()})


def deferred_in(folder: Path) -> list[str]:
    """What the file of a connector holds that has not been taken in."""
    return [key for key, entry in _entries(folder / DEFERRED_FILE).items() if entry.due is not None]


def _entries(path: Path) -> dict[str, DeferredMessage]:
    return {key: entry for key, value in _held(path).items() if (entry := _entry(value))}


def _held(path: Path) -> dict[str, Any]:
    held = read_json(path)
    return held if isinstance(held, dict) else {}


def _entry(value: object) -> DeferredMessage | None:
    try:
        return DeferredMessage(**value) if isinstance(value, dict) else None
    except TypeError:
        return None


CHUNK = 50
MailFilter = Callable[[SourceMail], bool]


@dataclass
class PassTally:
    """What a pass has done so far."""

    stored: int = 0
    ingested: int = 0
    duplicates: int = 0
    skipped: int = 0
    sent: int = 0
    gone: int = 0
    deferred: int = 0
    compared: int = 0
    """Known mail that had changed since the last look."""
    gap: bool = False
    """Gmail has forgotten a part of the history, and not all of it is compared yet."""
    waiting: PostroomError | None = None
    """Why a message that still holds up the pass could not be read."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: PostroomError
    report: TroubledMailArgument


class Arrivals:
    def __init__(
        self,
        switchboard: SwitchboardClient,
        mailbox: Mailbox,
        intake: MailIntake,
        sent: SentIndex,
        deferred: DeferredMessages,
        clock: Clock,
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._intake = intake
        self._sent = sent
        self._deferred = deferred
        self._clock = clock

    async def take(
        self, ids: Sequence[str], name: PassName, tally: PassTally, *, wanted: MailFilter = lambda mail: True
    ) -> None:
        """Store these and take in those that are wanted. What fails is noted in the tally or deferred, never
        dropped."""
        failures = await self._taken(ids, name, tally, wanted)
        settled = await self._deferred.done([each for each in ids if each not in failures])
        troubled: list[TroubledMailArgument] = []
        for key, failed in failures.items():
            is_deferred = await self._deferred.failed(key, failed.error, alone=len(failures) < len(ids))
            if is_deferred:
                log.warning("message.deferred", message=key, reason=logs.clean(failed.error.message)[:LONGEST_REASON])
                tally.deferred += 1
            else:
                tally.waiting = failed.error
            if is_deferred or not isinstance(failed.error, OUTAGE):
                # Listed before the cursor passes it, and from its first failure on: the watermark may be past its date.
                troubled.append(failed.report)
        if troubled or settled:
            await self._switchboard.report_trouble(name.lane, troubled, settled)

    async def retry(self, ids: Sequence[str], tally: PassTally) -> None:
        """Take in messages that were deferred. What fails again is listed as troubled, with the error in the tally."""
        failures = await self._taken(ids, PassName.LIVE, tally, lambda mail: True)
        fine = [each for each in ids if each not in failures]
        await self._deferred.done(fine)
        await self._switchboard.report_trouble(
            PassName.LIVE.lane, [failed.report for failed in failures.values()], fine
        )
        for failed in failures.values():
            tally.waiting = failed.error

    async def _taken(
        self, ids: Sequence[str], name: PassName, tally: PassTally, wanted: MailFilter
    ) -> dict[str, _Failure]:
        """Those that failed, and why."""
        stored, failures = await self._stored(ids, name, tally)
        outbound = [mail for mail in stored if mail.is_outbound and not mail.is_unfinished]
        failures |= await self._remember_sent(outbound, tally)
        handled = await self._intake.take([mail for mail in stored if _is_inbound(mail) and wanted(mail)], name)
        for each in handled:
            if each.error is not None:
                failures[each.mail.id] = each.error
            elif each.refusal is not None:
                failures[each.mail.id] = Retryable(each.refusal.why)
            elif each.fate is not None:
                self._count(each.fate, each.mail, name, tally)
        held = {mail.id for mail in stored}
        return {key: _Failure(error, failed_mail(key, error, archived=key in held)) for key, error in failures.items()}

    async def _stored(
        self, ids: Sequence[str], name: PassName, tally: PassTally
    ) -> tuple[list[SourceMail], dict[str, PostroomError]]:
        """These messages, in the archive, and the errors of the others. What the archive has needs only its headers."""
        known = await self._switchboard.archive_lookup(ids)
        fresh = await self._intake.fetch([each for each in ids if each not in known], name)
        held = sort_results(await self._mailbox.fetch([each for each in ids if each in known], Detail.HEADERS))
        tally.stored += len(fresh.stored)
        tally.gone += len(fresh.gone) + len(held.gone)
        found = {**fresh.stored, **{each.id: from_mailbox(each).found_at(known[each.id]) for each in held.got}}
        return [found[each] for each in ids if each in found], {**fresh.failed, **held.failed}

    async def _remember_sent(self, mails: Sequence[SourceMail], tally: PassTally) -> dict[str, PostroomError]:
        """Those that could not be remembered, and why."""
        try:
            await self._sent.add(found for mail in mails if (found := message_id_of(mail.headers)))
        except NOT_THE_MESSAGE:
            raise
        except Exception as error:
            if len(mails) == 1:
                return {mails[0].id: as_our_error(error)}
            apart = [await self._remember_sent([mail], tally) for mail in mails]
            return {key: problem for each in apart for key, problem in each.items()}
        tally.sent += len(mails)
        return {}

    def _count(self, fate: Fate, mail: SourceMail, name: PassName, tally: PassTally) -> None:
        if fate in (Fate.FULL, Fate.METADATA):
            tally.ingested += 1
            if name is PassName.LIVE:
                metrics.record_live_lag(self._clock.now().timestamp() - mail.received_ms / 1_000)
        elif fate is Fate.DUPLICATE:
            tally.duplicates += 1
        elif fate is Fate.SKIPPED_BY_POLICY:
            tally.skipped += 1
        elif fate is Fate.GONE:
            tally.gone += 1


def _is_inbound(mail: SourceMail) -> bool:
    return not mail.is_unfinished and not mail.is_outbound and TRASH not in mail.label_ids
