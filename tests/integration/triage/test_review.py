"""Review as a list: what nothing decided, with the reason; done once, or judged again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.db.tables.triage import actions, decisions
from postroom.domain.actions import ReviewCause
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotFound
from postroom.triage import review
from postroom.triage.review import ReviewFilter, ReviewItem
from tests.support.triage import TriageRig, call, open_triage, rule

OWNER = Actor("dashboard", "a test")

pytestmark = pytest.mark.req("JB-10", "UX-1")


@pytest.fixture
async def office(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[TriageRig]:
    async with open_triage(database, clock, tmp_path) as opened:
        await opened.open_account()
        yield opened


async def listed(office: TriageRig, **which: object) -> list[ReviewItem]:
    return await office.database.read(lambda tx: review.list_review(tx, ReviewFilter(**which)))  # type: ignore[arg-type]


async def test_what_nothing_decided_is_listed_with_the_reason_until_it_is_done(office: TriageRig) -> None:
    office.use(model=False)
    first, second = await office.take_in(), await office.take_in(subject="Later")
    await office.work()
    items = await listed(office)
    assert {item.message_id for item in items} == {first, second}
    assert {item.cause for item in items} == {ReviewCause.NO_MODEL}
    assert all("no model is set up" in item.reason and item.can_ask for item in items)

    done = next(item for item in items if item.message_id == first)
    now = office.clock.now()
    await office.database.write(lambda tx: review.mark_done(tx, [done], OWNER, now))
    assert [item.message_id for item in await listed(office)] == [second]
    page = await office.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=done.id)))
    assert [entry.action for entry in page.entries] == ["review.done"]
    with pytest.raises(NotFound, match="does not need review"):
        await office.database.read(lambda tx: review.find_items(tx, [done.id]))


async def test_everything_of_one_cause_is_done_step_by_step(office: TriageRig, monkeypatch: pytest.MonkeyPatch) -> None:
    office.use(model=False)
    for _ in range(3):
        await office.take_in()
    await office.work()
    office.use()
    office.answer(call("none", needs_approval=True))
    left = await office.take_in()
    await office.work()

    def done(tx: Tx, items: list[ReviewItem]) -> int:
        review.mark_done(tx, items, OWNER, office.clock.now())
        return len(items)

    monkeypatch.setattr(review, "_AT_ONCE", 2)
    which = ReviewFilter(ReviewCause.NO_MODEL)
    assert await review.change_all(office.database.write, which, done) == [2, 1], "no transaction covers all"
    [item] = await listed(office)
    assert (item.message_id, item.cause) == (left, ReviewCause.MODEL_UNSURE)


async def test_what_was_marked_as_done_by_mistake_comes_back(office: TriageRig) -> None:
    office.use(model=False)
    await office.take_in()
    await office.work()
    [item] = await listed(office)
    now = office.clock.now()
    await office.database.write(lambda tx: review.mark_done(tx, [item], OWNER, now))
    elsewhere = await office.database.write(lambda tx: review.reopen(tx, [item.id], OWNER, now, "you@example.org"))
    assert (elsewhere, await listed(office)) == (0, [])
    assert await office.database.write(lambda tx: review.reopen(tx, [item.id], OWNER, now)) == 1
    assert await office.database.write(lambda tx: review.reopen(tx, [item.id], OWNER, now)) == 0
    assert [each.id for each in await listed(office)] == [item.id]
    page = await office.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=item.id)))
    assert [entry.action for entry in page.entries] == ["review.reopen", "review.done"]


async def test_what_the_budget_sent_to_review_can_be_asked_about_later(office: TriageRig) -> None:
    office.use(model=False)
    await office.take_in()
    await office.work()
    office.use()
    office.answer(call("archive"))
    await ask(office, await listed(office))
    assert await listed(office) == []
    await office.work()
    assert await listed(office) == []
    assert (await office.only(decisions)).action == "archive"
    assert len(await office.rows(actions)) == 1


async def test_what_is_still_undecided_comes_back_to_the_list(office: TriageRig) -> None:
    office.use(model=False)
    message_id = await office.take_in()
    for _ in range(3):
        await office.work()
        [item] = await listed(office)
        assert item.message_id == message_id
        await ask(office, [item])
    await office.work()
    assert len(await listed(office)) == 1


async def test_a_new_rule_decides_what_is_judged_again(office: TriageRig) -> None:
    office.use(model=False)
    await office.take_in()
    await office.work()
    office.use(rule("Anna", {"sender": "anna@example.org"}, {"type": "star"}), model=False)
    await ask(office, await listed(office))
    await office.work()
    assert (await office.only(decisions)).rule_name == "Anna"


async def test_an_answer_of_the_model_is_never_bought_again(office: TriageRig) -> None:
    await office.take_in()
    office.answer(call("none", needs_approval=True))
    await office.work()
    [item] = await listed(office)
    assert not item.can_ask
    assert await ask(office, [item]) == [item.id]
    assert await listed(office) == [item]


async def test_the_model_is_asked_anew_where_its_answers_could_not_be_used(office: TriageRig) -> None:
    await office.take_in()
    office.answer(call("dance"), call("dance"))
    await office.work()
    [item] = await listed(office)
    assert item.cause is ReviewCause.UNUSABLE_ANSWER
    assert item.can_ask
    office.answer(call("archive"))
    assert await ask(office, [item]) == []
    await office.work()
    assert await listed(office) == []
    assert (await office.only(decisions)).action == "archive"


async def ask(office: TriageRig, items: list[ReviewItem]) -> list[str]:
    return await office.database.write(lambda tx: review.ask_again(tx, office.queue, items, OWNER))
