"""Mail in the archive of a running dashboard, and what the rest of the house knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.accounts.store import NewAccount, add_account
from postroom.archive.model import IncomingMail
from postroom.db.tables.actions import actions
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.domain.ids import new_id
from tests.support.dashboards import Site
from tests.support.envelopes import ME


async def keep(site: Site, mails: Sequence[IncomingMail], email: str = ME) -> list[str]:
    """Stored as a sync stores it; their keys."""
    stored = await site.dashboard.pages.state.desk.house.archive.of(email).store(mails)
    return [one.key for one in stored]


async def judge(site: Site, key: str, email: str = ME, *, action: str | None = None, **decision: Any) -> str:
    """As if it had come in by a connector and been decided about; the id of its message."""
    now, message = site.app.clock.now(), new_id()
    account = await site.write(lambda tx: add_account(tx, NewAccount(email, "http://127.0.0.1:9"), now))
    row = {
        "id": message,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": email,
        "external_event_id": key,
        "idempotency_key": f"gmail:{email}:{key}",
        "sender_identity": "ann@example.org",
        "ingestion_tier": "full",
        "policy_tier": "high_priority",
        "assignment_rule": "known_contact",
        "observed_at": now,
        "received_at": now,
        "accepted_at": now,
    }
    made = {"id": new_id(), "message_id": message, "source": "llm", "action": "archive", "reason": "It is news."}
    done = {
        "id": new_id(),
        "account_id": account.id,
        "message_id": message,
        "gmail_id": key,
        "origin": "model",
        "type": action,
        "status": "completed",
        "wanted_by": "the model",
        "created_at": now,
        "updated_at": now,
        "finished_at": now,
    }
    await site.write(lambda tx: tx.execute(messages.insert().values(row)))
    await site.write(lambda tx: tx.execute(decisions.insert().values(made | {"created_at": now} | decision)))
    if action is not None:
        await site.write(lambda tx: tx.execute(actions.insert().values(done)))
    return message
