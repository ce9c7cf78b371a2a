"""Mail on demand: archive first, then a worker, and an answer in time whatever the worker does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.search import Search
from postroom.archive.shards.searching import search_shards
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.db import Database
from postroom.db.tables.mail import messages
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.ids import new_id
from postroom.domain.jobs import ON_DEMAND
from postroom.domain.roles import Caller, Role
from postroom.queue import JobCatalogue, JobContext, JobQueue
from postroom.switchboard.on_demand import OnDemandSearch
from tests.support.queues import running

ME = "me@example.org"
AGENT = Caller(Role.AGENT, "assistant")
OLD = datetime(2020, 5, 1, tzinfo=UTC)


@pytest.fixture
def search(tmp_path: Path) -> Any:
    root = tmp_path / "archive"
    raw = b"From: Dr. Smith <smith@clinic.example>\r\nSubject: Your visit\r\n\r\nUntil Monday.\r\n"
    with FileArchiveWriter(root) as archive:
        archive.store(ME, [IncomingMail(raw, Provenance.API, "a" * 16, "t", frozenset({"INBOX"}), OLD)])
    with search_shards(root) as opened:
        yield opened


@pytest.fixture
async def account(database: Database) -> Account:
    new = NewAccount(ME, "https://gmail.googleapis.com")
    return await database.write(lambda tx: add_account(tx, new, datetime.now(UTC)))


def taken_in(account: Account, gmail_id: str, received: datetime, accepted: datetime) -> dict[str, Any]:
    return {
        "id": new_id(),
        "account_id": account.id,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": ME,
        "external_event_id": gmail_id,
        "idempotency_key": f"gmail:{ME}:{gmail_id}",
        "sender_identity": "smith@clinic.example",
        "subject": "From the mailbox",
        "normalized_text": "Hello",
        "ingestion_tier": "full",
        "policy_tier": "default",
        "observed_at": received,
        "received_at": received,
        "accepted_at": accepted,
    }


class Pass:
    """What the connector's on-demand pass does, as far as this side can see."""

    def __init__(self, account: Account, *gmail_ids: str) -> None:
        self.account, self.gmail_ids = account, gmail_ids
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, context: JobContext) -> dict[str, Any]:
        self.asked.append(context.job.payload)
        now = context.queue.clock.now()
        rows = [taken_in(self.account, gmail_id, now - timedelta(days=1), now) for gmail_id in self.gmail_ids]
        await context.write(lambda tx: tx.execute(messages.insert(), rows))
        return {"gmail_ids": list(self.gmail_ids), "ingested": len(rows), "duplicates": 0, "skipped": 0, "failed": 0}


@pytest.fixture
def queue(database: Database) -> JobQueue:
    return JobQueue(database, JobCatalogue([ON_DEMAND]), SystemClock())


@pytest.mark.req("BF-17")
async def test_the_archive_and_the_mailbox_answer_together(queue: JobQueue, search: Search, account: Account) -> None:
    worker = Pass(account, "b" * 16, "c" * 16)
    async with running(queue, {ON_DEMAND.name: worker}):
        answer = (await OnDemandSearch(queue, search).search_and_ingest("smith", 50, AGENT)).wire()
    assert worker.asked == [{"account_id": account.id, "query": "smith", "max_results": 50}]
    assert [(mail["gmail_id"][0], mail["newly_ingested"]) for mail in answer["messages"]][-1] == ("a", False)
    assert sorted(mail["gmail_id"][0] for mail in answer["messages"]) == ["a", "b", "c"]
    assert (answer["in_archive"], answer["newly_ingested"], answer["is_complete"]) == (1, 2, True)
    assert answer["messages"][-1]["message_id"] is None
    assert answer["messages"][0]["message_id"] is not None


@pytest.mark.req("BF-17")
async def test_a_message_of_both_is_named_once(queue: JobQueue, search: Search, account: Account) -> None:
    async with running(queue, {ON_DEMAND.name: Pass(account, "a" * 16)}):
        answer = (await OnDemandSearch(queue, search).search_and_ingest("smith", 50, AGENT)).wire()
    [mail] = answer["messages"]
    assert (mail["subject"], mail["newly_ingested"]) == ("From the mailbox", True)


@pytest.mark.req("BF-17")
async def test_no_more_is_given_than_was_asked_for(queue: JobQueue, search: Search, account: Account) -> None:
    async with running(queue, {ON_DEMAND.name: Pass(account, "b" * 16, "c" * 16)}):
        answer = (await OnDemandSearch(queue, search).search_and_ingest("smith", 1, AGENT)).wire()
    assert len(answer["messages"]) == 1


@pytest.mark.req("BF-17")
async def test_without_a_worker_the_archives_answer_comes_after_thirty_seconds(
    database: Database, search: Search, account: Account, clock: ManualClock
) -> None:
    queue = JobQueue(database, JobCatalogue([ON_DEMAND]), clock)
    started = clock.monotonic()
    answer = (await OnDemandSearch(queue, search).search_and_ingest("smith", 50, AGENT)).wire()
    assert 30 <= clock.monotonic() - started < 31
    assert (len(answer["messages"]), answer["is_complete"], answer["under_way"]) == (1, False, [ME])


@pytest.mark.req("BF-17")
async def test_a_mailbox_that_cannot_be_searched_is_a_problem_and_no_error(
    queue: JobQueue, search: Search, account: Account
) -> None:
    async def broken(context: JobContext) -> None:
        raise Fatal("The login was taken back.")

    async with running(queue, {ON_DEMAND.name: broken}):
        answer = (await OnDemandSearch(queue, search).search_and_ingest("smith", 50, AGENT)).wire()
    assert (len(answer["messages"]), answer["is_complete"]) == (1, False)
    assert answer["problems"] == [f"{ME}: Fatal: The login was taken back."]


async def test_without_an_account_the_archive_alone_answers(queue: JobQueue, search: Search) -> None:
    answer = (await asyncio.wait_for(OnDemandSearch(queue, search).search_and_ingest("smith", 50, AGENT), 10)).wire()
    assert (len(answer["messages"]), answer["is_complete"], answer["newly_ingested"]) == (1, True, 0)


async def test_a_caller_of_one_mailbox_searches_no_other(queue: JobQueue, search: Search, account: Account) -> None:
    other = Caller(Role.AGENT, "assistant", endpoint_identity="other@example.org")
    answer = (await OnDemandSearch(queue, search).search_and_ingest("smith", 50, other)).wire()
    assert answer["messages"] == []


@pytest.mark.req("BF-17")
@pytest.mark.parametrize(
    ("query", "most", "field"),
    [("smith", 0, "max_results"), ("smith", 51, "max_results"), (" ", 5, "query"), ("form:smith", 5, "query")],
)
async def test_a_wrong_question_is_refused_before_anything_is_done(
    queue: JobQueue, search: Search, account: Account, query: str, most: int, field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        await OnDemandSearch(queue, search).search_and_ingest(query, most, AGENT)
    assert refused.value.field == field
