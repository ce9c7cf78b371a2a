"""The people the owner knows, imported or written to, and the index of Message-IDs the owner sent (PQ-3, PQ-4).

Connectors fetch the addresses every 15 minutes; the index recognises replies to the owner's mail.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, func, select, update

from postroom import audit
from postroom.accounts.account import Account, list_accounts
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import PersonWrittenTo
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.mail import contact_exports, contact_mailboxes, contacts, removed_contacts, sent_messages
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import normal_email
from postroom.mail.address_books import BookEntry, ContactKind, shown_name
from postroom.mail.addresses import canonical_address
from postroom.queue import Handler, JobContext
from postroom.queue.job import Json

_LONGEST_ID = 998
_ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class SentMessageId:
    message_id: str
    """Without its angle brackets."""
    sent_at: datetime


def sent_ids_in_archive(place: ArchiveBackend, owner: str) -> list[SentMessageId]:
    """The Message-IDs of the account's sent mail. Mail without one cannot be answered by reference."""
    found: dict[str, SentMessageId] = {}
    with place.reader() as archive:
        for mail in archive.sent_mail(owner):
            bare = mail.message_id.strip().removeprefix("<").removesuffix(">")
            if bare and len(bare) <= _LONGEST_ID:
                found[bare] = SentMessageId(bare, mail.sent_at)
    return list(found.values())


def missing_sent_ids(tx: Tx, account_id: str, sent: Sequence[SentMessageId]) -> list[SentMessageId]:
    """Those that the index does not have yet; usually none."""
    known = select(sent_messages.c.message_id_header).where(sent_messages.c.account_id == account_id)
    have = {row.message_id_header for row in tx.execute(known)}
    return [mail for mail in sent if mail.message_id not in have]


def add_sent_ids(tx: Tx, account_id: str, sent: Sequence[SentMessageId], now: datetime) -> None:
    for start in range(0, len(sent), _ROWS_AT_ONCE):
        rows = [
            {
                "account_id": account_id,
                "message_id_header": mail.message_id,
                "sent_at": mail.sent_at,
                "added_at": now,
            }
            for mail in sent[start : start + _ROWS_AT_ONCE]
        ]
        tx.execute(insert(tx, sent_messages).on_conflict_do_nothing(), rows)


_KEPT_EXPORTS = 20
_CLOCK_SLIP = timedelta(minutes=5)


class ContactSource(StrEnum):
    VCARD = "vcard"
    CSV = "csv"
    SENT = "sent"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Contact:
    address: str
    name: str | None
    source: ContactSource
    kind: str
    added_at: datetime
    last_seen_at: datetime | None
    """When the owner last wrote to them, if that is known."""
    has_priority: bool = True
    """False: known as before, but their mail is not served first."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    added: int
    changed: int
    unchanged: int
    removed: int = 0
    """Left out, because the owner removed them before."""


@dataclass(frozen=True, slots=True)
class Export:
    """A snapshot: the addresses that are known contacts, as of a moment."""

    version: int
    generated_at: datetime
    addresses: tuple[str, ...]
    without_priority: tuple[str, ...] = ()
    """Those of the addresses whose mail is not served first."""


@dataclass(frozen=True, slots=True)
class WrittenTo:
    """Someone the owner has written to, and when last."""

    address: str
    name: str
    last_at: datetime
    mailboxes: frozenset[str] = field(default=frozenset(), compare=False)
    """The mailbox from which the owner wrote to them."""


def import_entries(
    tx: Tx,
    entries: Sequence[BookEntry],
    source: ContactSource,
    now: datetime,
    *,
    mailbox: str | None = None,
    dry_run: bool = False,
) -> ImportResult:
    """Add what a person imported. An entry that came from sent mail alone takes the book's name and origin; one that
    the owner removed stays away, until `add_contact` brings it back.

    With `mailbox` they count as contacts of that mailbox before any mail was exchanged with it.
    """
    tx.lock_table(contacts)
    gone = _removed(tx)
    left_out = sum(entry.address in gone for entry in entries)
    entries = [entry for entry in entries if entry.address not in gone]
    known = _known(tx, [entry.address for entry in entries])
    fresh = [entry for entry in entries if entry.address not in known]
    changed = [entry for entry in entries if entry.address in known and _differs(known[entry.address], entry)]
    if not dry_run:
        _insert(tx, [_row(entry, source, now) for entry in fresh])
        for entry in changed:
            values = {"name": entry.name or known[entry.address].name, "source": source, "kind": entry.kind}
            tx.execute(update(contacts).where(contacts.c.address == entry.address).values(**values))
        if mailbox is not None:
            note_mailboxes(tx, {(mailbox, entry.address) for entry in entries})
    return ImportResult(len(fresh), len(changed), len(entries) - len(fresh) - len(changed), left_out)


def add_contact(
    tx: Tx, address: str, name: str, who: Actor, now: datetime, *, mailbox: str | None = None, has_priority: bool = True
) -> Contact:
    """Add one contact, or give a known one another name or priority; one that was removed is known again."""
    address = _address(address)
    tx.lock_table(contacts)
    before = _known(tx, [address]).get(address)
    tx.execute(delete(removed_contacts).where(removed_contacts.c.address == address))
    if before is None:
        _insert(tx, [_row(BookEntry(address, shown_name(name)), ContactSource.MANUAL, now)])
    elif name:
        tx.execute(update(contacts).where(contacts.c.address == address).values(name=shown_name(name)))
    tx.execute(update(contacts).where(contacts.c.address == address).values(has_priority=has_priority))
    if mailbox is not None:
        note_mailboxes(tx, {(mailbox, address)})
    return _changed(tx, address, "contact.add", before, who, now)


def set_contact_priority(tx: Tx, address: str, has_priority: bool, who: Actor, now: datetime) -> Contact:
    """Whether mail of a known contact is served first; nothing else about the contact changes."""
    before = get_contact(tx, address)
    tx.lock_table(contacts)
    tx.execute(update(contacts).where(contacts.c.address == before.address).values(has_priority=has_priority))
    action = "contact.include" if has_priority else "contact.exclude"
    return _changed(tx, before.address, action, before, who, now)


def remove_contact(tx: Tx, address: str, who: Actor, now: datetime) -> Contact:
    """Remove a contact for good: neither sent mail nor an imported book brings it back."""
    before = get_contact(tx, address)
    tx.lock_table(contacts)
    for table in (contacts, contact_mailboxes):
        tx.execute(delete(table).where(table.c.address == before.address))
    gone = {"address": before.address, "removed_at": now}
    tx.execute(insert(tx, removed_contacts).values(gone).on_conflict_do_nothing())
    audit.record(tx, who, "contact.remove", ("contact", before.address), now, before=_state(before))
    export_contacts(tx, now)
    return before


def get_contact(tx: Tx, address: str) -> Contact:
    found = _known(tx, [_address(address)]).get(_address(address))
    if found is None:
        raise NotFound("address", f"{address} is no contact; `postroom contacts list` shows those there are")
    return found


def _changed(tx: Tx, address: str, action: str, before: Contact | None, who: Actor, now: datetime) -> Contact:
    """Record the change, and give it to connectors with their next heartbeat."""
    after = _known(tx, [address])[address]
    was = None if before is None else _state(before)
    if was != _state(after):
        audit.record(tx, who, action, ("contact", address), now, before=was, after=_state(after))
    export_contacts(tx, now)
    return after


def _state(contact: Contact) -> dict[str, Any]:
    return {"name": contact.name, "source": contact.source, "has_priority": contact.has_priority}


def _address(text: str) -> str:
    address = canonical_address(normal_email(text, "address"))
    if "." not in address.rpartition("@")[2]:
        raise BadInput("address", f"{text!r} is not an e-mail address")
    return address


def _removed(tx: Tx) -> set[str]:
    return set(tx.execute(select(removed_contacts.c.address)).scalars())


def add_written_to(tx: Tx, people: Iterable[WrittenTo], now: datetime) -> int:
    """Add the people of sent mail, without those whom the owner removed; what was imported keeps its name. Returns how
    many are new."""
    tx.lock_table(contacts)
    gone = _removed(tx)
    by_address = {one.address: one for one in people if one.address not in gone}
    known = _known(tx, list(by_address))
    fresh = [
        _row(BookEntry(one.address, one.name), ContactSource.SENT, now) | {"last_seen_at": one.last_at}
        for address, one in by_address.items()
        if address not in known
    ]
    _insert(tx, fresh)
    for address, contact in known.items():
        last = by_address[address].last_at
        if contact.last_seen_at is None or contact.last_seen_at < last:
            tx.execute(update(contacts).where(contacts.c.address == address).values(last_seen_at=last))
    note_mailboxes(tx, {(mailbox, one.address) for one in by_address.values() for mailbox in one.mailboxes})
    return len(fresh)


def note_mailboxes(tx: Tx, pairs: Set[tuple[str, str]]) -> None:
    """Record which contacts belong to which mailbox; pairs of mailbox and normalised address.

    Rows are written in key order, so that concurrent writers do not deadlock.
    """
    wanted = sorted({(mailbox.strip().lower(), address) for mailbox, address in pairs})
    rows = [{"mailbox": mailbox, "address": address} for mailbox, address in wanted]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        tx.execute(insert(tx, contact_mailboxes).on_conflict_do_nothing(), rows[start : start + _ROWS_AT_ONCE])


def addresses_for(tx: Tx, mailbox: str | None) -> tuple[list[str], list[str]]:
    """The addresses of known contacts: those whose mail is served first, and the others. For one mailbox: of those that
    it exchanged mail with and those that were imported for it, and no others."""
    query = select(contacts.c.address, contacts.c.has_priority).order_by(contacts.c.address)
    if mailbox is not None:
        here = contact_mailboxes.c.mailbox == mailbox.strip().lower()
        query = query.where(contacts.c.address.in_(select(contact_mailboxes.c.address).where(here)))
    first: list[str] = []
    others: list[str] = []
    for row in tx.execute(query):
        (first if row.has_priority else others).append(row.address)
    return first, others


def list_contacts(tx: Tx, limit: int | None = None) -> list[Contact]:
    query = select(contacts).order_by(contacts.c.address)
    return [contact_from_row(row) for row in tx.execute(query if limit is None else query.limit(limit))]


def count_contacts(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(contacts)).scalar_one())


def export_contacts(tx: Tx, now: datetime) -> Export:
    """Make the snapshot that connectors fetch. Its version changes only when an address comes, goes, or gains or loses
    its priority."""
    tx.lock_table(contacts)
    first, others = addresses_for(tx, None)
    addresses = tuple(sorted([*first, *others]))
    digest = hashlib.sha256("\n".join([*addresses, *(f"-{each}" for each in others)]).encode()).hexdigest()
    last = tx.execute(select(contact_exports).order_by(contact_exports.c.version.desc()).limit(1)).first()
    if last is not None and last.sha256 == digest:
        here, at = contact_exports.c.version == last.version, _made_at(last.generated_at, now)
        tx.execute(update(contact_exports).where(here).values(generated_at=at))
        return Export(last.version, at, addresses, tuple(others))
    version = 1 if last is None else last.version + 1
    row = {"version": version, "generated_at": now, "addresses": len(addresses), "sha256": digest}
    tx.execute(contact_exports.insert().values(row))
    tx.execute(delete(contact_exports).where(contact_exports.c.version <= version - _KEPT_EXPORTS))
    return Export(version, now, addresses, tuple(others))


def _made_at(last: datetime, now: datetime) -> datetime:
    """Not earlier than the last export, unless that is far in the future because of a wrong clock."""
    return now if last > now + _CLOCK_SLIP else max(now, last)


def people_written_to(place: ArchiveBackend, owners: Sequence[str]) -> list[WrittenTo]:
    """The recipients of the accounts' sent mail in the archive, without the owners themselves."""
    mine = {canonical_address(owner) for owner in owners}
    found: dict[str, WrittenTo] = {}
    with place.reader() as archive:
        for owner in owners:
            for one in _people(archive.written_to(owner)):
                known = found.get(one.address, one)
                name, last_at = known.name or one.name, max(known.last_at, one.last_at)
                found[one.address] = WrittenTo(one.address, name, last_at, known.mailboxes | {owner.lower()})
    return sorted((one for one in found.values() if one.address not in mine), key=lambda one: one.address)


def export_handler(archive: ArchiveBackend) -> Handler:
    """The job `contacts.export`: adds new people and Message-IDs from sent mail, then makes the snapshot."""

    async def run(context: JobContext) -> Json:
        database, clock = context.queue.database, context.queue.clock
        accounts = await database.read(list_accounts)
        people = await asyncio.to_thread(people_written_to, archive, [account.email for account in accounts])
        indexed = sum([await _index_sent(context, archive, account) for account in accounts])

        def write(tx: Tx) -> Json:
            added = add_written_to(tx, people, clock.now())
            made = export_contacts(tx, clock.now())
            return {"added": added, "addresses": len(made.addresses), "version": made.version, "sent_indexed": indexed}

        await context.complete(write)
        return None

    return run


async def _index_sent(context: JobContext, archive: ArchiveBackend, account: Account) -> int:
    """Add the account's sent mail that the index does not have yet; returns how many there were."""
    sent = await asyncio.to_thread(sent_ids_in_archive, archive, account.email)
    new = await context.queue.database.read(lambda tx: missing_sent_ids(tx, account.id, sent))
    if new:
        now = context.queue.clock.now()
        await context.write(lambda tx: add_sent_ids(tx, account.id, new, now))
    return len(new)


def _people(written_to: Iterable[PersonWrittenTo]) -> Iterator[WrittenTo]:
    for one in written_to:
        if "@" in one.address and "." in one.address.rpartition("@")[2]:
            yield WrittenTo(one.address, shown_name(one.name), one.last_at)


def _known(tx: Tx, addresses: Sequence[str]) -> dict[str, Contact]:
    found: dict[str, Contact] = {}
    for start in range(0, len(addresses), _ROWS_AT_ONCE):
        some = addresses[start : start + _ROWS_AT_ONCE]
        for row in tx.execute(select(contacts).where(contacts.c.address.in_(some))):
            found[row.address] = contact_from_row(row)
    return found


def _differs(known: Contact, entry: BookEntry) -> bool:
    return known.source is ContactSource.SENT or (bool(entry.name) and entry.name != known.name)


def _row(entry: BookEntry, source: ContactSource, now: datetime) -> dict[str, Any]:
    kind = ContactKind(entry.kind).value
    return {"address": entry.address, "name": entry.name or None, "source": source, "kind": kind, "added_at": now}


def _insert(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = list(rows[start : start + _ROWS_AT_ONCE])
        tx.execute(insert(tx, contacts).on_conflict_do_nothing(), some)


def contact_from_row(row: Any) -> Contact:
    last = row.last_seen_at
    seen = None if last is None else last.astimezone(UTC)
    return Contact(
        row.address, row.name, ContactSource(row.source), row.kind, row.added_at, seen, bool(row.has_priority)
    )
