"""What holds of the whole product whatever has happened to it: nothing lost, nothing doubled, no cap passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from postroom.db.tables.actions import actions
from postroom.db.tables.backfill import BACKFILL_JOBS, backfill_spend
from postroom.db.tables.mail import ingest_inbox, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.switchboard import audit_log
from postroom.db.tables.sync import sync_states
from postroom.db.tables.triage import decisions, model_calls
from postroom.db.tables.web import discovered_items, evidence
from postroom.domain.actions import ActionStatus, ActionType
from postroom.queue import JobState
from tests.support.whole_product import Mail, WholeProduct


@dataclass
class Watch:
    """Looks again and again while things go wrong; what may only grow never shrinks, and no cap is passed."""

    product: WholeProduct
    watermark: int = 0
    audited: int = 0
    looks: int = 0

    async def look(self) -> None:
        self.looks += 1
        for row in await self.product.rows(select(backfill_spend)):
            spent = row.reserved_microdollars + row.settled_microdollars
            assert spent <= await self._cap(row.job_id), "the day's budget was passed"
        [(watermark,)] = await self.product.rows(select(func.coalesce(func.max(sync_states.c.watermark), 0)))
        [(audited,)] = await self.product.rows(select(func.count()).select_from(audit_log))
        assert watermark >= self.watermark, "the watermark went back"
        assert audited >= self.audited, "the audit log lost entries"
        self.watermark, self.audited = watermark, audited

    async def _cap(self, job_id: str) -> int:
        table = BACKFILL_JOBS[self.product.database.dialect]
        [(cents,)] = await self.product.rows(select(table.c.daily_cost_cap_cents).where(table.c.id == job_id))
        return int(cents) * 10_000


async def broken(product: WholeProduct) -> list[str]:
    """Every promise that does not hold, in words; to be asked when all is done."""
    truth = {mail["id"]: mail for mail in await product.gmail.truth()}
    return [
        *await _mail_is_taken_in_once(product),
        *await _everything_is_decided_once(product),
        *_labels_are_as_decided(product, truth),
        *await _letters_went_out_once(product, truth),
        *await _money_agrees(product),
        *await _pages_are_kept_once(product),
        *await _jobs_are_over(product),
    ]


async def _mail_is_taken_in_once(product: WholeProduct) -> Iterator[str]:
    rows = await product.rows(select(messages.c.external_event_id, messages.c.idempotency_key))
    events = Counter(row.external_event_id for row in rows)
    [(inbox,)] = await product.rows(select(func.count()).select_from(ingest_inbox))
    problems = [f"{key} is there {times} times" for key, times in events.items() if times > 1]
    problems += [f"{key} was delivered and is not there" for key in product.delivered if key not in events]
    problems += [f"{inbox} inbox rows for {len(rows)} messages"] if inbox != len(rows) else []
    return iter(problems)


async def _everything_is_decided_once(product: WholeProduct) -> Iterator[str]:
    query = select(messages.c.external_event_id, decisions.c.source).join(
        decisions, decisions.c.message_id == messages.c.id
    )
    sources = {row.external_event_id: row.source for row in await product.rows(query)}
    return (
        f"{key} ({kind}) was decided by {sources.get(key)}"
        for key, kind in product.delivered.items()
        if sources.get(key) != ("llm" if kind is Mail.QUESTION else "deterministic")
    )


def _labels_are_as_decided(product: WholeProduct, truth: dict[str, dict[str, Any]]) -> Iterator[str]:
    for key, kind in product.delivered.items():
        labels = set(truth[key]["label_ids"])
        if kind is Mail.RECEIPT and not any(label.startswith("Label_") for label in labels):
            yield f"{key} should have its label, and has {sorted(labels)}"
        if kind is Mail.DIGEST and "INBOX" in labels:
            yield f"{key} should have left the inbox"


async def _letters_went_out_once(product: WholeProduct, truth: dict[str, dict[str, Any]]) -> list[str]:
    """Of the mail that is there since the start, none has this label."""
    forwards = await product.rows(select(actions).where(actions.c.type == ActionType.FORWARD))
    unsent = [row.gmail_id for row in forwards if row.status != ActionStatus.COMPLETED]
    sent = [mail for mail in truth.values() if "SENT" in mail["label_ids"] and mail["id"] not in product.at_first]
    problems = [f"{key} was not sent on" for key in unsent]
    if len(sent) != len(forwards) or len(forwards) != len(product.forwarded):
        problems.append(f"{len(sent)} letters for {len(product.forwarded)} wishes ({len(forwards)} recorded)")
    return problems


async def _money_agrees(product: WholeProduct) -> list[str]:
    table = BACKFILL_JOBS[product.database.dialect]
    [job] = await product.rows(select(table).where(table.c.id == product.backfill_id))
    mine = model_calls.c.backfill_job_id == product.backfill_id
    [(paid,)] = await product.rows(select(func.coalesce(func.sum(model_calls.c.cost_microdollars), 0)).where(mine))
    ledger = await product.rows(select(backfill_spend).where(backfill_spend.c.job_id == product.backfill_id))
    settled, reserved = (
        sum(row.settled_microdollars for row in ledger),
        sum(row.reserved_microdollars for row in ledger),
    )
    taken_in = await product.rows(select(func.count()).where(messages.c.backfill_job_id == product.backfill_id))
    problems = []
    if settled < paid:
        problems.append(f"{paid} micro-dollars were paid and {settled} settled")
    if reserved:
        problems.append(f"{reserved} micro-dollars are still reserved")
    if job.rows_processed < taken_in[0][0]:
        problems.append(f"the job counts {job.rows_processed}, and {taken_in[0][0]} messages came of it")
    return problems


async def _pages_are_kept_once(product: WholeProduct) -> list[str]:
    items = await product.rows(select(discovered_items.c.url, discovered_items.c.status, discovered_items.c.error))
    kept = Counter(url for (url,) in await product.rows(select(evidence.c.url)))
    problems = [f"{row.url} is {row.status}: {row.error}" for row in items if row.status == "FAILED"]
    problems += [f"{url} is kept {times} times" for url, times in kept.items() if times > 1]
    if len(items) < product.documents:
        problems.append(f"{len(items)} of {product.documents} pages were found")
    return problems


async def _jobs_are_over(product: WholeProduct) -> list[str]:
    failed = await product.rows(select(jobs.c.type, jobs.c.last_error).where(jobs.c.state == JobState.FAILED))
    return [f"a job {row.type} failed: {row.last_error}" for row in failed]
