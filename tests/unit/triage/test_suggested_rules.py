"""Suggested rules: what the owner keeps doing, never what was refused, undone or done otherwise, and not again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from postroom.domain.actions import parse_action
from postroom.settings import SafetySettings
from postroom.triage.rules.suggesting import LEAST, KindOf, MailKind, OwnDecision, kinds_of, signature, suggest

pytestmark = pytest.mark.req("UX-1")

SHOP, LIST = MailKind(KindOf.SENDER, "news@shop.example"), MailKind(KindOf.LIST, "dev.lists.example")
SAFETY = SafetySettings()
_numbers: Iterator[int] = count()


def decided(kind: MailKind, action: str, times: int = LEAST, *, agrees: bool = True, **given: Any) -> list[OwnDecision]:
    wanted = parse_action(action, given)
    return [OwnDecision(kind, wanted, f"m{next(_numbers)}", "Offer", agrees) for _ in range(times)]


def named(decisions: list[OwnDecision], **more: Any) -> list[str]:
    return [each.draft.name for each in suggest(decisions, SAFETY, **more)]


def test_what_is_done_again_and_again_is_suggested_the_most_frequent_first() -> None:
    often = decided(LIST, "apply_label", 5, label="Dev")
    found = suggest([*decided(SHOP, "archive"), *often, *decided(SHOP, "star", LEAST - 1)], SAFETY)
    assert [(each.draft.name, each.times) for each in found] == [
        ("Label Dev: dev.lists.example", 5),
        ("Archive: news@shop.example", LEAST),
    ]
    assert found[1].draft.condition == {"sender": "news@shop.example"}
    assert found[1].subjects == ["Offer"] * 3


def test_the_same_message_counts_once() -> None:
    [one] = decided(SHOP, "archive", 1)
    assert named([one] * LEAST) == []


@pytest.mark.parametrize("against", [{"action": "archive", "agrees": False}, {"action": "trash"}])
def test_one_contradiction_is_enough_to_suggest_nothing(against: dict[str, Any]) -> None:
    assert named([*decided(SHOP, "archive", 9), *decided(SHOP, times=1, **against)]) == []


def test_a_label_beside_the_archive_is_no_contradiction_and_other_mail_says_nothing() -> None:
    labels = decided(SHOP, "apply_label", label="Shops")
    elsewhere = decided(LIST, "trash", 1)
    assert len(named([*decided(SHOP, "archive"), *labels, *elsewhere])) == 2


@pytest.mark.parametrize(
    ("action", "given"),
    [("auto_reply", {"body": "No."}), ("forward", {"to": ["a@b.example"]}), ("delete", {})],
)
def test_nothing_is_suggested_that_cannot_be_undone(action: str, given: dict[str, Any]) -> None:
    assert named(decided(SHOP, action, 9, **given)) == []


def test_what_a_rule_does_already_or_the_owner_dismissed_is_not_suggested() -> None:
    decisions = decided(SHOP, "archive")
    existing = {signature(SHOP.condition, decisions[0].wanted)}
    assert named(decisions, existing=existing) == []
    [found] = suggest(decisions, SAFETY)
    assert named(decisions, dismissed={found.key}) == []
    assert named(decisions, taken={"Archive: news@shop.example"}) == ["Archive: news@shop.example (2)"]


def test_a_rule_that_would_wait_each_time_is_suggested_without_approval() -> None:
    [trash], [archive] = suggest(decided(SHOP, "trash"), SAFETY), suggest(decided(SHOP, "archive"), SAFETY)
    assert (trash.draft.unattended, archive.draft.unattended) == (True, False)


def test_kinds_of_mail_are_a_sender_a_list_and_a_domain_that_is_one_house() -> None:
    found = kinds_of(["news@shop.example"], "offers.shop.example")
    assert [(each.of, each.value) for each in found] == [
        (KindOf.SENDER, "news@shop.example"),
        (KindOf.LIST, "offers.shop.example"),
        (KindOf.DOMAIN, "shop.example"),
    ]
    assert [each.of for each in kinds_of(["ann@gmail.com"], None)] == [KindOf.SENDER]
    assert kinds_of(["ann@gmail.com", "eve@evil.example"], None) == []
