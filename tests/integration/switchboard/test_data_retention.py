"""What retention lets go of, and what it never touches."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from postroom.accounts.account import NewAccount, add_account
from postroom.archive.certificates import ArchiveProof, Removal, RemovalAction
from postroom.archive.messages import Provenance
from postroom.archive.shards.certificates import Certificates
from postroom.archive.shards.file_archive import FileArchive
from postroom.audit import AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.db.tables.mail import ingest_inbox, messages
from postroom.db.tables.triage import actions, decisions, model_calls
from postroom.domain.clock import ManualClock
from postroom.domain.envelope import IngestionTier
from postroom.domain.ids import new_id
from postroom.domain.jobs import RETENTION_PRUNE
from postroom.queue import JobCatalogue, JobQueue, JobState, NewJob
from postroom.queue.inspection import show_job
from postroom.queue.worker import Worker
from postroom.settings import QueueSettings, RetentionSettings, WorkerSettings
from postroom.switchboard.ingest import known_requests
from postroom.switchboard.retention import Kept, Pruned, RetentionRule, certified, prune, prune_handler, years_before

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULE = RetentionRule.from_settings(RetentionSettings(domain_years={"Bank.example": 10, "promo.bank.example": 1}))


def kept(days: float, **changes: Any) -> Kept:
    values: dict[str, Any] = {
        "id": new_id(),
        "tier": IngestionTier.FULL,
        "sender": "a@shop.example",
        "category": None,
        "accepted_at": NOW - timedelta(days=days),
        "raw_by_ingest": False,
        "mailbox": "me@example.com",
        "source_id": new_id(),
        "is_decided": True,
    }
    return Kept(**values | changes)


@pytest.mark.req("BF-21")
@pytest.mark.parametrize(
    ("mail", "is_over"),
    [
        (kept(91, tier=IngestionTier.METADATA), True),
        (kept(90, tier=IngestionTier.METADATA), False),
        (kept(91, tier=IngestionTier.METADATA, category="finance", sender="a@bank.example"), True),
        (kept(50_000), False),
        (kept(50_000, category="health"), False),
        (kept(7 * 366, category="finance"), True),
        (kept(7 * 365, category="finance"), False),
        (kept(2 * 366, category="travel"), True),
        (kept(8 * 366, category="finance", sender="a@mail.bank.example"), False),
        (kept(11 * 366, category="health", sender="a@bank.example"), True),
        (kept(366, sender="a@promo.bank.example"), True),
        (kept(366, sender="a@notbank.example"), False),
    ],
)
def test_tier_domain_and_category_decide_how_long_mail_is_kept(mail: Kept, is_over: bool) -> None:
    assert RULE.is_over(mail, NOW) is is_over


@given(days=st.integers(0, 40_000), category=st.sampled_from([None, "finance", "health", "travel", "other"]))
def test_nothing_past_its_time_lies_beyond_the_horizon(days: int, category: str | None) -> None:
    for tier in IngestionTier:
        mail = kept(days, tier=tier, category=category)
        horizon = RULE.horizon(tier, NOW)
        assert not RULE.is_over(mail, NOW) or (horizon is not None and mail.accepted_at < horizon)


def test_a_year_before_a_leap_day_is_a_day() -> None:
    assert years_before(datetime(2024, 2, 29, tzinfo=UTC), 1) == datetime(2023, 2, 28, tzinfo=UTC)
    assert years_before(datetime(2024, 2, 29, tzinfo=UTC), 4) == datetime(2020, 2, 29, tzinfo=UTC)


def put(tx: Tx, days: int, *, is_decided: bool = True, **changes: Any) -> str:
    """A message taken in so many days ago, with all that hangs on it."""
    message_id, at = new_id(), NOW - timedelta(days=days)
    values: dict[str, Any] = {
        "id": message_id,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": "me@example.com",
        "external_event_id": message_id,
        "idempotency_key": message_id,
        "sender_identity": "a@shop.example",
        "ingestion_tier": "full",
        "policy_tier": "default",
        "observed_at": at,
        "received_at": NOW - timedelta(days=9_000),
        "accepted_at": at,
    }
    tx.execute(messages.insert().values(**values | changes))
    inbox = {"request_id": new_id(), "idempotency_key": message_id, "accepted_at": at, "accepted_from": "gmail"}
    tx.execute(ingest_inbox.insert().values(**inbox, message_id=message_id))
    if is_decided:
        decision = {"id": new_id(), "source": "llm", "action": "none", "reason": "dear doctor", "created_at": at}
        tx.execute(decisions.insert().values(**decision, message_id=message_id))
    call = {"provider": "sim", "model": "m", "input_tokens": 1, "output_tokens": 1, "cost_microdollars": 7}
    more = {"latency_ms": 1, "outcome": "ok", "prompt": "dear doctor", "created_at": at}
    tx.execute(model_calls.insert().values(id=new_id(), message_id=message_id, **call, **more))
    return message_id


def ids(tx: Tx) -> set[str]:
    return set(tx.execute(select(messages.c.id)).scalars())


@pytest.mark.req("BF-21")
async def test_what_is_past_its_time_goes_with_all_that_hangs_on_it_but_its_cost(
    database: Database, clock: ManualClock
) -> None:
    old = await database.write(lambda tx: put(tx, 100, ingestion_tier="metadata", backfill_job_id=new_id()))
    lean = await database.write(lambda tx: put(tx, 3_000, category="finance", raw_by_ingest=True))
    young = await database.write(lambda tx: put(tx, 80, ingestion_tier="metadata"))
    dry = await prune(database, RULE, clock, dry_run=True)
    assert await database.read(ids) == {old, lean, young}
    real = await prune(database, RULE, clock)
    assert await database.read(ids) == {young}
    assert real == Pruned(False, 1, 1, {"none": 1, "finance": 1}, raw_kept=1)
    assert (dry.metadata, dry.full, dry.by_category) == (real.metadata, real.full, real.by_category)
    rows = await database.read(lambda tx: tx.execute(select(ingest_inbox.c.message_id)).scalars().all())
    assert rows == [young]
    calls = await database.read(
        lambda tx: tx.execute(
            select(model_calls.c.message_id, model_calls.c.prompt, model_calls.c.cost_microdollars)
        ).all()
    )
    assert sorted(calls, key=str) == sorted([(young, "dear doctor", 7), (None, None, 7), (None, None, 7)], key=str)
    page = await database.read(lambda tx: list_entries(tx, AuditFilter(action="retention.prune")))
    assert [(entry.after or {})["full"] for entry in page.entries] == [1]


@pytest.mark.req("BF-21")
async def test_a_message_with_a_removal_certificate_stays_however_old(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    def fill(tx: Tx) -> tuple[str, str, str]:
        mine = put(tx, 5_000, category="finance", external_event_id="18c1")
        same_id_elsewhere = put(
            tx, 5_000, category="finance", external_event_id="18c1", endpoint_identity="b@x.example"
        )
        no_mailbox = put(tx, 5_000, category="finance", external_event_id="18c1", endpoint_identity="+49 30 1234")
        return mine, same_id_elsewhere, no_mailbox

    mine, _, _ = await database.write(fill)
    with Certificates(tmp_path, "me@example.com") as book:
        proof = ArchiveProof("18c1", "18c1", "aa" * 32, 1, "me@example.com/2012.db", 1, Provenance.API)
        book.certify("one", Removal(RemovalAction.DELETE), [proof], 1, NOW)
    pruned = await prune(database, RULE, clock, protected=certified(FileArchive(tmp_path)))
    assert await database.read(ids) == {mine}
    assert (pruned.full, pruned.protected) == (2, 1)


@pytest.mark.req("BF-21")
async def test_mail_that_nothing_has_decided_stays_however_old(database: Database, clock: ManualClock) -> None:
    waiting = await database.write(lambda tx: put(tx, 5_000, category="finance", is_decided=False))
    pruned = await prune(database, RULE, clock)
    assert (pruned.total, pruned.undecided) == (0, 1)
    assert await database.read(ids) == {waiting}


@pytest.mark.req("BF-21")
async def test_mail_that_waits_for_a_person_or_an_action_stays_until_that_is_over(
    database: Database, clock: ManualClock
) -> None:
    account = await database.write(lambda tx: add_account(tx, NewAccount("me@example.com", "https://x.test"), NOW))

    def fill(tx: Tx) -> tuple[str, str]:
        reviewed, approved = (put(tx, 100, ingestion_tier="metadata") for _ in range(2))
        tx.execute(update(decisions).where(decisions.c.message_id == reviewed).values(needs_review=True))
        held = {
            "account_id": account.id,
            "gmail_id": approved,
            "origin": "rule",
            "type": "trash",
            "wanted_by": "a rule",
        }
        times = {"created_at": NOW, "updated_at": NOW}
        tx.execute(
            actions.insert().values(id=new_id(), message_id=approved, status="approved_pending", **held, **times)
        )
        return reviewed, approved

    reviewed, approved = await database.write(fill)
    pruned = await prune(database, RULE, clock)
    assert (pruned.total, pruned.undecided) == (0, 2)
    assert await database.read(ids) == {reviewed, approved}
    await database.write(lambda tx: tx.execute(update(decisions).values(reviewed_at=NOW)))
    await database.write(lambda tx: tx.execute(update(actions).values(status="rejected")))
    assert (await prune(database, RULE, clock)).metadata == 2


@pytest.mark.req("BF-21", "BF-13")
async def test_a_job_that_meets_pruned_mail_again_finds_it_known(database: Database, clock: ManualClock) -> None:
    key = await database.write(lambda tx: put(tx, 5_000, category="finance"))
    [first] = await database.read(lambda tx: tx.execute(select(ingest_inbox.c.request_id)).scalars().all())
    await prune(database, RULE, clock)
    assert await database.read(ids) == set()
    assert await database.read(lambda tx: known_requests(tx, [key, "another"])) == {key: first}


@pytest.mark.req("BF-21")
async def test_old_mail_that_was_taken_in_a_week_ago_is_kept_as_long_as_new_mail(
    database: Database, clock: ManualClock
) -> None:
    await database.write(lambda tx: put(tx, 8, category="travel"))
    await database.write(lambda tx: put(tx, 8, ingestion_tier="metadata"))
    assert (await prune(database, RULE, clock)).total == 0


def test_what_is_kept_for_how_long_can_be_said_before_a_job_is_agreed_to() -> None:
    today = date(2024, 2, 29)
    assert [term.describe(today) for term in RULE.terms(["finance", "health"])] == [
        "finance: kept for 7 years, removed from 2031-02-28 on",
        "health: kept for ever",
        "mail of bank.example: kept for 10 years, removed from 2034-02-28 on",
        "mail of promo.bank.example: kept for a year, removed from 2025-02-28 on",
        "mail kept by its headers only: kept for 90 days, removed from 2024-05-29 on",
    ]
    assert "other mail: kept for ever" in [term.describe(today) for term in RULE.terms([])]


@pytest.mark.req("BF-21")
async def test_more_than_a_page_is_pruned_and_what_stays_between_is_passed(
    database: Database, clock: ManualClock
) -> None:
    def fill(tx: Tx) -> None:
        for number in range(620):
            put(tx, 3_000, category="finance" if number % 31 else "health")

    await database.write(fill)
    assert (await prune(database, RULE, clock)).full == 600
    assert len(await database.read(ids)) == 20
    assert (await prune(database, RULE, clock)).total == 0


@pytest.mark.req("BF-21")
async def test_the_scheduled_job_prunes_and_reports_what(database: Database, clock: ManualClock) -> None:
    await database.write(lambda tx: put(tx, 100, ingestion_tier="metadata"))
    queue = JobQueue(database, JobCatalogue([RETENTION_PRUNE]), clock)
    handlers = {RETENTION_PRUNE.name: prune_handler(RULE)}
    answers = await queue.enqueue(NewJob(RETENTION_PRUNE.name, {"dry_run": True}), NewJob(RETENTION_PRUNE.name))
    await Worker(queue, handlers, WorkerSettings(concurrency=1), QueueSettings(), until_idle=True).run()
    for answer, dry_run in zip(answers, (True, False), strict=True):
        job, _ = await database.read(lambda tx, job_id=answer.job_id: show_job(tx, job_id))  # type: ignore[misc]
        assert job.state is JobState.COMPLETED
        assert (job.result["metadata"], job.result["dry_run"]) == (1, dry_run)
    assert await database.read(ids) == set()
