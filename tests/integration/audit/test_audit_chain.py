# ruff: noqa: S608 (names of our own)
"""The audit log as a keyed chain: whatever is done to a sealed entry is found, and named."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from postroom.audit.chain import AuditKeyMissing, KeyRing, begin_new_key, chain_status, read_heads
from postroom.audit.sealing import BATCH, HEAD_EVERY, LOOK_EVERY_S, PATIENCE_S
from postroom.audit.verifying import CANNOT_SEE, AuditFlaw, verify_end
from postroom.db import Database, Dialect, connect
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Fatal
from postroom.domain.ids import new_id
from postroom.vault import Vault
from tests.support.audit_log import ANN, SealedLog, named, old_id
from tests.support.crashes import CrashPoint, Killed
from tests.support.databases import on_sqlite

pytestmark = pytest.mark.req("HW-5")


@pytest.fixture
def ledger(database: Database, tmp_path: Path, clock: ManualClock) -> SealedLog:
    return SealedLog(database, tmp_path, clock)


async def test_entries_are_sealed_in_order_and_found_sound(ledger: SealedLog) -> None:
    ids = await ledger.sealed(3) + await ledger.sealed(2)
    await ledger.record(1)
    found = await ledger.verify()
    assert (found.sealed, found.waiting, found.problems, found.is_sound) == (5, 1, [], True)
    assert found.waiting_since == ledger.clock.now()
    order = await ledger.database.read(
        lambda tx: tx.execute(text("SELECT entry_id FROM audit_seals ORDER BY position"))
    )
    assert [str(row[0]) for row in order] == ids


_COLUMNS = {
    "at": "'2020-01-01T00:00:00.000000Z'",
    "actor_role": "'system'",
    "actor_name": "'mallory'",
    "action": "'thing.keep'",
    "subject_type": "'message'",
    "subject_id": "'t9'",
    '"before"': """'{"n": 2}'""",
    '"after"': "NULL",
}


async def test_a_change_of_any_column_is_found_and_the_entry_named(ledger: SealedLog) -> None:
    ids = await ledger.sealed(2 * len(_COLUMNS))
    victims = dict(zip(_COLUMNS, ids[1::2], strict=True))
    for column, victim in victims.items():
        await ledger.tamper(f"UPDATE audit_log SET {column} = {_COLUMNS[column]} WHERE id = :id", id=victim)
    found = await ledger.verify()
    assert {entry for flaw, entry in named(found) if flaw is AuditFlaw.CHANGED} == set(victims.values())
    assert all(problem.entry_id in problem.message for problem in found.problems if problem.entry_id)


async def test_a_change_of_a_seal_is_found(ledger: SealedLog) -> None:
    ids = await ledger.sealed(12)
    other = new_id()
    changes = {2: ("entry_id", other), 5: ("key_id", "0" * 16), 8: ("sealed_at", "2020"), 11: ("mac", "0" * 64)}
    for position, (column, value) in changes.items():
        await ledger.tamper(f"UPDATE audit_seals SET {column} = :value WHERE position = {position}", value=value)
    found = await ledger.verify()
    assert {
        (AuditFlaw.REMOVED, other),
        (AuditFlaw.NOT_OURS, ids[1]),
        (AuditFlaw.CHANGED, ids[7]),
        (AuditFlaw.CHANGED, ids[10]),
    } <= named(found)
    assert (found.uncheckable, found.missing_keys) == (1, ["0" * 16])


async def test_a_removed_entry_is_named_with_or_without_its_seal(ledger: SealedLog) -> None:
    ids = await ledger.sealed(6)
    await ledger.tamper("DELETE FROM audit_log WHERE id = :id", id=ids[1])
    assert named(await ledger.verify()) == {(AuditFlaw.REMOVED, ids[1])}
    await ledger.tamper(
        "DELETE FROM audit_seals WHERE entry_id = :id", "DELETE FROM audit_log WHERE id = :id", id=ids[3]
    )
    found = await ledger.verify()
    assert named(found) == {(AuditFlaw.REMOVED, ids[1]), (AuditFlaw.SEALS_MISSING, ids[4])}
    assert "Seal 4 is missing" in found.problems[1].message


async def test_an_entry_that_loses_only_its_seal_is_named(ledger: SealedLog) -> None:
    ids = await ledger.sealed(3)
    await ledger.tamper("DELETE FROM audit_seals WHERE position = 2")
    assert named(await ledger.verify()) == {(AuditFlaw.SEALS_MISSING, ids[2]), (AuditFlaw.NOT_OURS, ids[1])}


async def test_exchanged_entries_and_exchanged_seals_are_found(ledger: SealedLog) -> None:
    ids = await ledger.sealed(5)
    spare = new_id()
    swap = ("UPDATE audit_log SET id = :c WHERE id = :a", "UPDATE audit_log SET id = :a WHERE id = :b")
    await ledger.tamper(*swap, "UPDATE audit_log SET id = :b WHERE id = :c", a=ids[1], b=ids[3], c=spare)
    assert named(await ledger.verify()) == {(AuditFlaw.CHANGED, ids[1]), (AuditFlaw.CHANGED, ids[3])}
    swap = (
        "UPDATE audit_seals SET entry_id = :c WHERE position = 1",
        "UPDATE audit_seals SET entry_id = :a WHERE position = 3",
    )
    await ledger.tamper(*swap, "UPDATE audit_seals SET entry_id = :b WHERE position = 1", a=ids[0], b=ids[2], c=spare)
    assert {(AuditFlaw.CHANGED, ids[0]), (AuditFlaw.CHANGED, ids[2])} <= named(await ledger.verify())


async def test_an_entry_that_was_put_in_from_outside_is_found(ledger: SealedLog) -> None:
    ids = await ledger.sealed(4)
    put_in = old_id(ids[0])
    await ledger.tamper(ledger.copy_of_an_entry(f"'{put_in}'"), id=ids[2])
    assert named(await ledger.verify()) == {(AuditFlaw.NOT_OURS, put_in)}


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_an_old_entry_that_was_slipped_to_the_sealer_is_found(ledger: SealedLog, is_sealed: bool) -> None:
    ids = await ledger.sealed(4)
    put_in = old_id(ids[0])
    await ledger.tamper(
        ledger.copy_of_an_entry(f"'{put_in}'"), f"INSERT INTO audit_pending VALUES ('{put_in}')", id=ids[2]
    )
    if is_sealed:
        assert await ledger.sealer.tick() == 1
    assert named(await ledger.verify()) == {(AuditFlaw.OUT_OF_ORDER, put_in)}


async def test_an_entry_that_is_removed_while_it_waits_leaves_a_trace(ledger: SealedLog) -> None:
    await ledger.sealed(2)
    [waiting] = await ledger.record(1)
    await ledger.tamper("DELETE FROM audit_log WHERE id = :id", id=waiting)
    assert await ledger.sealer.tick() == 1
    assert named(await ledger.verify()) == {(AuditFlaw.REMOVED, waiting)}


@pytest.mark.parametrize("is_going_on", [False, True])
async def test_a_log_that_was_cut_is_found_by_its_heads(ledger: SealedLog, is_going_on: bool) -> None:
    await ledger.sealed(4)
    await ledger.sealer.record_head()
    rewind = "UPDATE audit_chain SET position = 2, mac = (SELECT mac FROM audit_seals WHERE position = 2)"
    cut = "DELETE FROM audit_log WHERE id IN (SELECT entry_id FROM audit_seals WHERE position > 2)"
    await ledger.tamper(cut, "DELETE FROM audit_seals WHERE position > 2", rewind)
    if is_going_on:
        ids = await ledger.sealed(3)
        assert named(await ledger.verify()) == {(AuditFlaw.REWRITTEN, ids[1])}
    else:
        [problem] = (await ledger.verify()).problems
        assert (problem.flaw, problem.position) == (AuditFlaw.CUT_SHORT, 4)
        assert "entries 3 to 4 are missing" in problem.message
    without_heads = await ledger.verify([])
    assert without_heads.is_sound, "this is what it cannot see, and says so"
    assert any("every copy of the recorded heads" in limit for limit in CANNOT_SEE)


async def test_a_log_that_was_cut_leaves_a_gap_that_no_new_entry_fills(ledger: SealedLog) -> None:
    await ledger.sealed(4)
    cut = "DELETE FROM audit_log WHERE id IN (SELECT entry_id FROM audit_seals WHERE position > 2)"
    await ledger.tamper(cut, "DELETE FROM audit_seals WHERE position > 2")
    assert [problem.flaw for problem in (await ledger.verify([])).problems] == [AuditFlaw.CUT_SHORT]
    [first] = await ledger.sealed(1)
    assert named(await ledger.verify([])) == {(AuditFlaw.SEALS_MISSING, first)}


async def test_a_chain_that_was_sealed_anew_without_the_key_is_found(ledger: SealedLog, tmp_path: Path) -> None:
    ids = await ledger.sealed(3)
    cleared = ("DELETE FROM audit_seals", "DELETE FROM audit_chain", "DELETE FROM audit_log WHERE id = :id")
    await ledger.tamper(*cleared, "INSERT INTO audit_pending SELECT id FROM audit_log", id=ids[1])
    forger = SealedLog(ledger.database, tmp_path / "forger", ledger.clock)
    assert await forger.sealer.tick() == 2
    found = await ledger.verify()
    assert (found.uncheckable, found.is_sound) == (2, False)


@pytest.mark.parametrize("table", ["audit_log", "audit_seals"])
async def test_the_database_refuses_to_change_replace_or_remove_a_row(ledger: SealedLog, table: str) -> None:
    await ledger.sealed(2)
    column = "action" if table == "audit_log" else "mac"
    attempts = [f"UPDATE {table} SET {column} = 'x'", f"DELETE FROM {table}"]
    if ledger.database.dialect is Dialect.SQLITE:
        attempts += [
            f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
            f"REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
            f"UPDATE OR REPLACE {table} SET {column} = 'x'",
        ]
        copied = {
            "audit_log": "SELECT rowid, 'new', at, '', '', '', '', '', NULL, NULL",
            "audit_seals": "SELECT rowid, 99, 'new', '', '', ''",
        }[table]
        names = {
            "audit_log": 'id, at, actor_role, actor_name, action, subject_type, subject_id, "before", "after"',
            "audit_seals": "position, entry_id, key_id, sealed_at, mac",
        }[table]
        attempts.append(f"INSERT OR REPLACE INTO {table} (rowid, {names}) {copied} FROM {table} LIMIT 1")
    else:
        attempts.append(f"TRUNCATE {table}")
    for attempt in attempts:
        with pytest.raises(Exception, match="append-only"):
            await ledger.database.write(lambda tx, attempt=attempt: tx.execute(text(attempt)))  # type: ignore[misc]
    assert (await ledger.verify()).is_sound


async def test_a_missing_key_is_told_apart_from_tampering(ledger: SealedLog) -> None:
    await ledger.sealed(3)
    for sealed in (ledger.home / "vault").glob("*.sealed"):
        sealed.unlink()
    found = await ledger.verify()
    assert (found.uncheckable, found.problems, found.is_sound) == (3, [], False)
    await ledger.record(1)
    with pytest.raises(AuditKeyMissing, match="new-key"):
        await ledger.new_sealer_in_turn().tick()
    key = KeyRing(Vault(ledger.home)).make()
    await ledger.database.write(lambda tx: begin_new_key(tx, key, ANN, ledger.clock.now()))
    assert await ledger.new_sealer_in_turn().tick() == 2
    found = await ledger.verify()
    assert (found.sealed, found.uncheckable, found.problems) == (5, 3, [])


@on_sqlite
async def test_a_vault_with_a_wrong_key_is_told_apart_from_tampering(ledger: SealedLog) -> None:
    await ledger.sealed(1)
    (ledger.home / "vault.key").write_text("A" * 43 + "=")
    with pytest.raises(Fatal, match="is not the key it was written with"):
        await ledger.verify()
    (ledger.home / "vault.key").unlink()
    with pytest.raises(Fatal, match="its key is missing"):
        await ledger.verify()


async def test_another_key_goes_on_with_the_chain_and_both_are_checked(ledger: SealedLog) -> None:
    ids = await ledger.sealed(2)
    key = ledger.keys.make()
    await ledger.database.write(lambda tx: begin_new_key(tx, key, ANN, ledger.clock.now()))
    assert await ledger.sealer.tick() == 1
    assert (await ledger.verify()).is_sound
    await ledger.tamper("UPDATE audit_log SET action = 'x' WHERE id = :id", id=ids[1])
    assert named(await ledger.verify()) == {(AuditFlaw.CHANGED, ids[1])}


async def test_of_two_sealers_one_works_and_the_other_takes_over_when_it_falls_silent(ledger: SealedLog) -> None:
    second = ledger.new_sealer()
    await ledger.sealed(1)
    await ledger.record(2)
    assert await second.tick() == 0
    ledger.clock.advance(PATIENCE_S / 2)
    assert await ledger.sealer.tick() == 2  # the first is alive
    await ledger.record(3)
    assert await second.tick() == 0
    ledger.clock.advance(PATIENCE_S)
    assert await second.tick() == 3
    await ledger.record(1)
    assert await ledger.sealer.tick() == 0, "it was overtaken, and waits its turn"
    assert await second.tick() == 1
    assert (await ledger.verify()).is_sound


def test_a_killed_sealer_is_replaced_within_two_seconds() -> None:
    assert LOOK_EVERY_S + PATIENCE_S + LOOK_EVERY_S <= 2


async def test_sealers_that_race_give_no_position_twice(ledger: SealedLog, database_url: str) -> None:
    other = await connect(database_url)
    try:
        rivals = [ledger.sealer, ledger.new_sealer(), SealedLog(other, ledger.home, ledger.clock).sealer]
        for round_ in range(6):
            await ledger.record(40)
            ledger.clock.advance(PATIENCE_S)  # so that each believes the others dead
            await asyncio.gather(*(rival.tick() for rival in rivals), ledger.record(5), *(r.tick() for r in rivals))
            ledger.clock.advance(PATIENCE_S * (round_ % 2))
        while await ledger.scalar("SELECT count(*) FROM audit_pending"):
            ledger.clock.advance(PATIENCE_S)
            await rivals[1].tick()
    finally:
        await other.close()
    found = await ledger.verify()
    assert (found.sealed, found.waiting, found.problems) == (270, 0, [])


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_dies_when_the_chain_is_whole_and_whatever_is_done_to_it_is_named(
    ledger: SealedLog, seed: int
) -> None:
    """Random records, seals, deaths before and after each write; then one random act against the log."""
    chance = random.Random(seed)
    ids: list[str] = []
    for _ in range(12):
        ids += await ledger.record(chance.randint(1, 4))
        sealer = ledger.new_sealer(CrashPoint(strike_at=chance.choice((None, 1, 2))))
        ledger.clock.advance(PATIENCE_S * chance.randint(0, 2))
        for _ in range(2):
            try:
                await sealer.tick()
            except Killed:
                break
            ledger.clock.advance(PATIENCE_S)
        if chance.random() < 0.3:
            await ledger.new_sealer().record_head(at_once=True)
    ledger.sealer = ledger.new_sealer()
    while await ledger.scalar("SELECT count(*) FROM audit_pending"):
        await ledger.sealer.tick()
        ledger.clock.advance(PATIENCE_S)
    found = await ledger.verify()
    assert (found.sealed, found.problems) == (len(ids), [])
    victim = chance.choice(ids)
    act = chance.choice(
        (
            "UPDATE audit_log SET actor_name = 'mallory' WHERE id = :id",
            "DELETE FROM audit_log WHERE id = :id",
            'UPDATE audit_log SET "after" = \'{"n": 3}\' WHERE id = :id',
            "UPDATE audit_seals SET mac = 'x' WHERE entry_id = :id",
        )
    )
    await ledger.tamper(act, id=victim)
    assert victim in {problem.entry_id for problem in (await ledger.verify()).problems}


async def test_entries_may_commit_in_any_order(ledger: SealedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id is made before its transaction commits; a later one may be sealed first."""
    early = new_id()
    await ledger.sealed(2)
    with monkeypatch.context() as patch:
        patch.setattr("postroom.audit.new_id", lambda: early)
        await ledger.record(1)
    assert await ledger.sealer.tick() == 1
    assert (await ledger.verify()).is_sound


async def test_heads_are_recorded_once_an_hour_and_in_a_file_that_only_grows(ledger: SealedLog) -> None:
    await ledger.sealed(2)
    first = await ledger.sealer.record_head()
    assert first is not None
    assert (first.position, first.entries) == (2, 2)
    await ledger.sealed(1)
    assert await ledger.sealer.record_head() is None
    ledger.clock.advance(HEAD_EVERY.total_seconds())
    second = await ledger.sealer.record_head()
    assert second is not None
    assert second.position == 3
    ledger.clock.advance(HEAD_EVERY.total_seconds())
    assert await ledger.sealer.record_head() is None, "nothing new"
    assert [each.head.position for each in ledger.heads.read()] == [2, 3]
    assert ledger.heads.path.stat().st_mode & 0o777 == 0o600
    found = await ledger.verify()
    assert (found.heads, found.is_sound) == (3, True)


@on_sqlite
async def test_a_line_that_a_crash_cut_short_hides_no_other_head(ledger: SealedLog) -> None:
    await ledger.sealed(1)
    await ledger.sealer.record_head()
    with ledger.heads.path.open("ab") as file:
        file.write(b'{"position": 7, "ma')
    await ledger.sealed(1)
    await ledger.new_sealer().record_head(at_once=True)
    assert [each.head.position for each in ledger.heads.read()] == [1, 2]


@on_sqlite
async def test_a_head_in_the_manifest_of_a_backup_can_be_compared_with(ledger: SealedLog, tmp_path: Path) -> None:
    await ledger.sealed(2)
    await ledger.sealer.record_head()
    line = json.loads(ledger.heads.path.read_text())
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"format": 1, "audit_head": line}, indent=1))
    assert [each.head.position for each in read_heads(manifest)] == [2]


async def test_the_end_of_the_chain_can_be_checked_quickly(ledger: SealedLog) -> None:
    ids = await ledger.sealed(30)
    await ledger.sealer.record_head()
    found = await verify_end(ledger.database, ledger.keys, ledger.heads.last(), count=10)
    assert (found.sealed, found.is_sound) == (10, True)
    await ledger.tamper("UPDATE audit_log SET action = 'x' WHERE id = :id", id=ids[25])
    found = await verify_end(ledger.database, ledger.keys, ledger.heads.last(), count=10)
    assert named(found) == {(AuditFlaw.CHANGED, ids[25])}
    cut = "DELETE FROM audit_log WHERE id IN (SELECT entry_id FROM audit_seals WHERE position > 20)"
    await ledger.tamper(cut, "DELETE FROM audit_seals WHERE position > 20", "DELETE FROM audit_chain")
    found = await verify_end(ledger.database, ledger.keys, ledger.heads.last(), count=10)
    assert [problem.flaw for problem in found.problems] == [AuditFlaw.CUT_SHORT]


async def test_what_waits_is_counted_with_the_age_of_the_oldest(ledger: SealedLog) -> None:
    await ledger.sealed(1)
    await ledger.record(2)
    since = ledger.clock.now()
    await ledger.record(1)
    status = await ledger.database.read(chain_status)
    assert (status.sealed, status.waiting, status.waiting_since) == (1, 3, since)


@on_sqlite
async def test_bytes_that_are_no_text_are_found_and_stop_nothing(ledger: SealedLog) -> None:
    ids = await ledger.sealed(3)
    await ledger.tamper("UPDATE audit_log SET actor_name = CAST(x'ff00fe' AS TEXT) WHERE id = :id", id=ids[0])
    await ledger.tamper('UPDATE audit_log SET "after" = CAST("after" AS BLOB) WHERE id = :id', id=ids[1])
    await ledger.tamper("UPDATE audit_seals SET position = 'x' WHERE position = 3")
    flawed = {entry for _, entry in named(await ledger.verify())}
    assert {ids[0], ids[1], ids[2]} <= flawed


async def test_ten_thousand_entries_are_sealed_and_verified_in_seconds_of_processor_time(ledger: SealedLog) -> None:
    await ledger.record_many(10_000)
    start = _processor_s()
    assert await ledger.sealer.tick() == 10_000 > BATCH
    sealing = _processor_s() - start
    told: list[int] = []
    found = await ledger.verify_with_progress(told.append)
    assert (found.sealed, found.is_sound) == (10_000, True)
    assert sum(told) == 10_000
    assert len(told) >= 10
    assert sealing < 3, "about half a second on a quiet machine"


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class SealProcess:
    def __init__(self, url: str, home: Path) -> None:
        self._arguments = (sys.executable, "-m", "tests.support.audit_log", url, str(home))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._arguments, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"sealing\n"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


async def test_sealers_that_are_killed_are_replaced_and_the_chain_stays_whole(
    ledger: SealedLog, database_url: str
) -> None:
    processes = [SealProcess(database_url, ledger.home) for _ in range(2)]
    await asyncio.gather(*(process.start() for process in processes))
    recorded = 0
    try:
        for process in processes:
            for _ in range(40):
                await ledger.record(10)
                recorded += 10
            await process.kill()
        await processes[0].start()
        while await ledger.scalar("SELECT count(*) FROM audit_pending"):
            await asyncio.sleep(0.05)  # the test's own time limit is the only deadline
    finally:
        for process in processes:
            await process.kill()
    found = await ledger.verify()
    assert (found.sealed, found.waiting, found.problems) == (recorded, 0, [])
