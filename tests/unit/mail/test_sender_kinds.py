"""Kinds of sender: which headers speak of bulk mail, robots, people and spam, and what tier policy makes of it."""

from __future__ import annotations

import pytest

from postroom.connectors.priority import ContactProof, PriorityRules
from postroom.domain.terms import AssignmentRule, Tier
from postroom.mail.headers import Headers
from postroom.mail.sender_kinds import KIND_HEADERS, Kind, is_from_a_list, kinds_of
from postroom.mail.tier_policy import SEED, TierPolicy, Treatment, parse_rule

ME = "me@example.com"
PASSED = "mx.google.com; dkim=pass header.d=x.example; dmarc=pass header.from=x.example"


def mail(**headers: str) -> Headers:
    base = {"To": ME, "Date": "Tue, 17 Nov 2026 08:00:00 +0000", "Message_ID": "<1@x.example>", **headers}
    return Headers(tuple((name.replace("_", "-"), value) for name, value in base.items()))


DOCTOR = mail(
    From="Praxis Dr. Falk <no-reply@x.example>",
    Subject="Your appointment tomorrow",
    Auto_Submitted="auto-generated",
    Authentication_Results=PASSED,
)
FRIEND = mail(From="Anna Berg <anna@x.example>", Subject="Re: Saturday", In_Reply_To="<a@b>", User_Agent="Mutt/2.2")
SPAM = mail(
    From="win4u@hotmail.com",
    Subject="EARN CASH NOW!!! Free money guaranteed",
    Content_Type="text/html",
    X_Priority="1",
    Message_ID="<9@odd>",
)
BULK = mail(From="Shop <offers@x.example>", Subject="Hello", Precedence="bulk", Authentication_Results=PASSED)
LIST = mail(
    From="Jo <jo@x.example>",
    Subject="[choir] Thursday",
    List_Post="<mailto:choir@x.example>",
    List_Unsubscribe="<u>",
    List_ID="<choir.x.example>",
    Precedence="bulk",
)
OLD_LIST = mail(
    From="Jo <jo@x.example>", Subject="[lug] kernel", Sender="lug-admin@x.example", X_BeenThere="lug@x.example"
)


@pytest.mark.req("DQ-4")
@pytest.mark.parametrize(
    ("headers", "kinds"),
    [
        (DOCTOR, {Kind.ROBOT}),
        (FRIEND, {Kind.PERSON}),
        (SPAM, {Kind.SPAM_LIKE}),
        (BULK, {Kind.BULK, Kind.ROBOT}),
        (OLD_LIST, {Kind.DISCUSSION}),
    ],
)
def test_headers_speak_of_a_kind(headers: Headers, kinds: set[Kind]) -> None:
    found = kinds_of(headers)
    assert {kind for kind in Kind if found.is_a(kind)} == kinds
    assert all(0 <= score <= 1 for score in found.scores.values())
    assert found.signs


@pytest.mark.req("DQ-4", "BF-20")
def test_spam_without_gmails_label_is_not_taken_in_full() -> None:
    verdict = SEED.decide(SPAM)
    assert verdict.treatment is Treatment.METADATA
    assert "looks like spam" in (verdict.rule or "")
    off = TierPolicy("off", tuple(rule for rule in SEED.rules if not rule.condition.kinds))
    assert off.decide(SPAM).treatment is Treatment.FULL, "the condition can be switched off"
    for wanted in (DOCTOR, FRIEND, OLD_LIST):
        assert SEED.decide(wanted).treatment is Treatment.FULL


@pytest.mark.req("DQ-4", "BF-20")
def test_lists_on_which_people_write_are_not_demoted() -> None:
    assert SEED.decide(LIST).treatment is Treatment.FULL
    announced = mail(From="Shop <shop@x.example>", Subject="New", List_Unsubscribe="<u>", Precedence="bulk")
    assert SEED.decide(announced).treatment is Treatment.METADATA


@pytest.mark.req("DQ-4", "PQ-1")
@pytest.mark.parametrize(
    ("headers", "tier"),
    [
        (DOCTOR, Tier.INTERACTIVE),
        (FRIEND, Tier.INTERACTIVE),
        (SPAM, Tier.DEFAULT),
        (OLD_LIST, Tier.INTERACTIVE),
    ],
)
def test_spam_is_not_interactive_and_a_robot_alone_is(headers: Headers, tier: Tier) -> None:
    assert PriorityRules(frozenset({ME})).assign(headers, (), ()).tier is tier


@pytest.mark.req("DQ-4", "PQ-1")
def test_old_lists_are_not_high_priority_but_replies_on_them_are() -> None:
    contacts, rules = {"jo@x.example"}, PriorityRules(frozenset({ME}), ContactProof.NOT_FAILED)
    assert is_from_a_list(OLD_LIST)
    assert rules.assign(OLD_LIST, contacts, ()).rule is not AssignmentRule.KNOWN_CONTACT
    answer = Headers((*OLD_LIST.pairs, ("In-Reply-To", "<mine@x.example>")))
    assert rules.assign(answer, contacts, {"<mine@x.example>"}).rule is AssignmentRule.REPLY_TO_OUTBOUND


@pytest.mark.req("DQ-4")
def test_the_conditions_of_priority_can_be_switched_off() -> None:
    plain = PriorityRules(frozenset({ME}), ContactProof.NOT_FAILED, uses_kinds=False)
    assert plain.assign(SPAM, (), ()).tier is Tier.INTERACTIVE
    assert plain.assign(OLD_LIST, {"jo@x.example"}, ()).tier is Tier.HIGH_PRIORITY


def test_a_rule_names_the_kinds_it_asks_for_and_the_headers_that_tell() -> None:
    rule = parse_rule({"tier": 3, "note": "No robots", "condition": {"kinds": ["robot"], "without_kinds": ["person"]}})
    policy = TierPolicy("own", (rule,))
    assert policy.decide(DOCTOR).treatment is Treatment.SKIP
    assert policy.decide(FRIEND).treatment is Treatment.FULL
    assert set(KIND_HEADERS) <= policy.headers_read
    assert TierPolicy("none", ()).headers_read < policy.headers_read
