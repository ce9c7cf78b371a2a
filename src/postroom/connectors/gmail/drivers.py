"""The passes as durable jobs drive them: a job's payload in, its result out. Knows no queue; whoever wires them does.

history.sync.gmail  {"account_id"}                           -> live pass; its result names a `gap`, if there is one
ingest.gmail        {"account_id", "message_ids"}            -> these messages
backfill.gmail      {"account_id"}                           -> backfill pass, a few minutes at a time
backfill.gmail      {"account_id", "gap"}                    -> live pass that fills this gap, kill switch or not
ondemand.gmail      {"account_id", "query", "max_results"?}  -> on-demand pass
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from postroom.connectors.gmail.arrivals import Tally
from postroom.connectors.gmail.on_demand import MOST_RESULTS
from postroom.connectors.gmail.passes import GmailPasses
from postroom.domain import jobs
from postroom.domain.errors import BadInput

BACKFILL_BUDGET_S = 240.0
"""A backfill gives way after this, to stay within its time limit; the job at hand is kept for the next."""
MOST_IDS = 500
GAP = "gap"
"""In a result: the history id that Gmail has forgotten. In a payload: that it is to be filled from there on."""

Payload = Mapping[str, Any]
Result = dict[str, Any]


async def history_sync(passes: GmailPasses, payload: Payload) -> Result:
    tally = await passes.live(fills_gap=False)
    if not passes.sent_index_is_filled:
        await passes.fill_sent_index()
    return _counts(tally) | ({} if tally.gap is None else {GAP: tally.gap})


async def ingest(passes: GmailPasses, payload: Payload) -> Result:
    ids = payload.get("message_ids")
    if not isinstance(ids, list) or not 0 < len(ids) <= MOST_IDS or not all(isinstance(each, str) for each in ids):
        raise BadInput("message_ids", f"is a list of 1 to {MOST_IDS} Gmail ids")
    return _counts(await passes.ingest(ids))


async def backfill(passes: GmailPasses, payload: Payload) -> Result:
    if payload.get(GAP) is not None:
        return _counts(await passes.live())
    return asdict(await passes.backfill(BACKFILL_BUDGET_S))


async def on_demand(passes: GmailPasses, payload: Payload) -> Result:
    query, most = payload.get("query"), payload.get("max_results", MOST_RESULTS)
    if not isinstance(query, str):
        raise BadInput("query", "is missing")
    if not isinstance(most, int) or isinstance(most, bool):
        raise BadInput("max_results", "is a whole number")
    return asdict(await passes.on_demand(query, most))


def _counts(tally: Tally) -> Result:
    return {name: value for name, value in asdict(tally).items() if isinstance(value, int)}


DRIVERS: Mapping[str, Callable[[GmailPasses, Payload], Awaitable[Result]]] = {
    "history.sync.gmail": history_sync,
    "ingest.gmail": ingest,
    "backfill.gmail": backfill,
    jobs.ON_DEMAND: on_demand,
}
"""By job type."""
