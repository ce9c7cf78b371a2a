"""The tools with which a connector delivers mail: `ingest`, the archive, the history cursor, sent mail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from postroom.accounts.troubled import LONGEST_REASON, ArrivalLane, MessageTrouble, TroubleKind
from postroom.archive.messages import IncomingMail, Provenance
from postroom.domain.envelope import LARGEST_RAW, MOST_ENVELOPES, SCHEMA_VERSION, Envelope, Instant
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.ingest import Ingest, IngestRejected
from postroom.switchboard.mail_service import MailService, decoded_raw
from postroom.switchboard.toolbox import Answer, Arguments, Tool
from postroom.switchboard.tools.arguments import (
    MOST_IDS,
    Cursor,
    Day,
    EndpointIdentity,
    GmailId,
    GmailIds,
    HeaderName,
    HistoryId,
    Labels,
    MessageId,
    Short,
)
from postroom.telemetry import logs

MOST_STORED = 100
MOST_HEADERS = 500
LARGEST_STORE = LARGEST_RAW
WALKED_HEADERS = ("From", "To", "Cc", "Subject", "Date", "Message-ID", "In-Reply-To", "List-Id", "List-Unsubscribe")
_LATEST_MS = 253_402_300_799_999
MailLane = Literal["live", "backfill", "on demand"]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_REASON)]


class IngestArguments(Arguments):
    """One envelope, field by field, or several under `envelopes`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    envelopes: list[Any] | None = Field(None, min_length=1, max_length=MOST_ENVELOPES)

    @model_validator(mode="after")
    def _one_form(self) -> IngestArguments:
        if self.envelopes is not None and self.model_extra:
            field = sorted(self.model_extra)[0]
            raise PydanticCustomError("form", "does not belong beside envelopes", {"field": field})
        return self

    @classmethod
    def described(cls) -> dict[str, Any]:
        """Both forms in one flat object: some clients cannot read a choice at the top of a schema."""
        envelope = Envelope.model_json_schema()
        definitions = envelope.pop("$defs")
        several = {
            "type": "array",
            "items": {"$ref": "#/$defs/Envelope"},
            "minItems": 1,
            "maxItems": MOST_ENVELOPES,
            "description": "several envelopes, and nothing beside them; each gets a result of its own",
        }
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {**envelope["properties"], "envelopes": several},
            "$defs": {**definitions, "Envelope": envelope},
        }


class ChangedLabelsArgument(Arguments):
    gmail_id: GmailId
    labels: Labels = Field(description="all labels that the message has now, by name")


class RawMailArgument(Arguments):
    gmail_id: GmailId
    thread_id: GmailId | None = None
    labels: Labels | None = Field(None, description="all labels that it has, by name; absent: not known")
    internal_date: int = Field(
        ge=0, le=_LATEST_MS, strict=True, description="when the mailbox received it, in milliseconds since 1970"
    )
    raw: Annotated[str, StringConstraints(strict=True, min_length=1)] = Field(
        description="the exact bytes of the message, in standard base64"
    )


class StoreArguments(Arguments):
    endpoint_identity: EndpointIdentity
    messages: list[RawMailArgument] = Field(min_length=1, max_length=MOST_STORED)
    lane: MailLane = Field("live", description="how this mail came")
    with_headers: bool = Field(False, strict=True, description="answer with the headers of each, as they were read")


class TroubledMailArgument(Arguments):
    gmail_id: GmailId
    archived: bool = Field(strict=True, description="its exact bytes are in the archive")
    reason: Reason = Field(description="what went wrong, in words for a person, without anything of its content")


class TroubleArguments(Arguments):
    endpoint_identity: EndpointIdentity
    lane: MailLane = "live"
    troubled: list[TroubledMailArgument] = Field(default_factory=list, max_length=MOST_IDS)
    settled: GmailIds = Field(default_factory=list, description="reported before, and in order now or gone")


class LookupArguments(Arguments):
    endpoint_identity: EndpointIdentity
    gmail_ids: GmailIds


class RangeArguments(Arguments):
    endpoint_identity: EndpointIdentity
    date_from: Day = Field(description="the first day, in UTC")
    date_to: Day = Field(description="the last day, included")
    cursor: Cursor | None = Field(None, description="where the page before ended")
    limit: int = Field(100, ge=1, le=500, strict=True)
    headers: list[HeaderName] = Field(
        list(WALKED_HEADERS), max_length=MOST_HEADERS, description="which headers to send along"
    )


class ChangesArguments(Arguments):
    endpoint_identity: EndpointIdentity
    labels: list[ChangedLabelsArgument] = Field(default_factory=list, max_length=MOST_IDS)
    deleted: GmailIds = Field(default_factory=list, description="messages that no longer exist at the source")


class ClaimArguments(Arguments):
    endpoint_identity: EndpointIdentity
    instance: Short = Field(description="which process asks, in words for a person")


class CommitArguments(Arguments):
    endpoint_identity: EndpointIdentity
    fence: int = Field(ge=1, strict=True, description="the number that history.claim gave")
    history_id: HistoryId | None = Field(None, description="all changes up to it are taken in; absent: only renew")
    release: bool = Field(False, strict=True, description="let the next reader in at once")


class SentMailArgument(Arguments):
    message_id: MessageId = Field(description="the Message-ID header")
    sent_at: Instant | None = None


class SentAddArguments(Arguments):
    endpoint_identity: EndpointIdentity
    messages: list[SentMailArgument] = Field(max_length=MOST_IDS)


class SentLookupArguments(Arguments):
    endpoint_identity: EndpointIdentity
    message_ids: list[MessageId] = Field(max_length=MOST_IDS)


class MailTools:
    def __init__(self, ingest: Ingest, mailroom: MailService) -> None:
        self._ingest = ingest
        self._mailroom = mailroom

    def tools(self) -> Iterator[Tool[Any]]:
        yield Tool(
            "ingest",
            Role.CONNECTOR,
            Permission.INGEST,
            f"Hand in a message as an `{SCHEMA_VERSION}` envelope, or up to {MOST_ENVELOPES} of them as `envelopes`. "
            "Answers `{request_id, status, duplicate}` (for several: `results` in the same order). A message handed in "
            "before is a success with the first `request_id` and `duplicate` true. `refused` means not now, see "
            "`reason` and `retry_after`; `rejected` means that the envelope is wrong, see `error.field`.",
            IngestArguments,
            self.ingest,
            is_bulky=True,
            keeps_to_mailbox=True,
        )
        yield Tool(
            "archive.store",
            Role.CONNECTOR,
            Permission.INGEST,
            f"Store up to {MOST_STORED} raw messages (at most {LARGEST_STORE:,} bytes together) in the archive. When "
            "it answers they are on disk; each `{key, sha256}` is the reference that an envelope's `payload.raw` "
            "takes. Storing again changes nothing. What cannot be read is stored all the same; `trouble` says why.",
            StoreArguments,
            self.store,
            is_bulky=True,
        )
        yield Tool(
            "trouble.report",
            Role.CONNECTOR,
            Permission.INGEST,
            f"Tell of up to {MOST_IDS} messages that could not be fetched or taken in, and of those that could after "
            "all. They are listed for the owner until they are settled.",
            TroubleArguments,
            self.trouble,
        )
        yield Tool(
            "archive.lookup",
            Role.CONNECTOR,
            Permission.INGEST,
            f"Which of up to {MOST_IDS} Gmail ids the archive holds already, with `archive_key` and `sha256`, so that "
            "nothing is fetched twice.",
            LookupArguments,
            self.lookup,
            reads_only=True,
        )
        yield Tool(
            "archive.range",
            Role.CONNECTOR,
            Permission.INGEST,
            "Archived messages of a stretch of days, newest first, with labels and headers, page by page: pass the "
            "`cursor` of one page to get the next; null ends it. `complete` says that the archive holds all mail of "
            "these days, so that the source need not be asked.",
            RangeArguments,
            self.range,
            reads_only=True,
        )
        yield Tool(
            "archive.changes",
            Role.CONNECTOR,
            Permission.INGEST,
            "Record labels that changed and messages that were deleted at the source. Deleting there removes nothing "
            "here. Answers with the ids that the archive does not have.",
            ChangesArguments,
            self.changes,
        )
        yield Tool(
            "history.claim",
            Role.CONNECTOR,
            Permission.INGEST,
            "Become the one reader of a mailbox's changes. Answers `{history_id, fence, lease_s}`; while another "
            "reads, refuses with `retry_after`.",
            ClaimArguments,
            self.claim,
        )
        yield Tool(
            "history.commit",
            Role.CONNECTOR,
            Permission.INGEST,
            "Move the mailbox's history cursor after everything up to it was taken in, renew the lease, or release it. "
            "A `fence` that is no longer in force is refused: stop reading then.",
            CommitArguments,
            self.commit,
        )
        yield Tool(
            "sent.add",
            Role.CONNECTOR,
            Permission.INGEST,
            f"Add up to {MOST_IDS} messages that the owner sent to the index that recognises replies to them.",
            SentAddArguments,
            self.add_sent,
        )
        yield Tool(
            "sent.lookup",
            Role.CONNECTOR,
            Permission.INGEST,
            "Which of these Message-IDs the owner sent.",
            SentLookupArguments,
            self.lookup_sent,
            reads_only=True,
        )

    async def ingest(self, given: IngestArguments, caller: Caller) -> Answer:
        if given.envelopes is not None:
            results = await self._ingest.take(given.envelopes, caller)
            return {"results": [result.answer() for result in results]}
        [result] = await self._ingest.take([given.model_extra], caller)
        if isinstance(result, IngestRejected):
            raise result.error
        return result.answer()

    async def store(self, given: StoreArguments, caller: Caller) -> Answer:
        mails = await asyncio.to_thread(_incoming, given.messages)
        if (size := sum(len(mail.raw) for mail in mails)) > LARGEST_STORE:
            raise BadInput("messages", f"hold {size:,} bytes; {LARGEST_STORE:,} at once are the most")
        lane = ArrivalLane(given.lane)
        stored = await self._mailroom.store(given.endpoint_identity, mails, lane, with_headers=given.with_headers)
        return {"stored": stored}

    async def trouble(self, given: TroubleArguments, caller: Caller) -> Answer:
        troubles = [
            MessageTrouble(
                each.gmail_id, TroubleKind.INTAKE if each.archived else TroubleKind.FETCH, logs.clean(each.reason)
            )
            for each in given.troubled
        ]
        await self._mailroom.report_trouble(given.endpoint_identity, ArrivalLane(given.lane), troubles, given.settled)
        return {"recorded": len(troubles)}

    async def lookup(self, given: LookupArguments, caller: Caller) -> Answer:
        return {"known": await self._mailroom.lookup(given.endpoint_identity, given.gmail_ids)}

    async def range(self, given: RangeArguments, caller: Caller) -> Answer:
        if given.date_from > given.date_to:
            raise BadInput("date_from", f"{given.date_from} is after date_to, {given.date_to}")
        days = (given.date_from, given.date_to)
        return await self._mailroom.walk(given.endpoint_identity, days, given.cursor, given.limit, given.headers)

    async def changes(self, given: ChangesArguments, caller: Caller) -> Answer:
        labels = {changed.gmail_id: frozenset(changed.labels) for changed in given.labels}
        return await self._mailroom.change(given.endpoint_identity, labels, given.deleted)

    async def claim(self, given: ClaimArguments, caller: Caller) -> Answer:
        return await self._mailroom.claim_history(given.endpoint_identity, given.instance)

    async def commit(self, given: CommitArguments, caller: Caller) -> Answer:
        await self._mailroom.commit_history(
            given.endpoint_identity, given.fence, given.history_id, release=given.release
        )
        return {"history_id": given.history_id, "released": given.release}

    async def add_sent(self, given: SentAddArguments, caller: Caller) -> Answer:
        sent = {mail.message_id: mail.sent_at and mail.sent_at.astimezone(UTC) for mail in given.messages}
        return {"added": await self._mailroom.add_sent(given.endpoint_identity, sent)}

    async def lookup_sent(self, given: SentLookupArguments, caller: Caller) -> Answer:
        return {"known": await self._mailroom.lookup_sent(given.endpoint_identity, given.message_ids)}


def _incoming(mails: Sequence[RawMailArgument]) -> list[IncomingMail]:
    """Apart from the loop: a large message takes a while to decode."""
    return [
        IncomingMail(
            raw=decoded_raw(mail.raw, f"messages.{number}.raw"),
            provenance=Provenance.API,
            gmail_id=mail.gmail_id,
            thread_id=mail.thread_id,
            labels=None if mail.labels is None else frozenset(mail.labels),
            received=datetime.fromtimestamp(mail.internal_date / 1_000, UTC),
        )
        for number, mail in enumerate(mails)
    ]
