"""The tier policy: what is kept whole, what only by its headers, and that a rule that cannot be read is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.mail.headers import Headers
from postroom.mail.parsing import parse_headers
from postroom.mail.tier_policy import SEED, TierPolicy, Treatment, parse_policy, parse_rule, parse_rules
from postroom.sim.gmail.generated import GeneratedMailbox


def headers(**named: str) -> Headers:
    return Headers(tuple((name.replace("_", "-"), value) for name, value in named.items()))


def policy(*rules: dict[str, Any]) -> TierPolicy:
    return TierPolicy("1", parse_rules({"note": f"rule {number}", **rule} for number, rule in enumerate(rules)))


NO_REPLY = [
    ("Northgate Bank <no-reply@northgate-bank.example>", "Receipt for your transfer"),
    ("noreply@sparkasse-lindental.example", "Kontoauszug Oktober"),
    ("no-reply@lakeside-hospital.example", "Your visit on Friday"),
    ("Praxis Dr. Weiß <noreply@praxis-weiss.example>", "Terminbestätigung"),
    ("no-reply@meridian-airlines.example", "Gate change"),
    ("donotreply@ferryline.example", "Your booking ABC123"),
    ("noreply@shop.example", "Your receipt"),
    ("no-reply@city.gov.example", "Your application"),
    ("do-not-reply@anything.example", "Something that nobody thought of"),
]


@pytest.mark.req("BF-20")
@pytest.mark.parametrize(("sender", "subject"), NO_REPLY)
def test_a_no_reply_address_alone_demotes_nobody(sender: str, subject: str) -> None:
    for extra in ({}, {"Auto_Submitted": "auto-generated"}, {"List_Unsubscribe": "<https://x.example/off>"}):
        assert SEED.decide(headers(From=sender, Subject=subject, **extra)).treatment is Treatment.FULL


@pytest.mark.req("BF-20")
def test_a_banks_receipt_is_kept_and_its_marketing_is_not() -> None:
    receipt = headers(From="alerts@verda.example", Subject="Card payment of 12.00 EUR", Auto_Submitted="auto-generated")
    offer = headers(
        From="marketing@news.northgate-bank.example", Subject="A loan for you", List_Unsubscribe="<https://x.example>"
    )
    assert SEED.decide(receipt, {"CATEGORY_UPDATES"}).treatment is Treatment.FULL
    assert SEED.decide(offer, {"CATEGORY_PROMOTIONS"}).treatment is Treatment.SKIP
    assert SEED.decide(offer, {"CATEGORY_UPDATES"}).treatment is Treatment.METADATA


@pytest.mark.req("BF-20")
def test_spam_that_looks_like_a_bank_is_spam() -> None:
    forged = headers(From="no-reply@northgate-bank.example", Subject="Receipt for your transfer")
    assert SEED.decide(forged, {"SPAM", "UNREAD"}).treatment is Treatment.SKIP


@pytest.mark.req("BF-20")
def test_the_seed_keeps_what_matters_in_a_whole_mailbox_and_demotes_most_of_the_rest() -> None:
    box = GeneratedMailbox(messages=1_500, seed=7, email="owner@example.com")
    treated: dict[str, list[Treatment]] = {}
    for index in range(box.count()):
        mail = box.summary(index)
        verdict = SEED.decide(parse_headers(box.raw(index)), mail.label_ids)
        treated.setdefault(mail.category, []).append(verdict.treatment)
    for category in ("finance", "health", "travel", "relationship", "personal"):
        assert set(treated[category]) == {Treatment.FULL}, category
    for category, share in (("promotion", 0.95), ("social", 0.95), ("spam", 0.9), ("newsletter", 0.75)):
        demoted = sum(each is not Treatment.FULL for each in treated[category])
        assert demoted >= share * len(treated[category]), category


@pytest.mark.req("BF-20")
def test_the_first_rule_that_matches_decides_and_no_match_is_tier_1() -> None:
    rules = policy(
        {"tier": 1, "condition": {"sender": ["Boss@Work.example"]}},
        {"tier": 3, "condition": {"sender_domain": ["work.example"]}},
        {"tier": 2, "condition": {"subject": "weekly"}, "enabled": False},
    )
    assert rules.decide(headers(From="BOSS@work.EXAMPLE")).rule == "rule 0"
    assert rules.decide(headers(From="a@hr.work.example")).treatment is Treatment.SKIP
    assert rules.decide(headers(From="a@notwork.example", Subject="Weekly")) == rules.decide(headers())
    assert rules.decide(headers()).treatment is Treatment.FULL
    assert rules.decide(headers()).rule is None


def test_every_sender_has_to_fit() -> None:
    rules = policy({"tier": 3, "condition": {"sender_domain": ["ads.example"]}})
    both = headers(From="x@ads.example, friend@home.example")
    assert rules.decide(both).treatment is Treatment.FULL
    assert rules.decide(headers(From="Undisclosed: x@ads.example, y@ads.example;")).treatment is Treatment.SKIP


def test_conditions_read_headers_without_case_and_subjects_decoded() -> None:
    rules = policy(
        {"tier": 2, "condition": {"headers": {"x-campaign": "^spring"}, "without_headers": ["list-post"]}},
        {"tier": 3, "condition": {"subject": "größe", "bulk": True, "labels": ["Later", "Shop"]}},
    )
    assert rules.decide(headers(X_CAMPAIGN="Spring 26")).treatment is Treatment.METADATA
    assert rules.decide(headers(X_CAMPAIGN="Spring 26", LIST_POST="<mailto:l>")).treatment is Treatment.FULL
    shop = headers(Subject="=?utf-8?q?Ihre_GR=C3=96SSE_gr=C3=B6=C3=9Fe?=", Precedence="BULK")
    assert rules.decide(shop, {"Shop"}).treatment is Treatment.SKIP
    assert rules.decide(shop, {"INBOX"}).treatment is Treatment.FULL


BAD_RULES = [
    ({"tier": 4, "condition": {"bulk": True}, "note": "x"}, "tier"),
    ({"tier": True, "condition": {"bulk": True}, "note": "x"}, "tier"),
    ({"tier": 2, "note": "x"}, "condition"),
    ({"tier": 2, "condition": {}, "note": "x"}, "condition"),
    ({"tier": 2, "condition": {"bulk": None}, "note": "x"}, "condition"),
    ({"tier": 2, "condition": {"bulk": "yes"}, "note": "x"}, "condition.bulk"),
    ({"tier": 2, "condition": {"subject": "(a"}, "note": "x"}, "condition.subject"),
    ({"tier": 2, "condition": {"subject": "(?=a)"}, "note": "x"}, "condition.subject"),
    ({"tier": 2, "condition": {"subject": r"(a)\1"}, "note": "x"}, "condition.subject"),
    ({"tier": 2, "condition": {"subject": "a" * 1_001}, "note": "x"}, "condition.subject"),
    ({"tier": 2, "condition": {"subject": "((a{1,100}){1,100}){1,100}"}, "note": "x"}, "condition.subject"),
    ({"tier": 2, "condition": {"sender": ["nobody"]}, "note": "x"}, "condition.sender.0"),
    ({"tier": 2, "condition": {"sender_domain": ["a b.example"]}, "note": "x"}, "condition.sender_domain.0"),
    ({"tier": 2, "condition": {"sender_domain": ["ok.example", ""]}, "note": "x"}, "condition.sender_domain.1"),
    ({"tier": 2, "condition": {"headers": {"X Y": "a"}}, "note": "x"}, "condition.headers.X Y"),
    ({"tier": 2, "condition": {"headers": {"X-Y": "["}}, "note": "x"}, "condition.headers.X-Y"),
    ({"tier": 2, "condition": {"bulk": True, "colour": "red"}, "note": "x"}, "condition.colour"),
    ({"tier": 2, "condition": {"bulk": True}, "note": ""}, "note"),
    ({"tier": 2, "condition": {"bulk": True}, "note": "two\nlines"}, "note"),
    ({"tier": 2, "condition": {"bulk": True}}, "note"),
    ({"tier": 2, "condition": {"bulk": True}, "note": "x", "enabled": 1}, "enabled"),
    ("delete everything", ""),
    (None, ""),
]


@pytest.mark.req("BF-20")
@pytest.mark.parametrize(("rule", "field"), BAD_RULES)
def test_a_bad_rule_is_refused_with_its_place_and_field(rule: Any, field: str) -> None:
    good = {"tier": 2, "condition": {"bulk": True}, "note": "fine"}
    with pytest.raises(BadInput) as caught:
        parse_policy({"version": "1", "rules": [good, rule]})
    assert caught.value.field.startswith("rules[1]")
    assert caught.value.field.endswith(field)


@pytest.mark.parametrize(
    "form", [None, [], {}, {"version": "1"}, {"version": 1, "rules": []}, {"version": "1", "rules": [], "more": 1}]
)
def test_a_policy_of_another_form_is_refused(form: Any) -> None:
    with pytest.raises(BadInput):
        parse_policy(form)


@pytest.mark.req("BF-20")
def test_a_policy_survives_its_journey_as_json() -> None:
    again = parse_policy(json.loads(json.dumps(SEED.to_json())))
    assert again == SEED
    assert parse_rule(SEED.to_json()["rules"][0]) == SEED.rules[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_anything_else_is_bad_input_and_nothing_worse(form: Any) -> None:
    for data in (form, {"version": "1", "rules": [form]}, {"version": "1", "rules": [{"tier": 1, "condition": form}]}):
        with pytest.raises(BadInput):
            parse_policy(data)


@given(
    st.lists(st.tuples(st.sampled_from(["From", "Subject", "List-Unsubscribe", "Precedence"]), st.text()), max_size=8)
)
def test_any_headers_get_a_verdict(pairs: list[tuple[str, str]]) -> None:
    assert SEED.decide(Headers(tuple(pairs))).treatment in Treatment


def test_a_long_hostile_subject_takes_no_time() -> None:
    rules = policy({"tier": 2, "condition": {"subject": "(a+)+$"}})
    assert rules.decide(headers(Subject="a" * 1_900 + "!")).treatment is Treatment.FULL
    assert rules.decide(headers(Subject="a" * 60_000 + "!")).treatment is Treatment.METADATA, "cut after 2,000"


def test_half_a_character_is_looked_at_like_any_other_text() -> None:
    rule = {"tier": 3, "condition": {"subject": "lottery"}, "note": "Never."}
    policy = parse_policy({"version": "1", "rules": [rule]})
    subject = "\udcff LOTTERY \ud800"
    assert policy.decide(Headers((("Subject", subject),))).treatment is Treatment.SKIP
    with pytest.raises(BadInput):
        parse_policy({"version": "1", "rules": [rule | {"condition": {"subject": "\ud800"}}]})
