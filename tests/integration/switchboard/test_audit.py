"""The audit log: complete, in pages, and not to be rewritten."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from postroom import audit
from postroom.audit import Actor, AuditFilter
from postroom.db import Tx
from postroom.domain.errors import BadInput
from tests.support.backfills import OPERATOR, Rig

OLIVIA = Actor.of(OPERATOR)


@pytest.mark.req("BF-22")
async def test_an_entry_says_who_what_when_before_and_after(rig: Rig) -> None:
    await rig.service.turn_switch(OPERATOR, False)
    [entry] = (await rig.database.read(lambda tx: audit.list_entries(tx, AuditFilter(action="switch.change")))).entries
    assert (entry.actor, entry.at) == (OLIVIA, rig.now)
    assert (entry.subject_type, entry.subject_id) == ("switch", "backfill_enabled")
    assert (entry.before, entry.after) == ({"value": True}, {"value": False})


@pytest.mark.req("BF-22")
@pytest.mark.parametrize("change", ["UPDATE audit_log SET actor_name = 'nobody'", "DELETE FROM audit_log"])
async def test_what_is_written_can_be_neither_changed_nor_removed(rig: Rig, change: str) -> None:
    job = await rig.create()
    with pytest.raises(Exception, match="append-only"):
        await rig.database.write(lambda tx: tx.execute(text(change)))
    assert [entry.actor.name for entry in await rig.entries(job.id)] == ["olivia"]


async def test_a_deed_that_fails_leaves_no_entry(rig: Rig) -> None:
    def fail(tx: Tx) -> None:
        audit.record(tx, OLIVIA, "test", ("thing", "1"), rig.now)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await rig.database.write(fail)
    assert (await rig.database.read(lambda tx: audit.list_entries(tx, AuditFilter()))).entries == []


async def test_pages_follow_each_other_newest_first_without_gap_or_repetition(rig: Rig) -> None:
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
