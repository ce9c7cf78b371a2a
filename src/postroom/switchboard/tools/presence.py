"""Tools with which a connector shows that it is alive and learns what it needs: policy rules, contacts.

One that sent no heartbeat for five minutes counts as dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select

from postroom.contract import presence as contract
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.access import connectors as table
from postroom.db.tables.mail import contact_exports
from postroom.domain.clock import Clock
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard import tier_policy
from postroom.switchboard.category_book import CategoryBook
from postroom.switchboard.contacts import addresses_for
from postroom.switchboard.toolbox import Tool

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
            version, rules = tier_policy.rules_with_version(tx)
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
