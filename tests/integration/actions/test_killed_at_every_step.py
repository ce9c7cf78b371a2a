"""SIGKILL between every two steps of every handler: nothing is lost, nothing is done twice.

`make test` lets the worker die at some of the steps, on SQLite; `make chaos` at each, on both databases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.domain.actions import ActionType
from tests.support.databases import DatabaseFactory, on_sqlite
from tests.support.kill_points import (
    LABELS_AFTER,
    KilledWorker,
    KillPoints,
    Scenario,
    asked_once,
    by_rule,
    cursor_only_past_what_is_in_or_owed,
    done,
    forgotten_history,
    hidden_means_waiting,
    judge,
    kill_points,
    labelled_and_archived,
    labels_known,
    look_at_labels,
    never_sent_twice,
    no_action_without_a_decision,
    nothing_missed,
    one_decision,
    sent_once,
    undone,
    want,
)

A = ActionType
ACTIONS = [
    Scenario(action, want(action), done(action), hidden_means_waiting if action is A.SNOOZE else None)
    for action in (*LABELS_AFTER, A.APPLY_LABEL)
]
UNDOS = [undone(action) for action in (A.ARCHIVE, A.APPLY_LABEL, A.TRASH, A.SNOOZE)]
SENDING = [Scenario(action, want(action), sent_once, never_sent_twice) for action in (A.FORWARD, A.AUTO_REPLY)]
JUDGING = [
    Scenario("classify by model", judge, one_decision, no_action_without_a_decision),
    Scenario(
        "classify by rule",
        by_rule("apply_label=Friends", "archive"),
        labelled_and_archived,
        no_action_without_a_decision,
    ),
    Scenario("ask a person", by_rule("trash"), asked_once, no_action_without_a_decision),
]
LABELS = Scenario("labels", look_at_labels, labels_known)
GAP = Scenario("fill a gap", forgotten_history, nothing_missed, cursor_only_past_what_is_in_or_owed)
ALL = [*ACTIONS, *UNDOS, *SENDING, *JUDGING, LABELS, GAP]
SOME = [
    each
    for each in ALL
    if each.name in (A.ARCHIVE, A.DELETE, A.SNOOZE, A.FORWARD, "undo of snooze", "classify by rule", "ask a person")
]


def name_of(scenario: Scenario) -> str:
    return scenario.name


@pytest.fixture
async def world(tmp_path: Path, worker: KilledWorker, database_factory: DatabaseFactory) -> AsyncIterator[KillPoints]:
    async with kill_points(tmp_path, worker, database_factory) as world:
        yield world


@pytest.mark.req("JB-8", "JB-12", "JB-13", "JB-14", "JB-15", "JB-16", "JB-17")
@on_sqlite
@pytest.mark.parametrize("scenario", SOME, ids=name_of)
async def test_killed_at_some_steps_it_ends_as_if_nothing_had_happened(world: KillPoints, scenario: Scenario) -> None:
    assert await world.sweep(scenario, first=2, every=6) > 0


@pytest.mark.chaos
@pytest.mark.req("JB-8", "JB-12", "JB-13", "JB-14", "JB-15", "JB-16", "JB-17", "JB-18")
@pytest.mark.parametrize("scenario", ALL, ids=name_of)
async def test_killed_at_every_step_it_ends_as_if_nothing_had_happened(world: KillPoints, scenario: Scenario) -> None:
    assert await world.sweep(scenario) > 3
