"""The pure parts of local triage: facts as keyed hashes, a linear model, what its margins are worth, and rights."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.actions import parse_action
from postroom.triage.choices import ToolOffer
from postroom.triage.learning.features import Features, features_of, names_of, unpack
from postroom.triage.learning.learner import Calibration, Label, Learned, LinearModel, calibrated, is_due, refitted
from postroom.triage.learning.owner_labels import OurActions, by_hand
from postroom.triage.learning.rights import (
    ALLOWED,
    OTHER,
    Circumstances,
    Right,
    RightState,
    answer_of,
    hides,
    is_offered,
    looks_personal,
    lower_bound,
    upper_bound,
    vouched_domain,
    wanted_of,
    why_not_alone,
)
from postroom.triage.rules.facts import MessageFacts, stored_facts
from postroom.triage.signs import Suspicion, TextSigns

SERVERS = ("mx.google.com",)
KEY = b"a key"


def facts(sender: str = "news@shop.example", subject: str = "Offers", **headers: str) -> MessageFacts:
    given: dict[str, Any] = {name.replace("_", "-"): value for name, value in headers.items()}
    return stored_facts(
        account_id=None,
        sender=sender,
        subject=subject,
        headers={"from": sender, "to": "me@example.org"} | given,
        labels=("INBOX",),
        has_attachment=False,
        size_bytes=None,
        received_at=datetime(2026, 3, 4, tzinfo=UTC),
    )


@pytest.mark.req("DQ-7")
@given(st.text(max_size=80), st.text(max_size=40), st.binary(min_size=1, max_size=32))
def test_facts_of_any_mail_are_keyed_hashes_that_survive_packing(subject: str, name: str, key: bytes) -> None:
    found = features_of(facts(f"{name}@x.example", subject), key)
    assert tuple(unpack(found.pack())) == found.hashes
    assert len(set(found.hashes)) == len(found.hashes) == len(found.kinds)
    other = features_of(facts(f"{name}@x.example", subject), key + b"x")
    assert not set(found.hashes) & set(other.hashes)


@pytest.mark.req("DQ-6")
def test_the_kinds_of_facts_never_say_what_the_mail_says() -> None:
    one = features_of(facts("anna@secret.example", "Zanzibar 4711"), KEY)
    other = features_of(facts("bob@open.example", "Quarterly numbers 1"), KEY)
    words = " ".join(one.kinds)
    assert "zanzibar" not in words
    assert "secret" not in words
    assert set(other.kinds) == set(one.kinds) | {"words in the subject"}


@given(st.lists(st.tuples(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.sampled_from("abc")), max_size=60))
def test_weights_survive_being_stored(examples: list[tuple[list[int], str]]) -> None:
    model = LinearModel()
    for hashes, answer in examples:
        model.learn(hashes, answer)
    again = LinearModel.from_bytes(model.to_bytes())
    for hashes, _ in examples:
        first, second = model.guess(hashes), again.guess(hashes)
        assert first is not None
        assert second is not None
        assert second.margin == pytest.approx(first.margin, abs=1e-4)
        assert model.known_share(hashes) == again.known_share(hashes) == 1.0


def test_it_learns_what_tells_answers_apart_and_says_which_fact_did() -> None:
    model = LinearModel()
    for _ in range(40):
        model.learn([1, 7], "archive")
        model.learn([2, 7], "none")
    guess = model.guess([1, 7])
    assert guess is not None
    assert guess.answer == "archive"
    reasons = model.reasons([1, 7], ["sender", "headers it has"], "archive")
    assert names_of(reasons)[0] == "sender"


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=400))
def test_a_larger_margin_is_never_worth_less_and_nothing_is_certain(guesses: list[tuple[float, bool]]) -> None:
    found = calibrated(guesses)
    worth = [found.probability(margin / 2) for margin in range(42)]
    assert worth == sorted(worth)
    assert all(0 <= probability < 1 for probability in worth)
    assert Calibration.from_json(found.to_json()) == found


def test_few_guesses_make_nothing_sure() -> None:
    assert calibrated([(5.0, True)] * 20).probability(9.0) < 0.98
    assert calibrated([(5.0, True)] * 100).probability(9.0) > 0.99


@pytest.mark.req("DQ-5")
@given(st.lists(st.booleans(), max_size=300), st.booleans())
def test_a_right_is_earned_and_lost_by_proof_alone(comparisons: list[bool], hiding: bool) -> None:
    right = Right()
    for agreed in comparisons:
        before, right = right, right.after(agreed, hides=hiding)
        seen = before.recent + ("=" if agreed else "x")
        if right.state is RightState.EARNED and not before.may_decide:
            assert upper_bound(seen.count("x"), len(seen)) <= (0.025 if hiding else 0.05)
        if before.may_decide and not right.may_decide:
            assert right.state is RightState.LOST
            assert not agreed
            assert lower_bound(seen.count("x"), len(seen)) > ALLOWED


@pytest.mark.req("DQ-5")
def test_an_answer_that_hides_takes_twice_the_proof_and_a_lost_one_twice_again() -> None:
    def needed(right: Right, *, hiding: bool) -> int:
        count = 0
        while not right.may_decide:
            right, count = right.after(True, hides=hiding), count + 1
        return count

    assert (needed(Right(), hiding=False), needed(Right(), hiding=True)) == (52, 106)
    lost = Right(RightState.EARNED).after(False, hides=True).after(False, hides=True)
    assert lost == Right(RightState.LOST)
    assert needed(lost, hiding=True) == 214
    once = Right(RightState.EARNED).after(False, hides=True)
    assert once.may_decide


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sets(st.integers(1, 20), min_size=1), st.sampled_from("ab")), max_size=80))
def test_learning_as_labels_come_and_a_refit_know_the_same(examples: list[tuple[set[int], str]]) -> None:
    labels = [Label(number, tuple(sorted(found)), answer) for number, (found, answer) in enumerate(examples, 1)]
    online = Learned()
    for label in labels:
        online.take([label])
    again = refitted(labels)
    assert again.seq == online.seq == len(labels)
    for label in labels:
        assert again.model.guess(label.facts) == online.model.guess(label.facts)


def test_nothing_is_known_before_the_first_fit() -> None:
    learned = Learned()
    learned.take([Label(1, (1, 2), "archive")])
    opinion = learned.opinion(Features((1, 2), ("a", "b")))
    assert opinion is not None
    assert opinion.confidence == 0.0
    assert [is_due(24, 0), is_due(25, 0), is_due(1_199, 1_000), is_due(1_200, 1_000)] == [False, True, False, True]
    assert [is_due(503_999, 500_000), is_due(504_000, 500_000)] == [False, True]


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        (None, "none"),
        (parse_action("archive"), "archive"),
        (parse_action("apply_label", {"label": "Two words"}), "apply_label Two words"),
        (parse_action("trash"), OTHER),
        (parse_action("apply_label", {"label": "TRASH"}), OTHER),
        (parse_action("snooze", {"amount": 2, "units": "days"}), OTHER),
        (parse_action("forward", {"to": ["a@b.example"]}), OTHER),
        (parse_action("auto_reply", {"body": "Yes."}), OTHER),
    ],
)
@pytest.mark.req("DQ-6")
def test_what_sends_destroys_or_snoozes_is_no_answer_of_its_own(wanted: Any, answer: str) -> None:
    assert answer_of(wanted) == answer
    if answer != OTHER:
        assert wanted_of(answer) == wanted
    assert not is_offered(OTHER, ToolOffer())


def test_only_what_the_model_could_answer_is_offered() -> None:
    offer = ToolOffer(labels=("Paid",), on_message=frozenset({"INBOX"}))
    offered = [is_offered(answer, offer) for answer in ("none", "archive", "apply_label Paid", "apply_label Other")]
    assert offered == [True, True, True, False]
    assert [hides("archive"), hides("apply_label Paid"), hides("none"), hides(OTHER)] == [True, False, False, False]


def test_the_authenticated_domain_is_the_senders_or_that_of_the_list_that_passed_it_on() -> None:
    passed = "mx.google.com; dkim=pass header.i=@shop.example; dmarc=pass header.from=shop.example"
    assert vouched_domain(facts(authentication_results=passed), SERVERS) == "shop.example"
    by_list = "mx.google.com; dkim=pass header.i=@lists.example; dmarc=fail header.from=home.example"
    mail = facts("ann@home.example", authentication_results=by_list, list_id="<talk.lists.example>")
    assert vouched_domain(mail, SERVERS) == "lists.example"
    assert vouched_domain(facts("ann@home.example", authentication_results=by_list), SERVERS) is None
    forged = "other.example; dmarc=pass header.from=shop.example"
    assert vouched_domain(facts(authentication_results=forged), SERVERS) is None
    assert vouched_domain(facts(), SERVERS) is None


UNSUSPICIOUS = TextSigns()
FREE = Circumstances("shop.example", (), False, UNSUSPICIOUS, False)


@pytest.mark.req("DQ-6")
@pytest.mark.parametrize(
    "about",
    [
        Circumstances(None, (), False, UNSUSPICIOUS, False),
        Circumstances("shop.example", ("a@b.example",), False, UNSUSPICIOUS, False),
        Circumstances("shop.example", (), True, UNSUSPICIOUS, False),
        Circumstances("shop.example", (), False, TextSigns(security="a code"), False),
        Circumstances("shop.example", (), False, TextSigns(Suspicion(("it is strange",))), False),
        Circumstances("shop.example", (), False, UNSUSPICIOUS, True),
    ],
)
def test_each_guard_alone_keeps_it_from_deciding(about: Circumstances) -> None:
    assert why_not_alone(FREE, "archive", 30, 30) is None
    assert why_not_alone(FREE, "archive", 29, 30) is not None
    assert why_not_alone(FREE, OTHER, 30, 30) is not None
    assert why_not_alone(about, "archive", 30, 30) is not None


def test_mail_without_signs_of_bulk_or_robot_looks_personal() -> None:
    assert looks_personal(facts("anna@home.example"))
    assert not looks_personal(facts("no-reply@home.example"))
    assert not looks_personal(facts("anna@home.example", list_unsubscribe="<https://x.example>"))
    assert not looks_personal(facts("anna@home.example", cc="b@x.example, c@x.example"))


@pytest.mark.req("DQ-6")
def test_mail_that_looks_like_spam_does_not_look_personal_unless_a_person_shows() -> None:
    spam = {"content_type": "text/html", "x_priority": "1", "date": "today"}
    assert not looks_personal(facts("win@new.example", **spam))
    assert looks_personal(facts("anna@home.example", **spam, in_reply_to="<1@x.example>", user_agent="Thunderbird"))


NOTHING_DONE = OurActions(took_out=False, under_way=False, labels=frozenset(), starred=False)
TOOK_OUT = OurActions(took_out=True, under_way=False, labels=frozenset({"paid"}), starred=False)
UNDER_WAY = OurActions(took_out=True, under_way=True, labels=frozenset(), starred=True)


@pytest.mark.req("DQ-5")
@pytest.mark.parametrize(
    ("now", "ours", "answer"),
    [
        ("unread", NOTHING_DONE, "archive"),
        ("", NOTHING_DONE, None),  # read, then archived
        ("inbox", NOTHING_DONE, None),  # only read
        ("unread", TOOK_OUT, None),  # our own archiving
        ("inbox unread", TOOK_OUT, "none"),  # put back
        ("trash", NOTHING_DONE, OTHER),
        ("inbox unread starred", NOTHING_DONE, "star"),
        ("inbox unread starred", UNDER_WAY, None),
        ("inbox unread Trips", NOTHING_DONE, "apply_label Trips"),
        ("inbox unread Paid", OurActions(False, False, frozenset({"paid"}), False), None),
    ],
)
def test_a_change_by_hand_is_a_label_unless_it_is_silence_or_an_echo(now: str, ours: OurActions, answer: Any) -> None:
    before = {"inbox": "INBOX", "unread": "UNREAD"}
    assert by_hand(before, {label.lower(): label for label in now.split()}, ours) == answer
