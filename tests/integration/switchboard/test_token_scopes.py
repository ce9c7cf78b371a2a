"""Tokens by permission, mailbox and maker: what each lacks is refused, and what a token made falls with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.audit import AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotAllowed, NotFound, PostroomError
from postroom.domain.roles import Permission, Role, all_permissions
from postroom.mail.address_books import BookEntry
from postroom.switchboard import contacts
from postroom.switchboard.contacts import ContactSource
from postroom.switchboard.tokens import (
    AccessToken,
    NewToken,
    create_token,
    list_tokens,
    revoke_all,
    revoke_token,
    revoke_with_made,
    verify_token,
)
from tests.support.backfills import new_backfill
from tests.support.databases import on_sqlite
from tests.support.mail import ME, envelope
from tests.support.switchboards import Bench, Calls, in_a_task, served, stranger

pytestmark = pytest.mark.req("HW-4")

OTHER = "other@example.org"
MINTS = (Permission.READ, Permission.TOKENS)


@pytest.fixture
async def mcp(bench: Bench) -> AsyncIterator[str]:
    async with in_a_task(served(bench)) as url:
        yield url


async def made(
    database: Database, clock: ManualClock, name: str = "a", maker: AccessToken | None = None, **new: Any
) -> tuple[AccessToken, str]:
    wanted = NewToken(Role.DASHBOARD, name, **{"permissions": MINTS, **new})
    who = None if maker is None else maker.id
    return await database.write(lambda tx: create_token(tx, wanted, clock.now(), maker=who))


async def alive(database: Database) -> set[str]:
    return {token.name for token in await database.read(list_tokens) if token.revoked_at is None}


async def outcome(call: Calls, name: str, **given: Any) -> PostroomError | None:
    try:
        await call(name, given)
    except PostroomError as error:
        return error
    return None


async def test_revoking_a_token_revokes_what_it_made_down_to_the_last(database: Database, clock: ManualClock) -> None:
    root, _ = await made(database, clock, "root")
    child, _ = await made(database, clock, "child", root)
    _, text = await made(database, clock, "grandchild", child)
    await made(database, clock, "stranger")
    _, fell = await database.write(lambda tx: revoke_with_made(tx, root.id, clock.now()))
    assert fell == 2
    assert await alive(database) == {"stranger"}
    assert await database.read(lambda tx: verify_token(tx, text, clock.now())) is None
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(action="token.revoke")))).entries
    assert sorted((entry.after or {}).get("with", "") for entry in entries) == sorted(["", root.id, root.id])


async def test_what_a_token_makes_ends_with_it_in_time_too(database: Database, clock: ManualClock) -> None:
    root, _ = await made(database, clock, "root", expires_days=1)
    child, text = await made(database, clock, "child", root, expires_days=3_650)
    forever, _ = await made(database, clock, "forever", root)
    assert child.expires_at == forever.expires_at == root.expires_at
    clock.advance(86_400)
    assert await database.read(lambda tx: verify_token(tx, text, clock.now())) is None


async def test_a_token_that_is_no_longer_good_makes_none(database: Database, clock: ManualClock) -> None:
    root, _ = await made(database, clock, "root", expires_days=1)
    await database.write(lambda tx: revoke_token(tx, root.id, clock.now()))
    with pytest.raises(NotAllowed, match="no longer good"):
        await made(database, clock, "late", root)
    brief, _ = await made(database, clock, "brief", expires_days=1)
    clock.advance(86_400)
    with pytest.raises(NotAllowed, match="no longer good"):
        await made(database, clock, "later", brief)


async def test_what_is_made_while_its_maker_is_revoked_never_survives(database: Database, clock: ManualClock) -> None:
    for number in range(5):
        root, _ = await made(database, clock, f"root {number}")
        child, _ = await made(database, clock, f"child {number}", root)
        await asyncio.gather(
            made(database, clock, f"late {number}", child),
            database.write(lambda tx, root=root: revoke_token(tx, root.id, clock.now())),  # type: ignore[misc]
            return_exceptions=True,
        )
        assert await alive(database) == set()


async def test_a_token_revokes_itself_and_what_it_made_and_no_other(database: Database, clock: ManualClock) -> None:
    root, _ = await made(database, clock, "root")
    child, _ = await made(database, clock, "child", root)
    other, _ = await made(database, clock, "other")
    for victim in (root, other):
        with pytest.raises(NotAllowed, match="no other"):
            await database.write(lambda tx, id=victim.id: revoke_with_made(tx, id, clock.now(), asker=child.id))  # type: ignore[misc]
    await database.write(lambda tx: revoke_with_made(tx, child.id, clock.now(), asker=root.id))
    await database.write(lambda tx: revoke_with_made(tx, root.id, clock.now(), asker=root.id))
    assert await alive(database) == {"other"}


async def test_revoking_all_leaves_none_and_is_audited(database: Database, clock: ManualClock) -> None:
    root, _ = await made(database, clock, "root")
    await asyncio.gather(
        made(database, clock, "late", root),
        database.write(lambda tx: revoke_all(tx, clock.now())),
        return_exceptions=True,
    )
    assert await alive(database) == set()
    assert await database.write(lambda tx: revoke_all(tx, clock.now())) == 0
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(action="token.revoke_all")))).entries
    assert len(entries) == 2


@pytest.mark.req("BF-3")
@on_sqlite
async def test_every_tool_refuses_a_token_of_its_role_without_its_permission(bench: Bench, mcp: str) -> None:
    refused: set[str] = set()
    taken: set[str] = set()
    for role in Role:
        for lacking in sorted(all_permissions(role)):
            rest = all_permissions(role) - {lacking}
            async with stranger(mcp, await bench.token(role, permissions=rest, name=f"no {lacking}")) as call:
                listed = {tool.name for tool in (await call.client.list_tools()).tools}
                for tool in bench.toolbox.of(role):
                    is_open = tool.permission is not lacking
                    assert (tool.names[0] in listed) is is_open, tool.name
                    for name in {tool.name, tool.alias} - (taken if is_open else refused):  # over HTTP once each way
                        error = await outcome(call, name, surprise=1)
                        assert isinstance(error, NotAllowed) is not is_open, name
                        assert is_open or f"permission `{lacking}`" in str(error)
                        (taken if is_open else refused).add(name)
    assert refused == taken == {name for tool in bench.toolbox for name in (tool.name, tool.alias)}


async def test_no_tool_serves_a_bound_token_another_mailbox(bench: Bench, mcp: str) -> None:
    await bench.account(OTHER)
    for role in Role:
        token = await bench.token(role, permissions=all_permissions(role), endpoint_identity=ME)
        async with stranger(mcp, token) as call:
            listed = {tool.name for tool in (await call.client.list_tools()).tools}
            for tool in bench.toolbox.of(role):
                open_to_it = tool.names_mailbox or tool.keeps_to_mailbox
                assert (tool.names[0] in listed) is open_to_it, tool.name
                if not open_to_it:
                    assert isinstance(await outcome(call, tool.name), NotAllowed), tool.name


async def test_a_bound_agent_finds_and_reads_only_the_mail_of_its_mailbox(bench: Bench, mcp: str) -> None:
    for number, email in enumerate((ME, OTHER)):
        await bench.account(email)
        raw = f"From: a@b.example\r\nSubject: secret of {email}\r\nMessage-ID: <{number}@x>\r\n\r\nsecret".encode()
        mail = IncomingMail(raw, Provenance.API, gmail_id=f"18f000000000000{number}")
        await bench.archive.of(email).store([mail])
    async with stranger(mcp, await bench.token(Role.AGENT, endpoint_identity=ME)) as call:
        found = (await call("search_archive", query="secret in:anywhere"))["messages"]
        assert [one["account"] for one in found] == [ME]
        assert (await call("read_message", id="<0@x>"))["account"] == ME
        for id in ("<1@x>", "18f0000000000001"):
            assert isinstance(await outcome(call, "read_message", id=id), NotFound)
        assert (await call("list_decisions"))["decisions"] == []
    async with stranger(mcp, await bench.token(Role.AGENT)) as call:
        assert len((await call("search_archive", query="secret in:anywhere"))["messages"]) == 2


async def test_a_bound_dashboard_token_sees_and_steers_only_the_jobs_of_its_mailbox(bench: Bench, mcp: str) -> None:
    owner = bench.client(Role.DASHBOARD)
    jobs = {}
    for email in (ME, OTHER):
        await bench.account(email)
        new = new_backfill(endpoint_identity=email)
        async with owner as call:
            asked = {"connector_type": "gmail", "endpoint_identity": email}
            days = {"date_from": new.date_from.isoformat(), "date_to": new.date_to.isoformat()}
            jobs[email] = (await call("create_backfill_job", **asked, **days))["job_id"]
        owner = bench.client(Role.DASHBOARD)
    async with stranger(mcp, await bench.token(Role.DASHBOARD, endpoint_identity=ME)) as call:
        assert [job["id"] for job in (await call("backfill.list"))["jobs"]] == [jobs[ME]]
        assert isinstance(await outcome(call, "backfill.list", endpoint_identity=OTHER), NotAllowed)
        assert (await call("backfill.show", job_id=jobs[ME]))["job"]["id"] == jobs[ME]
        for tool in ("backfill.show", "backfill.pause", "backfill.cancel", "backfill.resume"):
            assert isinstance(await outcome(call, tool, job_id=jobs[OTHER]), NotAllowed), tool
        assert (await call("backfill.pause", job_id=jobs[ME]))["status"] == "paused"


async def test_a_token_creates_no_job_that_may_spend_more_than_the_settings_say(bench: Bench, mcp: str) -> None:
    await bench.account(ME)
    days = {"date_from": "2026-01-01", "date_to": "2026-01-31"}
    asked = {"connector_type": "gmail", "endpoint_identity": ME, **days}
    async with stranger(mcp, await bench.token(Role.DASHBOARD)) as call:
        error = await outcome(call, "create_backfill_job", **asked, daily_cost_cap_cents=501)
        assert isinstance(error, NotAllowed)
        assert await outcome(call, "create_backfill_job", **asked, daily_cost_cap_cents=500) is None


@pytest.mark.req("PQ-4")
async def test_a_bound_connector_copies_the_contacts_of_its_own_mailbox_only(bench: Bench, mcp: str) -> None:
    now = bench.queue.clock.now()
    for email in (ME, OTHER):
        await bench.account(email)
        to = f"to-{email.partition('@')[0]}@example.org"
        raw = f"From: {email}\r\nTo: {to}\r\nSubject: x\r\n\r\nx".encode()
        await bench.archive.of(email).store([IncomingMail(raw, Provenance.API, labels=frozenset({"SENT"}))])
    people = await asyncio.to_thread(contacts.people_written_to, bench.archive.backend, [ME, OTHER])
    book = [BookEntry("ann@example.org", "Ann"), BookEntry("bo@example.org", "Bo"), BookEntry("cy@example.org", "Cy")]

    def prepare(tx: Tx) -> None:
        contacts.add_written_to(tx, people, now)
        contacts.import_entries(tx, book[:2], ContactSource.VCARD, now)
        contacts.import_entries(tx, book[2:], ContactSource.VCARD, now, mailbox=" Me@Example.org")
        contacts.export_contacts(tx, now)

    await bench.database.write(prepare)
    async with stranger(mcp, await bench.token(Role.CONNECTOR, endpoint_identity=ME)) as call:
        mine = ["cy@example.org", "to-me@example.org"]
        assert (await call("contacts.export"))["addresses"] == mine
        await call("ingest", envelope())  # from ann@example.org, who is in the book
        assert (await call("contacts.export"))["addresses"] == ["ann@example.org", *mine]
    async with stranger(mcp, await bench.token(Role.CONNECTOR)) as call:
        assert len((await call("contacts.export"))["addresses"]) == 5
