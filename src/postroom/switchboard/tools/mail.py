"""The tools of a connector: deliver mail (`ingest`, the archive, the history cursor, sent mail), show that it is alive,
and learn what it needs (tier policy, categories, contacts).

A connector that sent no heartbeat for five minutes counts as dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, select

from postroom.accounts.history import GapPosition, GapStage
from postroom.accounts.troubled import ArrivalLane, MessageTrouble, TroubleKind
from postroom.archive.messages import IncomingMail, Provenance
from postroom.contract import mail as contract
from postroom.contract.mail import LARGEST_STORE, MOST_STORED
from postroom.contract.tool import MOST_IDS
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.access import connectors as table
from postroom.db.tables.mail import contact_exports
from postroom.domain.clock import Clock
from postroom.domain.envelope import MOST_ENVELOPES, SCHEMA_VERSION
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard import definitions
from postroom.switchboard.contacts import addresses_for
from postroom.switchboard.definitions import CategoryBook
from postroom.switchboard.ingest import Ingest, IngestRejected
from postroom.switchboard.mail_service import MailService
from postroom.switchboard.toolbox import Tool
from postroom.telemetry import logs


class MailTools:
    def __init__(self, ingest: Ingest, mailroom: MailService) -> None:
        self._ingest = ingest
        self._mailroom = mailroom

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.INGEST,
            Role.CONNECTOR,
            Permission.INGEST,
            f"Hand in a message as an `{SCHEMA_VERSION}` envelope, or up to {MOST_ENVELOPES} of them as `envelopes`. "
            "Answers `{request_id, status, duplicate}` (for several: `results` in the same order). A message handed in "
            "before is a success with the first `request_id` and `duplicate` true. `refused` means not now, see "
            "`reason` and `retry_after`; `rejected` means that the envelope is wrong, see `error.field`.",
            self.ingest,
            is_bulky=True,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.ARCHIVE_STORE,
            Role.CONNECTOR,
            Permission.INGEST,
            f"Store up to {MOST_STORED} raw messages (at most {LARGEST_STORE:,} bytes together) in the archive. When "
            "it answers they are on disk; each `{key, sha256}` is the reference that an envelope's `payload.raw` "
            "takes. Storing again changes nothing. What cannot be read is stored all the same; `trouble` says why.",
            self.store,
            is_bulky=True,
        )
        yield Tool(
            contract.TROUBLE_REPORT,
            Role.CONNECTOR,
            Permission.INGEST,
            f"Tell of up to {MOST_IDS} messages that could not be fetched or taken in, and of those that could after "
            "all. They are listed for the owner until they are settled.",
            self.trouble,
        )
        yield Tool(
            contract.ARCHIVE_LOOKUP,
            Role.CONNECTOR,
            Permission.INGEST,
            f"Which of up to {MOST_IDS} Gmail ids the archive holds already, with `key` and `sha256`, so that "
            "nothing is fetched twice.",
            self.lookup,
            reads_only=True,
        )
        yield Tool(
            contract.ARCHIVE_RANGE,
            Role.CONNECTOR,
            Permission.INGEST,
            "Archived messages of a stretch of days, newest first, with labels and headers, page by page: pass the "
            "`cursor` of one page to get the next; null ends it. `complete` says that the archive holds all mail of "
            "these days, so that the source need not be asked.",
            self.range,
            reads_only=True,
        )
        yield Tool(
            contract.ARCHIVE_CHANGES,
            Role.CONNECTOR,
            Permission.INGEST,
            "Record labels that changed and messages that were deleted at the source. Deleting there removes nothing "
            "here. Answers with the ids that the archive does not have.",
            self.changes,
        )
        yield Tool(
            contract.HISTORY_CLAIM,
            Role.CONNECTOR,
            Permission.INGEST,
            "Become the one reader of a mailbox's changes. Answers `{history_id, fence, lease_s, gap}`; while another "
            "reads, refuses with `retry_after`.",
            self.claim,
        )
        yield Tool(
            contract.HISTORY_COMMIT,
            Role.CONNECTOR,
            Permission.INGEST,
            "Move the mailbox's history cursor after everything up to it was taken in, renew the lease, or release it. "
            "A `fence` that is no longer in force is refused: stop reading then. Where the source has forgotten the "
            "history, send the id to go on from together with `gap`: both are recorded at once.",
            self.commit,
        )
        yield Tool(
            contract.HISTORY_GAP,
            Role.CONNECTOR,
            Permission.INGEST,
            "What is left to compare of a gap in a mailbox's history; with `step`, record first how far it has come. A "
            "`step` that is no longer the current one changes nothing. Answers `{gap}`, null once all of it is done.",
            self.gap,
        )
        yield Tool(
            contract.SENT_ADD,
            Role.CONNECTOR,
            Permission.INGEST,
            f"Add up to {MOST_IDS} messages that the owner sent to the index that recognises replies to them.",
            self.add_sent,
        )
        yield Tool(
            contract.SENT_LOOKUP,
            Role.CONNECTOR,
            Permission.INGEST,
            "Which of these Message-IDs the owner sent.",
            self.lookup_sent,
            reads_only=True,
        )

    async def ingest(
        self, caller: Caller, given: contract.IngestArguments
    ) -> contract.IngestReply | contract.SingleIngestReply:
        if given.envelopes is not None:
            answer = await self._ingest.take(given.envelopes, caller)
            results = [outcome.reply() for outcome in answer.outcomes]
            return contract.IngestReply(results=results, backfill_enabled=answer.backfill_enabled)
        answer = await self._ingest.take([given.model_extra], caller)
        [outcome] = answer.outcomes
        if isinstance(outcome, IngestRejected):
            raise outcome.error
        return contract.SingleIngestReply.of(outcome.reply(), answer.backfill_enabled)

    async def store(self, caller: Caller, given: contract.StoreArguments) -> contract.StoreReply:
        mails = [_incoming(each) for each in given.messages]
        if (size := sum(len(mail.raw) for mail in mails)) > LARGEST_STORE:
            raise BadInput("messages", f"hold {size:,} bytes; {LARGEST_STORE:,} at once are the most")
        lane = ArrivalLane(given.lane)
        stored = await self._mailroom.store(given.endpoint_identity, mails, lane, with_headers=given.with_headers)
        return contract.StoreReply(stored=stored)

    async def trouble(self, caller: Caller, given: contract.TroubleArguments) -> contract.TroubleReply:
        troubles = [
            MessageTrouble(
                each.gmail_id, TroubleKind.INTAKE if each.archived else TroubleKind.FETCH, logs.clean(each.reason)
            )
            for each in given.troubled
        ]
        await self._mailroom.report_trouble(given.endpoint_identity, ArrivalLane(given.lane), troubles, given.settled)
        return contract.TroubleReply(recorded=len(troubles))

    async def lookup(self, caller: Caller, given: contract.LookupArguments) -> contract.LookupReply:
        return contract.LookupReply(known=await self._mailroom.lookup(given.endpoint_identity, given.gmail_ids))

    async def range(self, caller: Caller, given: contract.RangeArguments) -> contract.RangeReply:
        if given.date_from > given.date_to:
            raise BadInput("date_from", f"{given.date_from} is after date_to, {given.date_to}")
        days = (given.date_from, given.date_to)
        return await self._mailroom.walk(given.endpoint_identity, days, given.cursor, given.limit, given.headers)

    async def changes(self, caller: Caller, given: contract.ChangesArguments) -> contract.ChangesReply:
        labels = {changed.gmail_id: frozenset(changed.labels) for changed in given.labels}
        unknown = await self._mailroom.change(given.endpoint_identity, labels, given.deleted)
        return contract.ChangesReply(unknown=sorted(unknown))

    async def claim(self, caller: Caller, given: contract.ClaimArguments) -> contract.HistoryClaim:
        return await self._mailroom.claim_history(given.endpoint_identity, given.instance)

    async def commit(self, caller: Caller, given: contract.CommitArguments) -> contract.CommitReply:
        await self._mailroom.commit_history(
            given.endpoint_identity, given.fence, given.history_id, release=given.release, gap=given.gap
        )
        return contract.CommitReply(history_id=given.history_id, released=given.release)

    async def gap(self, caller: Caller, given: contract.GapArguments) -> contract.GapReply:
        reached = None
        if given.stage is not None:
            reached = GapPosition(GapStage(given.stage), given.before, given.mark)
        return contract.GapReply(gap=await self._mailroom.walk_gap(given.endpoint_identity, given.step, reached))

    async def add_sent(self, caller: Caller, given: contract.SentAddArguments) -> contract.SentAddReply:
        sent = {mail.message_id: mail.sent_at and mail.sent_at.astimezone(UTC) for mail in given.messages}
        return contract.SentAddReply(added=await self._mailroom.add_sent(given.endpoint_identity, sent))

    async def lookup_sent(self, caller: Caller, given: contract.SentLookupArguments) -> contract.SentReply:
        known = await self._mailroom.lookup_sent(given.endpoint_identity, given.message_ids)
        return contract.SentReply(known=known)


def _incoming(mail: contract.RawMailArgument) -> IncomingMail:
    return IncomingMail(
        raw=mail.raw,
        provenance=Provenance.API,
        gmail_id=mail.gmail_id,
        thread_id=mail.thread_id,
        labels=None if mail.labels is None else frozenset(mail.labels),
        received=datetime.fromtimestamp(mail.internal_date / 1_000, UTC),
    )


ALIVE_FOR = timedelta(minutes=5)
KEPT_FOR = timedelta(days=7)
"""How long a silent connector is listed once another one of its mailbox reports."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    connector_type: str
    endpoint_identity: str
    instance: str
    version: str
    status: str
    counters: Mapping[str, int]
    checkpoint: Mapping[str, Any] | None
    capabilities: Sequence[str]


@dataclass(frozen=True, slots=True)
class Connector:
    connector_type: str
    endpoint_identity: str
    instance: str
    version: str
    status: str
    counters: Mapping[str, int]
    checkpoint: Mapping[str, Any] | None
    capabilities: Sequence[str]
    first_seen_at: datetime
    last_heartbeat_at: datetime

    def is_alive(self, now: datetime) -> bool:
        return now - self.last_heartbeat_at < ALIVE_FOR


def record_heartbeat(tx: Tx, beat: Heartbeat, now: datetime) -> None:
    """The latest state of a connector; the first heartbeat registers it, and drops those of its mailbox that have been
    silent for a week."""
    said = {name: getattr(beat, name) for name in Heartbeat.__slots__}
    said |= {"counters": dict(beat.counters), "capabilities": list(beat.capabilities), "last_heartbeat_at": now}
    statement = insert(tx, table).values(**said, first_seen_at=now)
    identity = ("connector_type", "endpoint_identity", "instance")
    changes = {name: value for name, value in said.items() if name not in identity}
    tx.execute(statement.on_conflict_do_update(index_elements=identity, set_=changes))
    rivals = (table.c.connector_type == beat.connector_type) & (table.c.endpoint_identity == beat.endpoint_identity)
    tx.execute(delete(table).where(rivals, table.c.last_heartbeat_at < now - KEPT_FOR))


def list_connectors(tx: Tx) -> list[Connector]:
    """Several connectors of one mailbox follow each other, the one that reported last first."""
    newest = table.c.last_heartbeat_at.desc()
    rows = tx.execute(select(table).order_by(table.c.connector_type, table.c.endpoint_identity, newest))
    return [Connector(**{name: getattr(row, name) for name in Connector.__slots__}) for row in rows]


class PresenceTools:
    def __init__(self, database: Database, clock: Clock, book: CategoryBook) -> None:
        self._database = database
        self._clock = clock
        self._book = book

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.HEARTBEAT,
            Role.CONNECTOR,
            Permission.INGEST,
            "Say that you are alive and how you are doing; the first call registers you. Answers the tier policy's "
            "rules and the owner's categories when yours are older, and when contacts were last exported.",
            self.heartbeat,
        )
        yield Tool(
            contract.CONTACTS_EXPORT,
            Role.CONNECTOR,
            Permission.CONTACTS,
            "The addresses of known contacts, in lower case, with `generated_at`; apart from them, those whose mail is "
            "not served first. Made every 15 minutes; keep a copy and ask with `if_newer_than`. A token for one "
            "mailbox gets the contacts of that mailbox.",
            self.export,
            reads_only=True,
            keeps_to_mailbox=True,
        )

    async def heartbeat(self, caller: Caller, given: contract.HeartbeatArguments) -> contract.HeartbeatReply:
        beat = Heartbeat(**given.model_dump(exclude={"policy_version", "categories_version"}))
        now = self._clock.now()

        def record(tx: Tx) -> tuple[str, list[dict[str, Any]], dict[str, Any], Any]:
            record_heartbeat(tx, beat, now)
            version, rules = definitions.rules_with_version(tx)
            categories = self._book.for_connector(tx, given.categories_version)
            return version, rules, categories, _generated_at(tx)

        version, rules, categories, generated_at = await self._database.write(record)
        policy: dict[str, Any] = {"version": version}
        if version != given.policy_version:
            policy["rules"] = rules
        return contract.HeartbeatReply(
            policy=policy, categories=categories, contacts_generated_at=generated_at, time=now
        )

    async def export(self, caller: Caller, given: contract.ExportArguments) -> contract.ContactsReply:
        def read(tx: Tx) -> contract.ContactsReply:
            generated_at = _generated_at(tx)
            if generated_at is None:
                return contract.ContactsReply(generated_at=None, addresses=[])
            if given.if_newer_than is not None and generated_at <= given.if_newer_than:
                return contract.ContactsReply(generated_at=generated_at, unchanged=True)
            addresses, others = addresses_for(tx, caller.endpoint_identity)
            return contract.ContactsReply(generated_at=generated_at, addresses=addresses, without_priority=others)

        return await self._database.read(read)


def _generated_at(tx: Tx) -> Any:
    query = select(contact_exports.c.generated_at).order_by(contact_exports.c.version.desc()).limit(1)
    return tx.execute(query).scalar()
