"""Estimates: exact where the archive holds the days, near where the source is asked, and honest about which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from benchmarks.categories import NOT_ELIGIBLE

from postroom.accounts.account import NewAccount, add_account
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.audit import SYSTEM
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import BACKFILL_JOBS
from postroom.db.tables.triage import model_calls
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.domain.model_costs import CostMeter, FixedTariff
from postroom.mail.categories import facts_of, shipped
from postroom.mail.headers import split_headers
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.quota import ProfileName
from postroom.settings import BackfillSettings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from postroom.switchboard import tier_policy
from postroom.switchboard.backfill.job import BackfillJob, find_job
from postroom.switchboard.backfill.operations import NewBackfill
from postroom.switchboard.estimate import FULL, BackfillTally, Estimator, count_at_source, side_by_side
from tests.support.archives import ME, incoming
from tests.support.gmail_sim import client_of

BOX = GeneratedMailbox(600, 42, ME)
FROM, TO = date(2023, 1, 1), date(2025, 12, 31)
WANTED = NewBackfill("gmail", ME, FROM, TO, ("finance", "health"))
METER = CostMeter(FixedTariff(Decimal("0.30"), Decimal("2.50")), 500)


class Mailboxes:
    """Opens the client it was given; asks that it is not opened where it should not be."""

    def __init__(self, client: GmailClient | None = None) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self, endpoint_identity: str) -> AsyncIterator[GmailMailbox]:
        assert self._client is not None, "the source was asked"
        yield GmailMailbox(self._client)


def truth(wanted: NewBackfill) -> int:
    """How many messages the rules select, by looking at each."""
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
        count += bool(shipped().matching(facts_of(headers), wanted.target_categories))
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


def estimator(database: Database, root: Path, clock: ManualClock, client: GmailClient | None = None) -> Estimator:
    return Estimator(database, FileArchive(root), Mailboxes(client), shipped(), METER, BackfillSettings(), clock)


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
    assert (calls["messages.list"], calls["messages.get"] <= 150) == (1, True)
    assert found.reply().wire()["counted_in"] == "source"
    assert found.duration.by_quota_s > 0
    assert not sampled.is_exact
    assert abs(sampled.messages - truth(WANTED)) <= sampled.margin


@pytest.mark.req("BF-19")
async def test_the_tier_policy_decides_what_costs_money(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)

    rules = [{"tier": 2, "condition": {"subject": "[aeiou]$"}, "note": "Ends in a vowel"}]
    await database.write(lambda tx: tier_policy.replace_policy(tx, rules, SYSTEM, clock.now()))
    found = (await estimator(database, archive, clock).of(WANTED)).counts
    assert found.messages == truth(WANTED)
    assert 0 < found.full < found.messages
    assert found.metadata == found.messages - found.full


@pytest.mark.req("BF-19")
async def test_what_calls_have_taken_so_far_is_what_they_are_expected_to_take(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    row = {"provider": "p", "model": "m", "cost_microdollars": 1, "latency_ms": 1, "outcome": "answered"}
    tokens = {"input_tokens": 4_000, "output_tokens": 60, "created_at": clock.now()}

    def insert(tx: Tx) -> None:
        for _ in range(20):
            tx.execute(model_calls.insert().values(row | tokens | {"id": new_id()}))

    await database.write(insert)
    found = await estimator(database, archive, clock).of(WANTED)
    assert (found.tokens_each.input, found.tokens_each.output) == (4_000, 60)
    assert found.cost == found.counts.full * 1_350


@pytest.mark.req("BF-19")
async def test_a_tight_cap_binds_and_no_price_means_no_cost(
    database: Database, archive: Path, account: str, clock: ManualClock
) -> None:
    await walked_until(database, account, date(2026, 1, 1), clock)
    tight = replace(WANTED, daily_cost_cap_cents=1, rate_limit_per_hour=100_000)
    assert (await estimator(database, archive, clock).of(tight)).reply().wire()["binds"] == "daily_cost_cap_cents"
    free = Estimator(
        database, FileArchive(archive), Mailboxes(), shipped(), CostMeter(None, 500), BackfillSettings(), clock
    )
    told = (await free.estimate(WANTED)).wire()
    assert (told["cost_cents"], told["price"]) == (None, None)


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
    assert side_by_side(job) == {
        "messages": {"estimated": 100, "actual": 90},
        "left_out": {"estimated": 10, "actual": 12},
        "cost_microdollars": {"estimated": 1_500, "actual": 1_234},
        "seconds": {"estimated": 3_600, "actual": 3_000},
    }
    assert side_by_side(replace(job, estimate=None)) is None
