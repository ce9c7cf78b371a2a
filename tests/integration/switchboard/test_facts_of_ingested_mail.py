"""Rules see of ingested mail what its sender wrote: any header, its size, its senders; body or no body."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from sqlalchemy import select

from postroom.db.tables.mail import messages
from postroom.db.tables.triage import labels
from postroom.domain.ids import new_id
from postroom.triage.rules.engine import RuleSet
from postroom.triage.rules.facts import facts_of_message
from tests.support.mail import ME, envelope, inline
from tests.support.rules import NOW, rule
from tests.support.switchboards import Bench

RAW = (
    b"Received: from relay.example by mx.example\r\nDKIM-Signature: v=1; b=abc\r\nFrom: Ann <ann@example.org>\r\n"
    b"To: me@example.org\r\nSubject: Deploy failed\r\nX-GitHub-Reason: review_requested\r\nX-Tag: one\r\nX-Tag: two\r\n"
    b"Date: Thu, 01 Jan 2026 12:00:00 +0000\r\n\r\nHello\r\n"
)


@pytest.mark.req("JB-9")
@pytest.mark.parametrize("tier", ["full", "metadata"])
async def test_header_conditions_work_on_ingested_mail(bench: Bench, tier: str) -> None:
    account = await bench.account()
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=[_stored(RAW)])
        await call("ingest", envelope("a1", raw=inline(RAW) if tier == "full" else None, text="Deploy failed"))
    await bench.database.write(
        lambda tx: tx.execute(
            labels.insert().values(account_id=account.id, label_id="Label_7", name="Work", type="user", updated_at=NOW)
        )
    )
    [message_id] = await bench.database.read(lambda tx: list(tx.execute(select(messages.c.id)).scalars()))
    facts = await bench.database.read(lambda tx: facts_of_message(tx, message_id))
    assert facts is not None
    assert (facts.senders, facts.size_bytes, facts.has_attachment) == (("ann@example.org",), len(RAW), False)
    assert facts.labels == {"inbox", "work", "label_7"}
    assert not {"received", "dkim-signature"} & set(facts.headers)
    for condition in (
        {"header": {"name": "X-GitHub-Reason", "regex": "^review"}},
        {"header": {"name": "x-tag", "contains": "TWO"}, "recipient": ME, "label": "Label_7"},
        {"not": {"header": {"name": "Received", "present": True}}, "smaller_than": "1K"},
    ):
        assert RuleSet([rule(condition)]).first_match(facts, NOW) is not None, condition


async def test_a_message_that_is_gone_has_no_facts(bench: Bench) -> None:
    assert await bench.database.read(lambda tx: facts_of_message(tx, new_id())) is None


def _stored(raw: bytes) -> dict[str, Any]:
    return {
        "gmail_id": "a1",
        "internal_date": 1_767_268_800_000,
        "raw": base64.b64encode(raw).decode(),
        "labels": ["INBOX", "Work"],
    }
