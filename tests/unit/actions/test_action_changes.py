"""What an action changes, and what takes exactly that back: for any labels before, and any that came or went since."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.actions.label_changes import (
    INBOX,
    TRASH,
    LabelCall,
    LabelEdit,
    Labels,
    change_for,
    hint_for,
    inverse_of,
    irreversible,
    snooze_hint,
    undoing,
)
from postroom.actions.wording import wish
from postroom.domain.actions import FOR_GOOD, parse_action
from postroom.domain.actions import ActionType as A
from postroom.domain.errors import Fatal
from postroom.triage.choices import ToolOffer

LABELS = st.frozensets(st.sampled_from(["INBOX", "UNREAD", "STARRED", "TRASH", "SPAM", "Label_1", "Label_2"]))
ACTIONS = st.sampled_from([each for each in A if each not in FOR_GOOD])
LABEL = "Label_1"


def gmail(labels: Labels, change: LabelEdit) -> Labels:
    """What Gmail makes of it: the trash takes the inbox away."""
    for call in change.calls:
        match call:
            case LabelCall.TRASH:
                labels = (labels | {TRASH}) - {INBOX}
            case LabelCall.UNTRASH:
                labels -= {TRASH}
            case _:
                labels = (labels | change.add) - change.remove
    return labels


def done(action: A, before: Labels) -> tuple[Labels, dict[str, Any]]:
    change = change_for(action, before, LABEL)
    after = gmail(before, change)
    if action is A.SNOOZE:
        return after, snooze_hint(change, "2026-01-01T00:00:00+00:00", (LABEL, "Snoozed"), "a job")
    return after, hint_for(action, before, after, change, LABEL)


@pytest.mark.req("JB-15")
@given(action=ACTIONS, before=LABELS)
def test_an_undo_brings_back_the_labels_of_before(action: A, before: Labels) -> None:
    after, hint = done(action, before)
    if hint.get("nothing_changed"):
        assert after == before
    else:
        assert gmail(after, undoing(inverse_of(hint), before, after)) == before


@pytest.mark.req("JB-12")
@given(action=ACTIONS, before=LABELS)
def test_an_action_that_is_done_twice_is_done_once(action: A, before: Labels) -> None:
    change = change_for(action, before, LABEL)
    assert gmail(gmail(before, change), change) == gmail(before, change)


@pytest.mark.req("JB-15")
@given(action=ACTIONS, before=LABELS, now=LABELS)
def test_an_undo_touches_nothing_that_its_action_did_not_change(action: A, before: Labels, now: Labels) -> None:
    after, hint = done(action, before)
    if hint.get("nothing_changed"):
        return
    touched = before ^ after
    assert gmail(now, undoing(inverse_of(hint), before, now)) ^ now <= touched | {INBOX, TRASH}
    if action not in (A.TRASH, A.RESTORE):
        assert gmail(now, undoing(inverse_of(hint), before, now)) ^ now <= touched


@given(action=ACTIONS, before=LABELS, now=LABELS)
def test_an_undo_that_is_done_twice_is_done_once(action: A, before: Labels, now: Labels) -> None:
    _, hint = done(action, before)
    if not hint.get("nothing_changed"):
        change = undoing(inverse_of(hint), before, now)
        assert gmail(gmail(now, change), change) == gmail(now, change)


@pytest.mark.parametrize(
    "hint", [{}, {"inverse_action": "fly"}, {"inverse_action": "unsnooze"}, irreversible(A.DELETE)]
)
def test_a_hint_that_cannot_be_read_is_said_to_be_so(hint: dict[str, Any]) -> None:
    with pytest.raises(Fatal, match="cannot be read"):
        inverse_of(hint)


NEEDS: dict[A, dict[str, Any]] = {
    A.APPLY_LABEL: {"label": "Receipts"},
    A.REMOVE_LABEL: {"label": "Receipts"},
    A.SNOOZE: {"amount": 1, "units": "days"},
    A.FORWARD: {"to": ["anna@example.org"]},
    A.AUTO_REPLY: {"body": "Thank you."},
}


def test_every_action_has_words_for_people_and_for_the_model() -> None:
    said = {action: wish(parse_action(action, NEEDS.get(action))) for action in A}
    assert all(said.values())
    assert len(set(said.values())) == len(A)
    on_message = frozenset({"Receipts", "TRASH", "STARRED"})
    offered = ToolOffer(labels=("Receipts", "Travel"), on_message=on_message, forward_to=("anna@example.org",)).actions
    assert set(offered) == set(A) - {A.DELETE, A.UNSUBSCRIBE}
