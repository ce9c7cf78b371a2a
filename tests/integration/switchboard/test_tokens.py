"""Tokens: shown once, stored as a hash, good until they end or are revoked."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from sqlalchemy import select

from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database
from postroom.db.tables.access import access_tokens
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.tokens import NewToken, create_token, list_tokens, revoke_token, verify_token
from postroom.telemetry.logs import clean

pytestmark = pytest.mark.req("PL-6", "BF-3")


async def make(database: Database, clock: ManualClock, new: NewToken) -> tuple[str, str]:
    token, text = await database.write(lambda tx: create_token(tx, new, clock.now()))
    return token.id, text


async def test_only_a_hash_is_stored_and_logs_mask_the_text(database: Database, clock: ManualClock) -> None:
    _, text = await make(database, clock, NewToken(Role.CONNECTOR, "gmail", endpoint_identity="me@example.org"))
    rows = await database.read(lambda tx: tx.execute(select(access_tokens)).all())
    assert text not in repr(rows)
    assert text not in clean(f"said {text} aloud")
    found = await database.read(lambda tx: verify_token(tx, text, clock.now()))
    assert found is not None
    assert found.caller == Caller(Role.CONNECTOR, "gmail", "me@example.org")


@pytest.mark.req("BF-22")
async def test_who_made_and_who_revoked_a_token_stands_in_the_audit_and_the_token_does_not(
    database: Database, clock: ManualClock
) -> None:
    new, anna, bo = NewToken(Role.CONNECTOR, "gmail", 30, "Me@Example.org"), Actor("cli", "anna"), Actor("cli", "bo")
    token, text = await database.write(lambda tx: create_token(tx, new, clock.now(), anna))
    for _ in range(2):
        await database.write(lambda tx: revoke_token(tx, token.id, clock.now(), bo))
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=token.id)))).entries
    assert [(entry.action, entry.actor) for entry in entries] == [("token.revoke", bo), ("token.create", anna)]
    assert (entries[1].after or {})["endpoint_identity"] == "me@example.org"
    assert "revoked_at" in (entries[0].after or {})
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert not any(secret in repr(entries) for secret in (text, digest))


async def test_a_token_ends_at_its_time(database: Database, clock: ManualClock) -> None:
    _, text = await make(database, clock, NewToken(Role.AGENT, "model", expires_days=1))
    clock.advance(86_399)
    assert await database.read(lambda tx: verify_token(tx, text, clock.now()))
    clock.advance(1)
    assert await database.read(lambda tx: verify_token(tx, text, clock.now())) is None


async def test_a_revoked_token_is_useless_at_once_and_stays_on_the_list(database: Database, clock: ManualClock) -> None:
    token_id, text = await make(database, clock, NewToken(Role.DASHBOARD, "desk"))
    first = await database.write(lambda tx: revoke_token(tx, token_id, clock.now()))
    clock.advance(60)
    again = await database.write(lambda tx: revoke_token(tx, token_id, clock.now()))
    assert first.revoked_at == again.revoked_at == clock.now() - timedelta(seconds=60)
    assert await database.read(lambda tx: verify_token(tx, text, clock.now())) is None
    assert [token.name for token in await database.read(list_tokens)] == ["desk"]


async def test_a_text_of_another_form_is_no_token(database: Database, clock: ManualClock) -> None:
    _, text = await make(database, clock, NewToken(Role.AGENT, "model"))
    wrong = ("", "prt_", text[:-1], text + "x", text.swapcase(), f" {text}", "\0" * 47, "prt_" + "é" * 43)
    assert await database.read(lambda tx: [verify_token(tx, one, clock.now()) for one in wrong]) == [None] * 8


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewToken(Role.AGENT, ""), "name"),
        (NewToken(Role.AGENT, "a\nb"), "name"),
        (NewToken(Role.AGENT, "x" * 101), "name"),
        (NewToken(Role.AGENT, "a", expires_days=0), "expires-days"),
        (NewToken(Role.AGENT, "a", permissions=[Permission.TOKENS]), "permissions"),
        (NewToken(Role.AGENT, "a", permissions=[]), "permissions"),
        (NewToken(Role.CONNECTOR, "a", endpoint_identity=""), "identity"),
    ],
)
async def test_what_does_not_fit_is_named(database: Database, clock: ManualClock, new: NewToken, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        await make(database, clock, new)
    assert refused.value.field == field
    assert await database.read(list_tokens) == []


async def test_revoking_what_is_not_there_says_so(database: Database, clock: ManualClock) -> None:
    with pytest.raises(NotFound, match="there is no token"):
        await database.write(lambda tx: revoke_token(tx, new_id(), clock.now()))
