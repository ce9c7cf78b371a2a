"""The checklist of the first run, from what there is of an installation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from postroom.dashboard.checklist import Checklist, SetupFacts, checklist_of

EMPTY = SetupFacts(
    has_passphrase=False,
    mailboxes=(),
    archived=(),
    model=None,
    model_problem=None,
    is_model_wanted=True,
    has_rule=False,
    backup_at=None,
)
WHOLE = SetupFacts(
    has_passphrase=True,
    mailboxes=("me@example.org",),
    archived=("me@example.org",),
    model="a-model",
    model_problem=None,
    is_model_wanted=True,
    has_rule=True,
    backup_at=datetime(2026, 3, 2, tzinfo=UTC),
)


def states(checklist: Checklist) -> list[str]:
    return [f"{step.key} {step.state}" for step in checklist.steps]


@pytest.mark.req("UX-2")
def test_steps_are_done_next_or_open_by_what_is_really_there() -> None:
    assert states(checklist_of(EMPTY)) == [
        "passphrase next",
        "mailbox open",
        "mail open",
        "model open",
        "rule open",
        "backup open",
    ]
    begun = checklist_of(replace(EMPTY, has_passphrase=True, mailboxes=("me@example.org",), has_rule=True))
    assert states(begun)[:3] == ["passphrase done", "mailbox done", "mail next"]
    assert (begun.steps[4].state, begun.left) == ("done", 3)
    assert checklist_of(WHOLE).left == 0


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"model": None}, "next", "Optional"),
        ({"model": None, "is_model_wanted": False}, "done", "Not now"),
        ({"model_problem": "The model has no key."}, "next", "has no key"),
        ({}, "done", "a-model decides"),
    ],
    ids=["none", "not now", "broken", "ready"],
)
def test_the_model_is_connected_or_not_wanted_now(change: dict[str, object], state: str, said: str) -> None:
    step = checklist_of(replace(WHOLE, **change)).steps[3]  # type: ignore[arg-type]
    assert step.state == state
    assert said in step.note


def test_imported_mail_counts_as_archived_and_many_mailboxes_are_cut_short() -> None:
    facts = replace(EMPTY, archived=("old@example.org",), mailboxes=tuple(f"{n}@example.org" for n in range(5)))
    _, mailbox, mail, *_ = checklist_of(facts).steps
    assert mail.state == "done"
    assert mailbox.note == "0@example.org, 1@example.org, 2@example.org and 2 more"
