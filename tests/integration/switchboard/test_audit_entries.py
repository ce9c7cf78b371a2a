"""The audit log: complete, in pages, and not to be rewritten."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import text

from postroom import audit
from postroom.audit import Actor, AuditFilter
from postroom.db import Database, Tx
from postroom.domain.errors import BadInput
from tests.support.backfills import OPERATOR, BackfillRig
from tests.support.databases import on_sqlite

OLIVIA = Actor.of(OPERATOR)


@pytest.mark.req("BF-22")
async def test_an_entry_says_who_what_when_before_and_after(rig: BackfillRig) -> None:
    await rig.service.turn_switch(OPERATOR, False)
    [entry] = (await rig.database.read(lambda tx: audit.list_entries(tx, AuditFilter(action="switch.change")))).entries
    assert (entry.actor, entry.at) == (OLIVIA, rig.now)
    assert (entry.subject_type, entry.subject_id) == ("switch", "backfill_enabled")
    assert (entry.before, entry.after) == ({"value": True}, {"value": False})


@pytest.mark.req("BF-22")
async def test_of_two_who_turn_the_switch_at_once_the_second_finds_what_the_first_left(rig: BackfillRig) -> None:
    for on in (False, True) * 6:
        await asyncio.gather(*(rig.service.turn_switch(OPERATOR, on) for _ in range(2)))
    page = await rig.database.read(lambda tx: audit.list_entries(tx, AuditFilter(action="switch.change")))
    assert Counter(entry.before == entry.after for entry in page.entries) == {True: 12, False: 12}


@pytest.mark.req("BF-22")
@pytest.mark.parametrize("change", ["UPDATE audit_log SET actor_name = 'nobody'", "DELETE FROM audit_log"])
async def test_what_is_written_can_be_neither_changed_nor_removed(rig: BackfillRig, change: str) -> None:
    job = await rig.create()
    with pytest.raises(Exception, match="append-only"):
        await rig.database.write(lambda tx: tx.execute(text(change)))
    assert [entry.actor.name for entry in await rig.entries(job.id)] == ["olivia"]


async def test_a_deed_that_fails_leaves_no_entry(rig: BackfillRig) -> None:
    def fail(tx: Tx) -> None:
        audit.record(tx, OLIVIA, "test", ("thing", "1"), rig.now)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await rig.database.write(fail)
    assert (await rig.database.read(lambda tx: audit.list_entries(tx, AuditFilter()))).entries == []


async def test_pages_follow_each_other_newest_first_without_gap_or_repetition(rig: BackfillRig) -> None:
    def fill(tx: Tx) -> None:
        for number in range(7):
            audit.record(tx, OLIVIA, "test", ("thing", str(number)), rig.now)

    await rig.database.write(fill)
    seen, before_id = list[str](), None
    while True:
        which = AuditFilter(subject_type="thing", before_id=before_id, limit=3)
        page = await rig.database.read(lambda tx, which=which: audit.list_entries(tx, which))  # type: ignore[misc]
        seen += [entry.subject_id for entry in page.entries]
        before_id = page.next_before_id
        if before_id is None:
            break
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


def test_a_page_has_bounds() -> None:
    for limit in (0, 501):
        with pytest.raises(BadInput, match="limit"):
            AuditFilter(limit=limit)


@pytest.mark.parametrize(
    ("which", "index"),
    [
        (AuditFilter(subject_type="message"), "audit_log_subject_type_idx (subject_type=?)"),
        (AuditFilter(subject_type="message", action="a.b"), "audit_log_action_idx (action=?)"),
        (AuditFilter(subject_type="message", action="a.b", subject_id="m"), "audit_log_subject_id_idx (subject_id=?)"),
    ],
    ids=["type", "type and action", "all"],
)
@on_sqlite
async def test_a_filtered_page_is_read_in_the_order_of_the_index_that_tells_most(
    database: Database, which: AuditFilter, index: str
) -> None:
    def plan(tx: Tx) -> list[str]:
        compiled = audit.entries_query(which).compile(tx.connection, compile_kwargs={"literal_binds": True})
        return [row[3] for row in tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}")]

    assert await database.read(plan) == [f"SEARCH audit_log USING INDEX {index}"]
