"""What every pass does with a message, in this order: tier policy, bytes into the archive, priority, ingest (BF-13).

Live mail, history and searches share this code: the same policy, the same key, the same envelope. An error in one
message never affects another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from postroom.connectors import metrics
from postroom.connectors.guidance import ConnectorGuidance
from postroom.connectors.metrics import Fate, PassName
from postroom.connectors.priority import PriorityRules, SentIndex, TierAssignment, reply_targets
from postroom.connectors.source_mail import SourceMail, envelope_of, from_mailbox, full_payload, metadata_payload
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.contract.mail import IngestResult, RawMailArgument
from postroom.domain.envelope import Envelope, Payload, field_problem
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.mail.tier_policy import Treatment
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Mailbox, RemoteMessage
from postroom.mailboxes.reader import FetchedMail, MailboxReader

NOT_THE_MESSAGE = (Retryable, NotAllowed)
"""Errors of the network, the service or the token, for which no message is to blame."""


class _SwitchboardSink:
    """The archive behind the Switchboard's tools, as a sink."""

    def __init__(self, switchboard: SwitchboardClient, name: PassName) -> None:
        self._switchboard = switchboard
        self._lane = name.lane

    async def store(self, mails: Sequence[tuple[RemoteMessage, frozenset[str]]]) -> list[SourceMail]:
        raws = [
            RawMailArgument(
                gmail_id=message.id,
                thread_id=message.thread_id or None,
                labels=sorted(names),
                internal_date=max(0, message.received_ms or 0),
                raw=message.raw or b"",
            )
            for message, names in mails
        ]
        refs = await self._switchboard.archive_store(raws, self._lane)
        return [from_mailbox(message).stored_at(ref) for (message, _), ref in zip(mails, refs, strict=True)]

    def problem(self, error: Exception) -> PostroomError:
        if isinstance(error, NOT_THE_MESSAGE):
            raise error
        return as_our_error(error)


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of one message. Exactly one of the three is set."""

    mail: SourceMail
    fate: Fate | None = None
    refusal: IngestResult | None = None
    """Not now: the Switchboard said why, and when to come again."""
    error: PostroomError | None = None
    """It could not be read or was refused for good."""


@dataclass
class _IntakeBatch:
    """Messages on their way through the steps, and what became of those that are done."""

    mails: Sequence[SourceMail]
    done: dict[str, Handled] = field(default_factory=dict)

    def end(self, handled: Handled) -> None:
        self.done[handled.mail.id] = handled

    def in_order(self) -> list[Handled]:
        return [self.done[mail.id] for mail in self.mails]


class MailIntake:
    def __init__(
        self,
        switchboard: SwitchboardClient,
        mailbox: Mailbox,
        labels: LabelNames,
        rules: PriorityRules,
        guidance: ConnectorGuidance,
        sent: SentIndex,
    ) -> None:
        self._switchboard = switchboard
        self._mailbox = mailbox
        self._labels = labels
        self._rules = rules
        self._guidance = guidance
        self._sent = sent

    async def take(self, mails: Sequence[SourceMail], name: PassName, job_id: str | None = None) -> list[Handled]:
        """What became of each, in order.

        Taking the same message twice does nothing the second time. An exception while one is handled is the error of
        that message only.
        """
        batch = _IntakeBatch(mails)
        treated = [(mail, treatment) for mail in mails if (treatment := await self._treatment(mail, batch))]
        for mail, treatment in treated:
            if treatment is Treatment.SKIP:
                batch.end(Handled(mail, fate=Fate.SKIPPED_BY_POLICY))
        full = [mail for mail, treatment in treated if treatment is Treatment.FULL]
        whole = await self._archived(full, batch, name)
        brief = [mail for mail, treatment in treated if treatment is Treatment.METADATA]
        await self._ingest(_payloads(whole, brief, batch), batch, job_id)
        return _counted(batch.in_order(), name)

    async def fetch(self, ids: Sequence[str], name: PassName) -> FetchedMail[SourceMail]:
        """Fetch these from the mailbox and put their bytes into the archive; they are on disk when this returns."""
        return await MailboxReader(self._mailbox, _SwitchboardSink(self._switchboard, name), self._labels).fetch(ids)

    async def _treatment(self, mail: SourceMail, batch: _IntakeBatch) -> Treatment | None:
        """None where that cannot be decided."""
        known_by = mail.label_ids | await self._labels.names(mail.label_ids)
        policy = self._guidance.policy()
        try:
            return policy.decide(mail.headers, known_by).treatment
        except Exception as error:
            batch.end(Handled(mail, error=as_our_error(error)))
            return None

    async def _archived(self, mails: Sequence[SourceMail], batch: _IntakeBatch, name: PassName) -> list[SourceMail]:
        """The same messages, in the archive; a body is fetched only where the archive does not have it."""
        unknown = [mail.id for mail in mails if mail.archived is None]
        known = await self._switchboard.archive_lookup(unknown) if unknown else {}
        found = [mail if mail.archived else mail.found_at(known.get(mail.id)) for mail in mails]
        lacking = [mail for mail in found if mail.archived is None]
        brought = await self._brought(lacking, batch, name)
        return [mail for mail in found if mail.archived] + brought

    async def _brought(self, mails: Sequence[SourceMail], batch: _IntakeBatch, name: PassName) -> list[SourceMail]:
        by_id = {mail.id: mail for mail in mails}
        fetched = await self.fetch(list(by_id), name)
        for key in fetched.gone:
            batch.end(Handled(by_id[key], fate=Fate.GONE))
        for key, error in fetched.failed.items():
            batch.end(Handled(by_id[key], error=error))
        return list(fetched.stored.values())

    async def _ingest(self, payloads: dict[SourceMail, Payload], batch: _IntakeBatch, job_id: str | None) -> None:
        if not payloads:
            return
        try:
            await self._ingest_together(payloads, batch, job_id)
        except NOT_THE_MESSAGE:
            raise
        except Exception as error:
            for mail, payload in payloads.items():
                if len(payloads) == 1:
                    batch.end(Handled(mail, error=as_our_error(error)))
                else:
                    await self._ingest({mail: payload}, batch, job_id)

    async def _ingest_together(
        self, payloads: Mapping[SourceMail, Payload], batch: _IntakeBatch, job_id: str | None
    ) -> None:
        assigned = await self._assigned(list(payloads))
        identity = self._switchboard.endpoint_identity
        envelopes: dict[SourceMail, Envelope] = {}
        for mail in payloads:
            envelopes[mail] = envelope_of(mail, identity, assigned[mail], payloads[mail], job_id)
        # As they were given, so that what is refused is the oldest of a batch and not any.
        order = {mail.id: number for number, mail in enumerate(batch.mails)}
        mails = sorted(envelopes, key=lambda mail: order[mail.id])
        results = await self._switchboard.ingest([envelopes[mail] for mail in mails])
        for mail, result in zip(mails, results, strict=True):
            self._settle(batch, mail, result, assigned[mail], payloads[mail])

    async def _assigned(self, mails: Sequence[SourceMail]) -> dict[SourceMail, TierAssignment]:
        sent = await self._sent.among(target for mail in mails for target in reply_targets(mail.headers))
        contacts = self._guidance.contacts.current().addresses
        return {mail: self._rules.assign(mail.headers, contacts, sent) for mail in mails}

    def _settle(
        self, batch: _IntakeBatch, mail: SourceMail, result: IngestResult, assignment: TierAssignment, payload: Payload
    ) -> None:
        if result.status == "refused":
            batch.end(Handled(mail, refusal=result))
        elif result.status == "rejected":
            batch.end(Handled(mail, error=BadInput("envelope", result.why)))
        elif result.duplicate:
            batch.end(Handled(mail, fate=Fate.DUPLICATE))
        else:
            metrics.record_assignment(result.account_id, assignment)
            batch.end(Handled(mail, fate=Fate.METADATA if payload.raw is None else Fate.FULL))


def _payloads(
    whole: Sequence[SourceMail], brief: Sequence[SourceMail], batch: _IntakeBatch
) -> dict[SourceMail, Payload]:
    """A message that fits into no envelope gets an error; the others go on."""
    made: dict[SourceMail, Payload] = {}
    for mail, make in [*((mail, full_payload) for mail in whole), *((mail, metadata_payload) for mail in brief)]:
        try:
            made[mail] = make(mail)
        except Exception as error:
            batch.end(Handled(mail, error=as_our_error(error)))
    return made


def as_our_error(error: Exception) -> PostroomError:
    """The error of one message. Only the type of a foreign error is named, because its text may quote the message."""
    if isinstance(error, PostroomError):
        return error
    if isinstance(error, ValidationError):
        return field_problem(error)
    return Fatal(f"It cannot be taken in ({type(error).__name__}).")


def _counted(handled: list[Handled], name: PassName) -> list[Handled]:
    for each in handled:
        if each.fate is not None:
            metrics.record_message(name, each.fate)
        elif each.error is not None:
            metrics.record_message(name, Fate.UNREADABLE)
    return handled
