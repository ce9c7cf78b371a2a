"""When an action waits for a person, and that every reason is told."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.actions import CONSEQUENCES, DOING, ActionType, Consequence, WantedAction, meaning, parse_action
from postroom.settings import SafetySettings
from postroom.triage.choices import ModelChoice
from postroom.triage.decision import DecidedBy
from postroom.triage.prompt import Briefing, MailToJudge
from postroom.triage.safety import acts_alone, decided_by_model, least_confidence, reasons_for
from postroom.triage.signs import NOTHING_SUSPICIOUS, Suspicion

SAFETY = SafetySettings()
ODD = Suspicion(("it speaks to a model",))
NEEDS: dict[ActionType, dict[str, Any]] = {
    ActionType.APPLY_LABEL: {"label": "Receipts"},
    ActionType.REMOVE_LABEL: {"label": "Receipts"},
    ActionType.SNOOZE: {"amount": 1, "units": "days"},
    ActionType.FORWARD: {"to": ["anna@example.org"]},
    ActionType.AUTO_REPLY: {"body": "Thank you."},
}
WANTED = {action: parse_action(action, NEEDS.get(action)) for action in ActionType}
actions = st.sampled_from(list(ActionType))


def by_model(wanted: WantedAction, confidence: float | None = 1.0, **more: Any) -> tuple[str, ...]:
    return reasons_for(wanted, DecidedBy.MODEL, confidence, more.pop("safety", SAFETY), **more)


@pytest.mark.req("JB-11")
def test_every_reason_is_told() -> None:
    safety = SafetySettings(always_approve="trash")
    trash = WANTED[ActionType.TRASH]
    reasons = by_model(
        trash, 0.5, safety=safety, suspicion=ODD, model_asked=True, strangers=("thief@elsewhere.example",)
    )
    wanted = ("always", "dangerous", "50% sure, and this needs 95%", "asks", "instruct the model: it speaks", "thief@")
    assert len(reasons) == len(wanted)
    assert all(part in reason for part, reason in zip(wanted, reasons, strict=True))


@pytest.mark.req("JB-11")
@pytest.mark.parametrize(
    ("action", "confidence", "waits"),
    [
        ("star", 0.7, False),
        ("star", 0.69, True),
        ("apply_label", 0.7, False),
        ("archive", 0.79, True),
        ("archive", 0.8, False),
        ("mark_read", 0.75, True),
        ("remove_label", 0.75, True),
        ("snooze", 0.8, False),
        ("star", None, True),
        ("star", float("nan"), True),
    ],
)
def test_the_further_an_action_reaches_the_surer_a_model_must_be(
    action: str, confidence: float | None, waits: bool
) -> None:
    assert bool(by_model(WANTED[ActionType(action)], confidence)) is waits


@pytest.mark.req("JB-11")
def test_a_dangerous_action_waits_whoever_wants_it_but_for_a_rule_that_the_owner_lets_run_alone() -> None:
    for action in SAFETY.dangerous:
        wanted = WANTED[action]
        assert by_model(wanted)
        assert by_model(wanted, unattended=True), "only a rule can be unattended"
        assert reasons_for(wanted, DecidedBy.RULE, 1.0, SAFETY)
        assert not reasons_for(wanted, DecidedBy.RULE, 1.0, SAFETY, unattended=True)
        always = SafetySettings(always_approve=str(action))
        expected = (f"{DOING[action]} always needs approval",)
        assert reasons_for(wanted, DecidedBy.RULE, 1.0, always, unattended=True) == expected


@pytest.mark.req("JB-11")
@pytest.mark.parametrize(
    ("action", "label", "means"),
    [
        ("apply_label", "TRASH", "trash"),
        ("apply_label", " trash", "trash"),
        ("apply_label", "SPAM", "trash"),
        ("remove_label", "INBOX", "archive"),
        ("remove_label", "Unread", "mark_read"),
        ("apply_label", "Receipts", "apply_label"),
        ("remove_label", "TRASH", "restore"),
    ],
)
def test_a_label_that_is_a_state_of_gmails_counts_as_what_it_does(action: str, label: str, means: str) -> None:
    wanted = parse_action(action, {"label": label})
    assert meaning(wanted) == means
    if means == "trash":
        assert by_model(wanted)
        assert reasons_for(wanted, DecidedBy.RULE, 1.0, SAFETY)


@pytest.mark.req("JB-11")
@settings(deadline=None, derandomize=True)
@given(actions, st.floats(0, 1), st.booleans(), st.booleans())
def test_no_doubt_takes_another_reason_away(action: ActionType, sure: float, asked: bool, odd: bool) -> None:
    fewer = set(by_model(WANTED[action], 1.0))
    more = set(by_model(WANTED[action], sure, model_asked=asked, suspicion=ODD if odd else NOTHING_SUSPICIOUS))
    assert fewer <= more
    assert not asked or more
    assert not (odd and CONSEQUENCES[action] > Consequence.MARKS) or any("instruct" in reason for reason in more)


@given(st.tuples(*[st.floats(0, 1)] * 3))
def test_what_reaches_further_never_needs_less(steps: tuple[float, float, float]) -> None:
    safety = SafetySettings(min_confidence=steps[0], hiding_confidence=steps[1], destroying_confidence=steps[2])
    least = [least_confidence(reach, safety) for reach in Consequence]
    assert all(less <= more for less, more in itertools.pairwise(least))


def test_a_rule_is_sure_and_is_not_swayed_by_what_the_message_says() -> None:
    assert not reasons_for(WANTED[ActionType.ARCHIVE], DecidedBy.RULE, 1.0, SAFETY, suspicion=ODD)


@pytest.mark.req("JB-11")
@pytest.mark.parametrize(
    ("headers", "reached"),
    [
        ({"from": "Ann <ann@example.org>"}, None),
        ({"from": "ann@example.org", "reply-to": "ANN@Example.org"}, None),
        ({"from": "ann@example.org", "reply-to": "eve@example.com"}, "eve@example.com"),
        ({"from": "ann@example.org, eve@example.com", "reply-to": "eve@example.com"}, "eve@example.com"),
        ({"from": "ann@example.org, eve@example.com"}, "eve@example.com"),
    ],
)
def test_a_reply_that_reaches_somebody_beside_the_sender_waits(headers: dict[str, Any], reached: str | None) -> None:
    received = datetime(2026, 1, 1, tzinfo=UTC)
    mail = MailToJudge("ann@example.org", None, "Hello", "Hello", received, headers, (), ())
    fearless = SafetySettings(dangerous_actions="delete")
    decision = decided_by_model(ModelChoice(WANTED[ActionType.AUTO_REPLY], 1.0, "x"), mail, Briefing(), fearless)
    assert decision.reasons == (() if reached is None else (f"it would reach {reached}, whom you have not named",))


@pytest.mark.req("HW-4")
@pytest.mark.parametrize(
    ("actions", "unattended", "settings", "alone"),
    [
        (["trash"], True, SafetySettings(), True),
        (["archive", "forward"], True, SafetySettings(), True),
        (["trash"], False, SafetySettings(), False),
        (["archive"], True, SafetySettings(), False),
        (["trash"], True, SafetySettings(always_approve="trash"), False),
        (["trash"], False, SafetySettings(dangerous_actions="delete"), True),
        (["archive"], True, SafetySettings(dangerous_actions="archive"), True),
    ],
)
def test_a_rule_acts_alone_where_nobody_is_asked_before_it_sends_or_destroys(
    actions: list[str], unattended: bool, settings: SafetySettings, alone: bool
) -> None:
    wanted = [WANTED[ActionType(name)] for name in actions]
    assert acts_alone(wanted, settings, unattended=unattended) is alone


@pytest.mark.req("HW-4")
def test_a_rule_that_labels_mail_as_trash_acts_alone_too() -> None:
    assert acts_alone([parse_action("apply_label", {"label": "TRASH"})], SafetySettings(), unattended=True)
