"""A mailbox at the stand-in, a database that knows it, and the queue of its actions, with a few words for tests."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from postroom.accounts.store import Account, NewAccount, add_account
from postroom.actions import store
from postroom.actions.store import Action
from postroom.db import Database
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id


async def make_account(database: Database, clock: ManualClock, email: str, api_base: str) -> Account:
    return await database.write(lambda tx: add_account(tx, NewAccount(email, api_base), clock.now()))


async def make_message(database: Database, clock: ManualClock, account: Account, gmail_id: str, **more: Any) -> str:
    """A message as the Switchboard takes it in."""
    message_id, now = new_id(), clock.now()
    row = {
        "id": message_id,
        "account_id": account.id,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": account.email,
        "external_event_id": gmail_id,
        "external_thread_id": gmail_id,
        "idempotency_key": f"gmail:{account.email}:{gmail_id}",
        "sender_identity": "ann@friends.example",
        "subject": "Hello",
        "normalized_text": "How are you?",
        "ingestion_tier": "full",
        "policy_tier": "default",
        "observed_at": now,
        "received_at": now,
        "accepted_at": now,
        **more,
    }
    await database.write(lambda tx: tx.execute(messages.insert().values(row)))
    return message_id


async def make_decision(database: Database, clock: ManualClock, message_id: str, account_id: str) -> str:
    decision_id = new_id()
    row = {
        "id": decision_id,
        "message_id": message_id,
        "account_id": account_id,
        "source": "deterministic",
        "action": "archive",
        "reason": "a test",
        "created_at": clock.now(),
    }
    await database.write(lambda tx: tx.execute(decisions.insert().values(row)))
    return decision_id


async def action(database: Database, action_id: str) -> Action:
    return await database.read(lambda tx: store.get(tx, action_id))


async def rows_of(database: Database, table: Any) -> list[Any]:
    return list(await database.read(lambda tx: tx.execute(select(table)).all()))
