"""Mail on demand (BF-17): the archive is searched first, then a worker searches the mailboxes and ingests matches.
`SourceSearch` is the second half alone, for a question about mail (`app/owner_tools/asking_tools.py`).

The reply waits for the worker only so long; a search that takes longer is reported as under way and continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import select

from postroom.accounts.account import Account, list_accounts
from postroom.archive.messages import account_name
from postroom.archive.search import Search, SearchHit
from postroom.contract.agent import OnDemandMail, OnDemandReply
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import BadInput
from postroom.domain.jobs import ON_DEMAND
from postroom.domain.roles import Caller
from postroom.domain.validation import MOST_RESULTS
from postroom.queue import JobQueue, JobState, NewJob
from postroom.queue.enqueue import HIGHEST_PRIORITY
from postroom.queue.inspection import JobRecord, show_job
from postroom.queue.job import FINISHED

LONGEST_WAIT = timedelta(seconds=30)
_LOOK_EVERY_S = 0.2


class OnDemandSearch:
    def __init__(self, queue: JobQueue, search: Search, patience: timedelta = LONGEST_WAIT) -> None:
        self._queue = queue
        self._search = search
        self._source = SourceSearch(queue, patience)

    async def search_and_ingest(self, query: str, max_results: int, caller: Caller) -> OnDemandReply:
        """What was found, newest first, and what of it was ingested because of the search."""
        if not 1 <= max_results <= MOST_RESULTS:
            raise BadInput("max_results", f"{max_results} is not between 1 and {MOST_RESULTS}")
        if not query.strip():
            raise BadInput("query", "is empty")
        accounts = await self._source.accounts(caller.endpoint_identity)
        hits = await asyncio.to_thread(self._in_archive, query, max_results, caller)
        began = self._queue.clock.now()
        records = await self._source.search(accounts, query, max_results)
        found = await self._queue.database.read(lambda tx: _gathered(tx, hits, records, accounts, began))
        return _answer(found[:max_results], hits, records, accounts)

    def _in_archive(self, query: str, limit: int, caller: Caller) -> tuple[SearchHit, ...]:
        only = None if caller.endpoint_identity is None else [caller.endpoint_identity]
        return self._search.search(query, accounts=only, limit=limit).hits


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What searches of the mailboxes brought."""

    mailboxes: tuple[str, ...] = ()
    """Those that were searched, or are being searched."""
    new: tuple[OnDemandMail, ...] = ()
    """Ingested because of these searches, each once, in the order of the searches."""
    under_way: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class SourceSearch:
    """Has a worker search the mailboxes themselves, and ingest what matches."""

    def __init__(self, queue: JobQueue, patience: timedelta = LONGEST_WAIT) -> None:
        self._queue = queue
        self._patience = patience

    async def take_in(self, queries: Sequence[str], most: int, mailbox: str | None = None) -> TakenIn:
        """The searches one after the other, until one finds `most` messages. One that fails, or is not over when the
        time for all of them together is up, is the last."""
        accounts = await self.accounts(mailbox)
        clock = self._queue.clock
        began, deadline = clock.now(), clock.monotonic() + self._patience.total_seconds()
        gathered = _Gathered(tuple(account.email for account in accounts))
        for query in queries if accounts else ():
            records = await self.search(accounts, query, most, deadline)
            found = await self._queue.database.read(
                partial(_gathered, hits=(), records=records, accounts=accounts, began=began)
            )
            answer = _answer(found, (), records, accounts)
            gathered.add(answer)
            if not answer.is_complete or _matches(records) >= most:
                break
        return gathered.taken_in()

    async def accounts(self, mailbox: str | None) -> list[Account]:
        known = await self._queue.database.read(list_accounts)
        if mailbox is None:
            return known
        mine = account_name(mailbox)
        return [account for account in known if account_name(account.email) == mine]

    async def search(
        self, accounts: Sequence[Account], query: str, max_results: int, deadline: float | None = None
    ) -> list[JobRecord]:
        """A job for each mailbox, once all have ended or the time is up."""
        if deadline is None:
            deadline = self._queue.clock.monotonic() + self._patience.total_seconds()
        return await self._wait_for(await self._send_for(accounts, query, max_results), deadline)

    async def _send_for(self, accounts: Sequence[Account], query: str, max_results: int) -> list[str]:
        """Ahead of other work: a person is waiting."""
        jobs = [
            NewJob(
                ON_DEMAND.name,
                {"account_id": account.id, "query": query, "max_results": max_results},
                priority=HIGHEST_PRIORITY,
            )
            for account in accounts
        ]
        return [answer.job_id for answer in await self._queue.enqueue(*jobs)] if jobs else []

    async def _wait_for(self, job_ids: Sequence[str], deadline: float) -> list[JobRecord]:
        clock, database = self._queue.clock, self._queue.database
        while True:
            records = await database.read(lambda tx: [show_job(tx, job_id)[0] for job_id in job_ids])
            left = deadline - clock.monotonic()
            if left <= 0 or all(record.state in FINISHED for record in records):
                return records
            await clock.sleep(min(_LOOK_EVERY_S, left))


@dataclass(slots=True)
class _Gathered:
    mailboxes: tuple[str, ...]
    new: dict[tuple[str, str | None], OnDemandMail] = field(default_factory=dict)
    under_way: dict[str, None] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)

    def add(self, answer: OnDemandReply) -> None:
        self.new |= {(mail.account, mail.gmail_id): mail for mail in answer.messages if mail.newly_ingested}
        self.under_way |= dict.fromkeys(answer.under_way)
        self.problems |= dict.fromkeys(answer.problems)

    def taken_in(self) -> TakenIn:
        return TakenIn(self.mailboxes, tuple(self.new.values()), tuple(self.under_way), tuple(self.problems))


def _matches(records: Sequence[JobRecord]) -> int:
    return sum(len(_result(record).get("gmail_ids", ())) for record in records)


def _gathered(
    tx: Tx, hits: Sequence[SearchHit], records: Sequence[JobRecord], accounts: Sequence[Account], began: datetime
) -> list[OnDemandMail]:
    """Hits of the archive and of the mailboxes as one list, each message once, newest first."""
    email_of = {account.id: account_name(account.email) for account in accounts}
    wanted: dict[tuple[str, str], SearchHit | None] = {(hit.message.account, hit.message.key): hit for hit in hits}
    for record in records:
        for gmail_id in _result(record).get("gmail_ids", ()):
            wanted.setdefault((email_of[record.payload["account_id"]], str(gmail_id)), None)
    taken = _taken_in(tx, sorted({event for _, event in wanted}), began)
    found = [_found(key, hit, taken.get(key)) for key, hit in wanted.items()]
    return sorted((mail for mail in found if mail is not None), key=lambda mail: mail.received_at, reverse=True)


def _taken_in(tx: Tx, event_ids: Sequence[str], began: datetime) -> dict[tuple[str, str], OnDemandMail]:
    """Those of the messages that were ingested, by mailbox and source id."""
    if not event_ids:
        return {}
    rows = tx.execute(select(messages).where(messages.c.external_event_id.in_(event_ids)))
    return {
        (account_name(row.endpoint_identity), row.external_event_id): OnDemandMail(
            account=row.endpoint_identity,
            gmail_id=row.external_event_id,
            key=row.archive_key,
            message_id=row.id,
            received_at=row.received_at,
            sender=row.sender_identity,
            subject=row.subject or "",
            newly_ingested=row.accepted_at >= began,
        )
        for row in rows
    }


def _found(key: tuple[str, str], hit: SearchHit | None, taken: OnDemandMail | None) -> OnDemandMail | None:
    if taken is not None or hit is None:
        return taken  # a message that the tier policy left out is not here, and is not shown
    mail = hit.message
    return OnDemandMail(
        account=key[0],
        gmail_id=mail.gmail_id,
        key=mail.key,
        message_id=None,
        received_at=mail.date,
        sender=mail.sender,
        subject=mail.subject,
        newly_ingested=False,
    )


def _answer(
    found: Sequence[OnDemandMail], hits: Sequence[SearchHit], records: Sequence[JobRecord], accounts: Sequence[Account]
) -> OnDemandReply:
    email_of = {account.id: account.email for account in accounts}
    waiting = [record for record in records if record.state not in FINISHED]
    failed = [record for record in records if record.state in (JobState.FAILED, JobState.CANCELED)]
    return OnDemandReply(
        messages=list(found),
        in_archive=len(hits),
        newly_ingested=sum(int(_result(record).get("ingested", 0)) for record in records),
        is_complete=not waiting and not failed,
        under_way=[email_of[record.payload["account_id"]] for record in waiting],
        problems=[
            f"{email_of[record.payload['account_id']]}: {record.last_error or record.state}" for record in failed
        ],
    )


def _result(record: JobRecord) -> Mapping[str, Any]:
    return record.result if isinstance(record.result, Mapping) else {}
