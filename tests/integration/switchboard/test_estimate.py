"""Estimates: exact where the archive holds the days, near where the source is asked, and honest about which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from benchmarks.categories import NOT_ELIGIBLE

from postroom.accounts.account import NewAccount, add_account
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.audit import SYSTEM
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import BACKFILL_JOBS, ingest_inbox, messages, pruned_messages
from postroom.db.tables.triage import model_calls
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.domain.jobs import CATALOGUE
from postroom.domain.model_costs import CostMeter, FixedTariff
from postroom.mail.categories import facts_of, shipped
from postroom.mail.headers import split_headers
from postroom.mail.tier_policy import SEED, TierPolicy, Treatment
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.methods import ProfileName
from postroom.queue import JobQueue
from postroom.settings import ModelSettings, RetentionSettings, Settings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from postroom.switchboard import definitions
from postroom.switchboard.backfill.counting import FULL, BackfillTally, RuleTests, count_at_source
from postroom.switchboard.backfill.job import BackfillJob, find_job
from postroom.switchboard.backfill.terms import NewBackfill
from postroom.switchboard.estimate import Estimator, expected_rows, side_by_side
from postroom.switchboard.retention import RetentionRule
from postroom.switchboard.spending import ModelBudget
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from postroom.triage.rules.trial import decided_by_rules
from tests.support.archives import ME, incoming
from tests.support.gmail_sim import client_of

BOX = GeneratedMailbox(600, 42, ME)
FROM, TO = date(2023, 1, 1), date(2025, 12, 31)
WANTED = NewBackfill("gmail", ME, FROM, TO, ("finance", "health"))
KEPT = RetentionRule.from_settings(RetentionSettings())
METER = CostMeter(FixedTariff(Decimal("0.30"), Decimal("2.50")), 500)


class Mailboxes:
    """Opens the client it was given; asks that it is not opened where it should not be."""

    def __init__(self, client: GmailClient | None = None) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self, endpoint_identity: str) -> AsyncIterator[GmailMailbox]:
        assert self._client is not None, "the source was asked"
        yield GmailMailbox(self._client)


def truth(wanted: NewBackfill, policy: TierPolicy | None = SEED) -> int:
    """How many messages the categories select and the policy does not skip, by looking at each."""
    start = datetime.combine(wanted.date_from, datetime.min.time(), UTC)
    end = datetime.combine(wanted.date_to + timedelta(days=1), datetime.min.time(), UTC)
    count = 0
    for index in range(BOX.count()):
        summary = BOX.summary(index)
        if summary.label_ids & NOT_ELIGIBLE or not (
            start.timestamp() * 1_000 <= summary.internal_date < end.timestamp() * 1_000
        ):
            continue
        headers, _ = split_headers(BOX.raw(index), [])
        facts = facts_of(headers, labels=summary.label_ids)
        is_skipped = policy is not None and policy.decide(headers, summary.label_ids).treatment is Treatment.SKIP
        count += bool(shipped().matching(facts, wanted.target_categories)) and not is_skipped
    return count


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("estimate") / "archive"
    with FileArchiveWriter(root) as writer:
        writer.store(ME, [incoming(BOX, index) for index in range(BOX.count())])
    return root


@pytest.fixture
async def account(database: Database, clock: ManualClock) -> str:
    new = NewAccount(ME, "https://gmail.googleapis.com", ProfileName.MAY_2026)
    return (await database.write(lambda tx: add_account(tx, new, clock.now()))).id


async def walked_until(database: Database, account: str, day: date, clock: ManualClock) -> None:
    watermark = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    row = {
        "account_id": account,
        "walk": 1,
        "walk_started_at": clock.now(),
        "granularity": "month",
        "until": watermark,
        "frontier": watermark,
        "watermark": watermark,
        "compared_walk": 0,
        "counters": "{}",
        "updated_at": clock.now(),
    }
    await database.write(lambda tx: tx.execute(sync_states.insert().values(row)))


def estimator(
    database: Database,
    root: Path,
    clock: ManualClock,
    client: GmailClient | None = None,
    *,
    meter: CostMeter = METER,
    rules: RuleTests | None = None,
    **model: Any,
) -> Estimator:
    budget = ModelBudget(JobQueue(database, CATALOGUE, clock), Settings(model=ModelSettings(**model)))
    return Estimator(budget, FileArchive(root), Mailboxes(client), shipped(), meter, KEPT, rules)


@pytest.mark.req("BF-19")
async def test_where_the_archive_holds_the_days_the_count_is_exact_and_the_source_is_not_asked(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    found = await estimator(database, archive, clock).of(WANTED)
    assert found.counts.is_exact
    assert found.counts.messages == truth(WANTED) > 20
    assert found.cost == found.counts.full * METER.tariff.cost(found.tokens_each) if METER.tariff else False
    told = found.reply().wire()
    assert (told["counted_in"], told["binds"]) == ("archive", "rate_limit_per_hour")
    assert told["seconds"] == -(-found.counts.messages * 3_600 // 100)
    assert told["duration"]["by_quota_s"] == 0


@pytest.mark.req("BF-19")
async def test_where_the_archive_lacks_the_last_day_the_source_is_asked_and_the_count_is_near(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, TO, clock)
    async with running_sim(BOX) as sim, client_of(sim) as client:
        found = await estimator(database, archive, clock, client).of(WANTED)
        calls = sim.control.state().calls
        tally = BackfillTally(WANTED, shipped(), lambda headers, labels: FULL, ())
        sampled = await count_at_source(Mailboxes(client), tally, sample_size=25)
    assert abs(found.counts.messages - truth(WANTED)) <= 0.05 * truth(WANTED)
    assert (calls["messages.list"], calls["messages.get"] <= 200) == (1, True)
    assert found.reply().wire()["counted_in"] == "source"
    assert found.duration.by_quota_s > 0
    assert not sampled.is_exact
    assert abs(sampled.messages - truth(WANTED, policy=None)) <= sampled.margin


@pytest.mark.req("BF-19")
async def test_the_tier_policy_decides_what_costs_money(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)

    rules = [{"tier": 2, "condition": {"subject": "[aeiou]$"}, "note": "Ends in a vowel"}]
    await database.write(lambda tx: definitions.replace_policy(tx, rules, SYSTEM, clock.now()))
    found = (await estimator(database, archive, clock).of(WANTED)).counts
    assert found.messages == truth(WANTED, policy=None)
    assert 0 < found.full < found.messages
    assert found.metadata == found.messages - found.full


@pytest.mark.req("BF-19")
async def test_what_calls_have_taken_so_far_is_what_they_are_expected_to_take(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    before = await estimator(database, archive, clock).of(WANTED)

    def insert(tx: Tx) -> None:
        for number in range(20):
            message_id, words = new_id(), 100 * (number + 1)
            put_message(tx, clock, id=message_id, idempotency_key=message_id, normalized_text="word " * words)
            row = {"provider": "p", "model": "m", "cost_microdollars": 1, "latency_ms": 1, "outcome": "answered"}
            tokens = {"input_tokens": 3_000 + words, "output_tokens": 60, "created_at": clock.now()}
            tx.execute(model_calls.insert().values(row | tokens | {"id": new_id(), "message_id": message_id}))

    await database.write(insert)
    found = await estimator(database, archive, clock).of(WANTED)
    assert found.tokens_each.output == 60
    assert found.tokens_each.input > before.tokens_each.input + 1_200, "these prompts have more besides the mail"


def put_message(tx: Tx, clock: ManualClock, **values: object) -> None:
    row = {
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": ME,
        "external_event_id": new_id(),
        "sender_identity": "a@shop.example",
        "ingestion_tier": "full",
        "policy_tier": "default",
        **dict.fromkeys(("observed_at", "received_at", "accepted_at"), clock.now()),
    }
    tx.execute(messages.insert().values(row | values))


@pytest.mark.req("BF-19")
async def test_mail_that_was_taken_in_before_is_left_out_also_when_retention_removed_it(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    before = (await estimator(database, archive, clock).of(WANTED)).counts
    with FileArchive(archive).reader() as reader:
        walked, _ = reader.walk(ME, FROM, TO, None, 500)
    keys = [f"gmail:{ME}:{message.gmail_id}" for message in walked]

    def know(tx: Tx) -> None:
        for number, key in enumerate(keys):
            known = {"idempotency_key": key, "request_id": new_id()}
            if number % 2:
                tx.execute(pruned_messages.insert().values(**known, pruned_at=clock.now()))
                continue
            message_id = new_id()
            put_message(tx, clock, id=message_id, idempotency_key=key)
            inbox = {"message_id": message_id, "accepted_at": clock.now(), "accepted_from": "gmail"}
            tx.execute(ingest_inbox.insert().values(**known, **inbox))

    await database.write(know)
    found = (await estimator(database, archive, clock).of(WANTED)).counts
    assert found.known > 0
    assert (found.messages + found.known, found.left_out) == (before.messages, before.left_out)


@pytest.mark.req("BF-16", "BF-19")
async def test_each_category_is_counted_from_its_own_first_day_on(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    judge, later = estimator(database, archive, clock), date(2025, 1, 1)
    both = replace(WANTED, category_from={"health": later})
    early = (await judge.of(replace(WANTED, target_categories=("finance",), date_to=date(2024, 12, 31)))).counts
    late = (await judge.of(replace(WANTED, date_from=later))).counts
    assert (await judge.of(both)).counts.messages == early.messages + late.messages
    assert early.messages < (await judge.of(replace(WANTED, date_to=date(2024, 12, 31)))).counts.messages


@pytest.mark.req("BF-19")
async def test_what_a_rule_decides_costs_nothing(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    before = await estimator(database, archive, clock, rules=decided_by_rules).of(WANTED)
    draft = parse_draft({"name": "Vowel", "condition": {"subject_regex": "[aeiou]$"}, "actions": [{"type": "star"}]})
    await database.write(lambda tx: add_rule(tx, draft, SYSTEM, clock.now()))
    found = await estimator(database, archive, clock, rules=decided_by_rules).of(WANTED)
    assert (before.counts.asked, found.counts.full) == (before.counts.full, before.counts.full)
    assert 0 < found.counts.asked < found.counts.full
    assert found.cost == found.counts.asked * METER.tariff.cost(found.tokens_each) if METER.tariff else False
    alone = (await estimator(database, archive, clock).estimate(replace(WANTED, uses_model=False))).wire()
    assert (alone["uses_model"], alone["messages_asked"], alone["cost_microdollars"]) == (False, 0, 0)


@pytest.mark.req("BF-19")
async def test_at_the_source_the_texts_of_some_messages_are_measured(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    async with running_sim(BOX) as sim, client_of(sim) as client:
        at_source = await estimator(database, archive, clock, client).of(WANTED)
    await walked_until(database, account, date(2026, 1, 1), clock)
    in_archive = await estimator(database, archive, clock).of(WANTED)
    assert len(at_source.counts.texts) == min(at_source.counts.asked, 60) > 20
    assert abs((at_source.cost or 0) - (in_archive.cost or 0)) <= 0.1 * (in_archive.cost or 0)


@pytest.mark.req("BF-8", "BF-19")
async def test_a_share_of_the_ceiling_below_the_cap_is_what_a_day_may_cost(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    wanted = replace(WANTED, daily_cost_cap_cents=3, rate_limit_per_hour=100_000)
    cap = (await estimator(database, archive, clock).estimate(wanted)).wire()
    generous = replace(wanted, daily_cost_cap_cents=500)
    share = (await estimator(database, archive, clock, daily_ceiling_cents=5).estimate(generous)).wire()
    assert (cap["binds"], share["binds"]) == ("daily_cost_cap_cents", "daily_ceiling")
    assert cap["seconds"] == share["seconds"] > 0
    with pytest.raises(BadInput, match=r"uses_model: .* raise the ceiling"):
        await estimator(database, archive, clock, daily_ceiling_cents=1).of(generous)


@pytest.mark.req("BF-21", "BF-19")
async def test_an_estimate_says_what_is_removed_and_when(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    told = (await estimator(database, archive, clock).of(WANTED)).reply().wire()
    assert told["retention"] == [
        "finance: kept for 7 years, removed from 2033-01-01 on",
        "health: kept for ever",
        "mail kept by its headers only: kept for 90 days, removed from 2026-04-01 on",
    ]


@pytest.mark.req("BF-19")
async def test_a_tight_cap_binds_and_no_price_means_no_cost(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    tight = replace(WANTED, daily_cost_cap_cents=2, rate_limit_per_hour=100_000)
    assert (await estimator(database, archive, clock).of(tight)).reply().wire()["binds"] == "daily_cost_cap_cents"
    free = estimator(database, archive, clock, meter=CostMeter(None, 500))
    told = (await free.estimate(WANTED)).wire()
    assert (told["cost_cents"], told["price"], told["uses_model"], told["messages_asked"]) == (None, None, False, 0)


async def test_an_unknown_account_or_category_is_refused(database: Database, archive: Path, clock: ManualClock) -> None:
    judge = estimator(database, archive, clock)
    with pytest.raises(NotFound, match="account"):
        await judge.of(WANTED)
    with pytest.raises(BadInput, match="target_categories"):
        await judge.of(replace(WANTED, target_categories=("taxes",)))


@pytest.mark.req("BF-19")
async def test_after_a_job_estimate_and_actual_stand_side_by_side(database: Database, clock: ManualClock) -> None:
    row = {
        "id": new_id(),
        "connector_type": "gmail",
        "endpoint_identity": ME,
        "date_from": FROM,
        "date_to": TO,
        "status": "completed",
        "rows_processed": 90,
        "rows_skipped": 12,
        "spent_microdollars": 1_234,
        "started_at": clock.now(),
        "completed_at": clock.now() + timedelta(seconds=3_000),
        "created_at": clock.now(),
        "updated_at": clock.now(),
        "estimate": {"messages": 100, "messages_left_out": 10, "cost_microdollars": 1_500, "seconds": 3_600},
    }

    def insert(tx: Tx) -> BackfillJob:
        tx.execute(BACKFILL_JOBS[tx.dialect].insert().values(row))
        return find_job(tx, str(row["id"]))

    job = await database.write(insert)
    assert side_by_side(job, 88) == {
        "messages": {"estimated": 100, "actual": 88},
        "left_out": {"estimated": 10, "actual": 12},
        "cost_microdollars": {"estimated": 1_500, "actual": 1_234},
        "seconds": {"estimated": 3_600, "actual": 3_000},
    }
    assert side_by_side(replace(job, estimate=None), 88) is None
    assert (expected_rows(job), expected_rows(replace(job, estimate=None))) == (100, None)
    known = {"messages": 100, "messages_known": 20}
    assert expected_rows(replace(job, estimate=known)) == 120, "it goes through known mail too"
    assert expected_rows(replace(job, estimate={"messages": "many"})) is None
