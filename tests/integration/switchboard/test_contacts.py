"""Contacts in the control database: imports, people written to, and the snapshot for connectors."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom.accounts.account import NewAccount, add_account
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.db.tables.mail import contact_exports, sent_messages
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.jobs import CONTACTS_EXPORT, FIXED_SCHEDULES
from postroom.mail.address_books import BookEntry
from postroom.queue import JobCatalogue, JobQueue, NewJob
from postroom.switchboard import contacts
from postroom.switchboard.contacts import ContactSource, ImportResult, WrittenTo
from tests.support.queues import record_of, run_until_idle

ME = "me@example.org"
OWNER = Actor("dashboard", "owner")
ANNA, BEN = BookEntry("anna@example.org", "Anna"), BookEntry("ben@example.org", "")
LONG_AGO, LATELY = datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)


def sent(to: str, when: datetime, *, labels: frozenset[str] = frozenset({"SENT"}), number: int = 0) -> IncomingMail:
    named = f"Message-ID: <{number}@example.org>\r\n" if number != 3 else ""
    raw = f"From: Me <{ME}>\r\nTo: {to}\r\n{named}Subject: {number}\r\n\r\nHello\r\n".encode()
    return IncomingMail(raw, Provenance.API, f"{number:016x}", "t", labels, when)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    with FileArchiveWriter(root) as writer:
        writer.store(
            ME,
            [
                sent("Anna Lind <anna@example.org>, me@example.org", LONG_AGO, number=1),
                sent("Group: carl@example.org, =?utf-8?q?J=C3=BCrgen?= <J@Example.org>;", LATELY, number=2),
                sent("anna@example.org", LATELY, number=3),
                sent("stranger@example.org", LATELY, labels=frozenset({"INBOX"}), number=4),
            ],
        )
    return root


@pytest.mark.req("PQ-4")
async def test_importing_again_changes_nothing(database: Database, clock: ManualClock) -> None:
    async def load(*entries: BookEntry, dry_run: bool = False) -> ImportResult:
        return await database.write(
            lambda tx: contacts.import_entries(tx, entries, ContactSource.VCARD, clock.now(), dry_run=dry_run)
        )

    assert await load(ANNA, BEN, dry_run=True) == ImportResult(2, 0, 0)
    assert await database.read(contacts.count_contacts) == 0
    assert await load(ANNA, BEN) == ImportResult(2, 0, 0)
    assert await load(ANNA, BEN) == ImportResult(0, 0, 2)
    assert await load(BookEntry("ben@example.org", "Ben")) == ImportResult(0, 1, 0)
    found = await database.read(contacts.list_contacts)
    assert [(one.address, one.name, one.source) for one in found] == [
        ("anna@example.org", "Anna", ContactSource.VCARD),
        ("ben@example.org", "Ben", ContactSource.VCARD),
    ]


@pytest.mark.req("PQ-4")
async def test_what_is_imported_while_sent_mail_is_looked_through_keeps_its_name(
    database: Database, clock: ManualClock
) -> None:
    for number in range(15):
        book, to = BookEntry(f"anna{number}@example.org", "Anna"), WrittenTo(f"anna{number}@example.org", "", LATELY)
        load = partial(contacts.import_entries, entries=[book], source=ContactSource.VCARD, now=clock.now())
        look = partial(contacts.add_written_to, people=[to], now=clock.now())
        await asyncio.gather(database.write(look), database.write(load))
    found = await database.read(contacts.list_contacts)
    assert {(one.name, one.source, one.last_seen_at) for one in found} == {("Anna", ContactSource.VCARD, LATELY)}


@pytest.mark.req("PQ-4")
async def test_the_last_of_two_snapshots_made_at_once_knows_what_both_added(
    database: Database, clock: ManualClock
) -> None:
    def add_and_export(tx: Tx, address: str) -> contacts.Export:
        contacts.add_written_to(tx, [WrittenTo(address, "", LATELY)], clock.now())
        return contacts.export_contacts(tx, clock.now())

    for number in range(15):
        both = [partial(add_and_export, address=f"{who}{number}@example.org") for who in ("anna", "ben")]
        one, other = sorted(await asyncio.gather(*map(database.write, both)), key=lambda made: made.version)
        assert (other.version, len(other.addresses)) == (one.version + 1, len(one.addresses) + 1)


@pytest.mark.req("PQ-4")
async def test_people_written_to_are_found_in_the_archive(archive: Path) -> None:
    assert contacts.people_written_to(FileArchive(archive), [ME]) == [
        WrittenTo("anna@example.org", "Anna Lind", LATELY),
        WrittenTo("carl@example.org", "", LATELY),
        WrittenTo("j@example.org", "Jürgen", LATELY),
    ]


@pytest.mark.req("PQ-4")
async def test_an_import_names_what_sent_mail_found_and_sent_mail_keeps_what_was_imported(
    database: Database, clock: ManualClock
) -> None:
    people = [WrittenTo("anna@example.org", "A. L.", LONG_AGO), WrittenTo("carl@example.org", "", LONG_AGO)]
    assert await database.write(lambda tx: contacts.add_written_to(tx, people, clock.now())) == 2
    result = await database.write(lambda tx: contacts.import_entries(tx, [ANNA], ContactSource.CSV, clock.now()))
    assert result == ImportResult(0, 1, 0)
    again = [WrittenTo("anna@example.org", "Somebody else", LATELY)]
    assert await database.write(lambda tx: contacts.add_written_to(tx, again, clock.now())) == 0
    anna = (await database.read(contacts.list_contacts))[0]
    assert (anna.name, anna.source, anna.last_seen_at) == ("Anna", ContactSource.CSV, LATELY)


@pytest.mark.req("PQ-4")
async def test_a_snapshot_is_always_fresh_and_has_a_new_version_when_somebody_comes(
    database: Database, clock: ManualClock
) -> None:
    first = await database.write(lambda tx: contacts.export_contacts(tx, clock.now()))
    clock.advance(900)
    second = await database.write(lambda tx: contacts.export_contacts(tx, clock.now()))
    assert (first.version, second.version) == (1, 1)
    assert second.generated_at > first.generated_at
    await database.write(lambda tx: contacts.import_entries(tx, [ANNA], ContactSource.CSV, clock.now()))
    third = await database.write(lambda tx: contacts.export_contacts(tx, clock.now()))
    assert (third.version, third.addresses) == (2, ("anna@example.org",))


@pytest.mark.req("PQ-4", "JB-6")
async def test_a_worker_exports_every_quarter_of_an_hour(database: Database, clock: ManualClock, archive: Path) -> None:
    account = NewAccount(ME, "https://gmail.googleapis.com")
    await database.write(lambda tx: add_account(tx, account, clock.now()))
    queue = JobQueue(database, JobCatalogue([CONTACTS_EXPORT]), clock)
    handlers = {CONTACTS_EXPORT.name: contacts.export_handler(FileArchive(archive))}
    await queue.declare_schedules(*(each for each in FIXED_SCHEDULES if each.job_type == CONTACTS_EXPORT.name))
    for minutes in (0, 15):
        clock.advance(minutes * 60)
        await database.write(queue.fire_schedules)
        await run_until_idle(queue, handlers)
    [made] = await database.read(lambda tx: tx.execute(select(contact_exports)).all())
    assert (made.version, made.generated_at) == (1, clock.now())
    known = [each.address for each in await database.read(contacts.list_contacts)]
    assert sorted(known) == ["anna@example.org", "carl@example.org", "j@example.org"]


@pytest.mark.req("PQ-3")
async def test_the_index_of_sent_mail_is_filled_from_the_archive_and_once(
    database: Database, clock: ManualClock, archive: Path
) -> None:
    new = NewAccount(ME, "https://gmail.googleapis.com")
    account = await database.write(lambda tx: add_account(tx, new, clock.now()))
    queue = JobQueue(database, JobCatalogue([CONTACTS_EXPORT]), clock)
    for expected in (2, 0):
        [job] = await queue.enqueue(NewJob(CONTACTS_EXPORT.name, key="now"))
        await run_until_idle(queue, {CONTACTS_EXPORT.name: contacts.export_handler(FileArchive(archive))})
        assert (await record_of(queue, job.job_id)).result["sent_indexed"] == expected
    rows = await database.read(lambda tx: list(tx.execute(select(sent_messages))))
    assert sorted((row.account_id, row.message_id_header, row.sent_at) for row in rows) == [
        (account.id, "1@example.org", LONG_AGO),
        (account.id, "2@example.org", LATELY),
    ]


@pytest.mark.req("PQ-4")
async def test_a_removed_contact_stays_away_until_it_is_added_again(database: Database, clock: ManualClock) -> None:
    await database.write(lambda tx: contacts.import_entries(tx, [ANNA, BEN], ContactSource.VCARD, clock.now()))
    removed = await database.write(lambda tx: contacts.remove_contact(tx, " Anna@Example.org ", OWNER, clock.now()))
    assert removed.address == "anna@example.org"
    people = [WrittenTo("anna@example.org", "Anna", LATELY)]
    assert await database.write(lambda tx: contacts.add_written_to(tx, people, clock.now())) == 0
    again = await database.write(lambda tx: contacts.import_entries(tx, [ANNA], ContactSource.CSV, clock.now()))
    assert again == ImportResult(0, 0, 0, removed=1)
    assert [one.address for one in await database.read(contacts.list_contacts)] == ["ben@example.org"]
    with pytest.raises(NotFound, match="is no contact"):
        await database.write(lambda tx: contacts.remove_contact(tx, "anna@example.org", OWNER, clock.now()))
    await database.write(lambda tx: contacts.add_contact(tx, "anna@example.org", "Anna L.", OWNER, clock.now()))
    known = await database.read(contacts.list_contacts)
    assert [(one.address, one.name) for one in known] == [("anna@example.org", "Anna L."), ("ben@example.org", None)]


@pytest.mark.req("PQ-4", "PQ-5")
async def test_a_contact_without_priority_stays_known_and_connectors_are_told_at_once(
    database: Database, clock: ManualClock
) -> None:
    await database.write(lambda tx: contacts.import_entries(tx, [ANNA, BEN], ContactSource.VCARD, clock.now()))
    first = await database.write(lambda tx: contacts.export_contacts(tx, clock.now()))
    clock.advance(60)
    await database.write(lambda tx: contacts.set_contact_priority(tx, "anna@example.org", False, OWNER, clock.now()))
    assert await database.read(lambda tx: contacts.addresses_for(tx, None)) == (
        ["ben@example.org"],
        ["anna@example.org"],
    )
    export = await database.read(
        lambda tx: tx.execute(select(contact_exports).order_by(contact_exports.c.version)).all()
    )
    assert [(row.version, row.generated_at) for row in export] == [(1, first.generated_at), (2, clock.now())]
    await database.write(lambda tx: contacts.set_contact_priority(tx, "anna@example.org", True, OWNER, clock.now()))
    assert await database.read(lambda tx: contacts.addresses_for(tx, None)) == (
        ["anna@example.org", "ben@example.org"],
        [],
    )


@pytest.mark.req("PQ-4")
async def test_every_change_of_a_contact_is_audited_with_its_author(database: Database, clock: ManualClock) -> None:
    def change(tx: Tx) -> None:
        contacts.add_contact(tx, "anna@example.org", "Anna", OWNER, clock.now())
        contacts.add_contact(tx, "anna@example.org", "", OWNER, clock.now())  # changes nothing
        contacts.set_contact_priority(tx, "anna@example.org", False, OWNER, clock.now())
        contacts.set_contact_priority(tx, "anna@example.org", True, OWNER, clock.now())
        contacts.remove_contact(tx, "anna@example.org", OWNER, clock.now())

    await database.write(change)
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(subject_type="contact")))).entries
    assert [(entry.action, entry.actor, entry.subject_id) for entry in reversed(entries)] == [
        (f"contact.{what}", OWNER, "anna@example.org") for what in ("add", "exclude", "include", "remove")
    ]


@pytest.mark.parametrize("address", ["", "anna", "anna@host", "Anna <anna@example.org>"])
async def test_what_is_no_address_is_no_contact(database: Database, clock: ManualClock, address: str) -> None:
    with pytest.raises(BadInput, match="is not an e-mail address"):
        await database.write(lambda tx: contacts.add_contact(tx, address, "", OWNER, clock.now()))
