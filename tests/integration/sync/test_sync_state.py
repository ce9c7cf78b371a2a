"""Progress in the database: it moves with finished slices, in whatever order they finish, and never otherwise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.accounts.history import (
    GapPosition,
    GapStage,
    HistoryLeaseLost,
    ReaderElsewhere,
    claim_reader,
    cursor_of,
    history_standing,
    is_held,
    move_cursor,
    open_gap,
    pass_gap,
    record_step,
    release_reader,
    renew_reader,
)
from postroom.accounts.troubled import forget_trouble
from postroom.db import Database, Tx
from postroom.domain.errors import Fatal, NotFound
from postroom.sync.alerts import add_outcomes
from postroom.sync.fetch import bad_of, record_bad
from postroom.sync.labels import names_seen, record_names
from postroom.sync.slices import DAY_S, Granularity, Slice, plan
from postroom.sync.state import (
    SyncState,
    add_counters,
    begin_walk,
    extend_walk,
    finish_slice,
    get_state,
    replace_slice,
    slices_of,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNTIL = 1_700_000_000 + 20 * DAY_S
SLICES = plan(1_700_000_000, UNTIL, Granularity.DAY)


@pytest.fixture
async def account_id(database: Database) -> str:
    account = await database.write(lambda tx: add_account(tx, NewAccount("me@example.org", "http://127.0.0.1"), NOW))
    return account.id


def begin(tx: Tx, account_id: str) -> SyncState:
    return begin_walk(tx, account_id, SLICES, UNTIL, Granularity.DAY, NOW)


def finishing(account_id: str, part: Slice) -> Callable[[Tx], SyncState]:
    return lambda tx: finish_slice(tx, account_id, 1, part, 7, NOW)


@pytest.mark.req("SY-8", "SY-9")
@pytest.mark.parametrize("seed", range(3))
async def test_the_watermark_is_right_after_every_step_of_any_order(
    database: Database, account_id: str, seed: int
) -> None:
    dice = random.Random(seed)
    state = await database.write(lambda tx: begin(tx, account_id))
    left = [*SLICES]
    while left:
        part = left.pop(dice.randrange(len(left)))
        if part.end is not None and part.end - part.start > DAY_S // 2 and part.start and dice.random() < 0.3:
            middle = (part.start + part.end) // 2
            halves = [Slice(part.start, middle), Slice(middle, part.end)]
            await database.write(partial(replace_slice, account_id=account_id, whole=part, parts=halves))
            left += halves
            continue
        before = state
        state = await database.write(finishing(account_id, part))
        first_open = min((each.start for each in left), default=UNTIL)
        assert state.watermark == state.frontier == min(first_open, UNTIL) >= before.watermark
        assert state.is_walking == bool(left)
    assert [row.slice for row in await database.read(lambda tx: slices_of(tx, account_id))] == [Slice(UNTIL, None)]


async def test_a_slice_of_an_earlier_walk_moves_nothing(database: Database, account_id: str) -> None:
    await database.write(lambda tx: begin(tx, account_id))
    await database.write(lambda tx: begin(tx, account_id))
    state = await database.write(lambda tx: finish_slice(tx, account_id, 1, SLICES[0], 1, NOW))
    assert (state.walk, state.frontier) == (2, 0)


@pytest.mark.req("SY-8")
async def test_another_walk_begins_at_zero_and_leaves_the_watermark(database: Database, account_id: str) -> None:
    await database.write(lambda tx: begin(tx, account_id))
    reached = await database.write(lambda tx: finish_slice(tx, account_id, 1, SLICES[0], 1, NOW))
    again = await database.write(lambda tx: begin(tx, account_id))
    assert (again.walk, again.frontier, again.watermark) == (2, 0, reached.watermark)
    assert reached.watermark == SLICES[0].end


async def test_parts_that_leave_a_gap_are_refused(database: Database, account_id: str) -> None:
    await database.write(lambda tx: begin(tx, account_id))
    whole = SLICES[1]
    assert whole.end is not None
    gaping = [Slice(whole.start, whole.start + 10), Slice(whole.start + 11, whole.end)]
    with pytest.raises(Fatal, match="cover"):
        await database.write(lambda tx: replace_slice(tx, account_id, whole, gaping))


async def test_a_finished_slice_cannot_be_split(database: Database, account_id: str) -> None:
    await database.write(lambda tx: begin(tx, account_id))
    whole = SLICES[2]
    assert whole.end is not None
    middle = whole.start + 10
    halves = [Slice(whole.start, middle), Slice(middle, whole.end)]
    await database.write(lambda tx: finish_slice(tx, account_id, 1, whole, 1, NOW))
    with pytest.raises(Fatal, match="not open"):
        await database.write(lambda tx: replace_slice(tx, account_id, whole, halves))


@pytest.mark.req("SY-8")
async def test_a_walk_that_is_over_is_extended_forward_only(database: Database, account_id: str) -> None:
    await database.write(lambda tx: begin(tx, account_id))
    with pytest.raises(Fatal, match="after its end"):
        await database.write(lambda tx: extend_walk(tx, account_id, UNTIL + 10, NOW))
    for part in SLICES:
        await database.write(finishing(account_id, part))
    with pytest.raises(Fatal, match="forward"):
        await database.write(lambda tx: extend_walk(tx, account_id, UNTIL, NOW))
    longer = await database.write(lambda tx: extend_walk(tx, account_id, UNTIL + 10, NOW))
    assert (longer.is_walking, longer.watermark) == (True, UNTIL)
    done = await database.write(lambda tx: finish_slice(tx, account_id, 1, Slice(UNTIL, UNTIL + 10), 1, NOW))
    assert (done.is_walking, done.watermark) == (False, UNTIL + 10)


async def test_an_account_that_was_never_synced_says_so(database: Database, account_id: str) -> None:
    with pytest.raises(NotFound, match="never synced"):
        await database.read(lambda tx: get_state(tx, account_id))


async def test_counters_add_up(database: Database, account_id: str) -> None:
    await database.write(lambda tx: begin(tx, account_id))
    for _ in range(2):
        await database.write(lambda tx: add_counters(tx, account_id, {"stored": 3, "bad": 1}, NOW))
    state = await database.read(lambda tx: get_state(tx, account_id))
    assert state.counters == {"stored": 6}, "how many are bad, the list of them tells"


@pytest.mark.req("SY-5")
async def test_a_bad_message_keeps_when_it_was_first_seen_and_how_often_it_was_tried(
    database: Database, account_id: str
) -> None:
    later = NOW + timedelta(hours=1)
    await database.write(lambda tx: record_bad(tx, account_id, "a", "too large", 1, NOW))
    await database.write(lambda tx: record_bad(tx, account_id, "a", "still too large", 2, later))
    await database.write(lambda tx: record_bad(tx, account_id, "b", "x" * 1_000, 1, later))
    first, second = await database.read(lambda tx: bad_of(tx, account_id))
    assert (first.reason, first.first_seen, first.last_tried, first.tries) == ("still too large", NOW, later, 2)
    assert len(second.reason) == 300
    assert await database.write(lambda tx: forget_trouble(tx, account_id, ["a", "unknown"])) == 1
    assert [each.key for each in await database.read(lambda tx: bad_of(tx, account_id))] == ["b"]


@pytest.mark.req("SY-13")
async def test_of_those_who_come_first_at_once_one_becomes_the_reader(database: Database) -> None:
    rivals = ("sync", "connector", "another connector")
    for number in range(20):
        new = NewAccount(f"me{number}@example.org", "http://127.0.0.1")
        account = await database.write(partial(add_account, new=new, now=NOW))
        claims = [database.write(partial(claim_reader, account_id=account.id, holder=who, now=NOW)) for who in rivals]
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == [
            "HistoryLease",
            "ReaderElsewhere",
            "ReaderElsewhere",
        ]


@pytest.mark.req("SY-13")
async def test_two_who_begin_at_once_beside_each_other_are_no_fault(database: Database) -> None:
    """As where a connector has come: one sync walks already, and the other has not yet left the changes to it."""
    for number in range(10):
        new = NewAccount(f"me{number}@example.org", "http://127.0.0.1")
        account = await database.write(partial(add_account, new=new, now=NOW))
        one = partial(begin, account_id=account.id)
        assert sorted(state.walk for state in await asyncio.gather(database.write(one), database.write(one))) == [1, 2]
        assert len(await database.read(partial(slices_of, account_id=account.id))) == len(SLICES)
        add = partial(add_outcomes, account_id=account.id, size=100, messages=10, bad=1, now=NOW)
        windows = await asyncio.gather(database.write(add), database.write(add))
        assert sorted((window.messages, window.bad) for window in windows) == [(10, 1), (20, 2)]


@pytest.mark.req("SY-13")
async def test_only_the_reader_of_now_moves_the_cursor(database: Database, account_id: str) -> None:
    first = await database.write(lambda tx: claim_reader(tx, account_id, "sync", NOW))
    await database.write(lambda tx: move_cursor(tx, first, "100", NOW))
    with pytest.raises(ReaderElsewhere, match="sync") as refused:
        await database.write(lambda tx: claim_reader(tx, account_id, "connector", NOW))
    assert refused.value.retry_after is not None
    again = await database.write(lambda tx: claim_reader(tx, account_id, "sync", NOW))
    assert (again.history_id, again.fence) == ("100", first.fence + 1)
    with pytest.raises(HistoryLeaseLost):
        await database.write(lambda tx: move_cursor(tx, first, "200", NOW))
    with pytest.raises(HistoryLeaseLost):
        await database.write(lambda tx: renew_reader(tx, first, NOW))
    await database.write(lambda tx: release_reader(tx, first, NOW))  # lost already: changes nothing
    await database.write(lambda tx: renew_reader(tx, again, NOW))
    await database.write(lambda tx: release_reader(tx, again, NOW))
    other = await database.write(lambda tx: claim_reader(tx, account_id, "connector", NOW))
    assert other.history_id == "100"
    assert await database.read(lambda tx: cursor_of(tx, account_id)) == "100"


@pytest.mark.req("SY-13")
async def test_a_lease_that_runs_out_lets_the_next_one_in(database: Database, account_id: str) -> None:
    await database.write(lambda tx: claim_reader(tx, account_id, "sync", NOW))
    later = NOW + timedelta(seconds=91)
    assert (await database.write(lambda tx: claim_reader(tx, account_id, "connector", later))).fence == 2


@pytest.mark.req("SY-5")
async def test_several_at_once_may_name_the_same_bad_message(database: Database, account_id: str) -> None:
    """The walk and the changes read beside it meet the same message; on PostgreSQL their transactions run at once."""
    for number in range(10):
        named = partial(
            record_bad, account_id=account_id, gmail_id=f"id{number}", reason="why", reader_version=1, now=NOW
        )
        await asyncio.gather(*(database.write(named) for _ in range(6)))
    assert len(await database.read(lambda tx: bad_of(tx, account_id))) == 10


@pytest.mark.req("SY-13")
async def test_several_at_once_may_record_the_same_label(database: Database, account_id: str) -> None:
    """A sync and a retry of bad messages begin in the same second."""
    for number in range(10):
        recorded = partial(record_names, account_id=account_id, names={f"Label_{number}": "Family"})
        await asyncio.gather(*(database.write(recorded) for _ in range(6)))
    assert len(await database.read(lambda tx: names_seen(tx, account_id))) == 10


@pytest.mark.req("SY-13")
async def test_of_two_walkers_one_gets_ahead_and_a_second_gap_includes_the_first(
    database: Database, account_id: str
) -> None:
    reader = await database.write(lambda tx: claim_reader(tx, account_id, "connector", NOW))
    await database.write(lambda tx: pass_gap(tx, reader, "9", NOW, since=500))
    first = await database.read(lambda tx: open_gap(tx, account_id))
    assert first is not None
    assert (first.since, first.position) == (500, GapPosition())
    assert (await database.read(lambda tx: history_standing(tx, account_id))).epoch == 1
    assert not await database.read(lambda tx: is_held(tx, account_id, NOW.date()))
    there = GapPosition(GapStage.ARRIVALS, 900, "18f")
    ahead = await database.write(lambda tx: record_step(tx, account_id, first.step, there))
    assert ahead is not None
    assert (ahead.step, ahead.position) == (first.step + 1, there)
    late = await database.write(lambda tx: record_step(tx, account_id, first.step, None))
    assert late == ahead, "a step that is not the current one changes nothing"
    await database.write(lambda tx: pass_gap(tx, reader, "12", NOW))
    both = await database.read(lambda tx: open_gap(tx, account_id))
    assert both is not None
    assert (both.since, both.position, both.step) == (500, GapPosition(), ahead.step + 1)
    assert await database.write(lambda tx: record_step(tx, account_id, both.step, None)) is None
