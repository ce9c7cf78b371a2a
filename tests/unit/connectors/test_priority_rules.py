"""The priority rules: order, awkward headers, and that a forged sender buys nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.connectors.priority import ContactProof, PriorityRules, TierAssignment, own_form
from postroom.domain.terms import AssignmentRule, Tier
from postroom.mail.headers import Headers
from postroom.mail.parsing import parse_headers
from postroom.sim.gmail.generated import GeneratedMailbox

OWNER = "owner@gmail.com"
RULES = PriorityRules(frozenset({own_form(OWNER)}))
CONTACTS = frozenset({"ann@friends.example", "maxmuster@gmail.com"})
SENT = frozenset({"<sent-1@mail.example>"})
GENUINE = "mx.google.com; dkim=pass header.i=@friends.example; spf=pass smtp.mailfrom=ann@friends.example; dmarc=pass"

KNOWN = TierAssignment(Tier.HIGH_PRIORITY, AssignmentRule.KNOWN_CONTACT)
REPLY = TierAssignment(Tier.HIGH_PRIORITY, AssignmentRule.REPLY_TO_OUTBOUND)
DIRECT = TierAssignment(Tier.INTERACTIVE, AssignmentRule.DIRECT_CORRESPONDENCE)
DEFAULT = TierAssignment(Tier.DEFAULT, AssignmentRule.FALLBACK_DEFAULT)


PROVEN = ("Authentication-Results", GENUINE)
LENIENT = PriorityRules(RULES.own, ContactProof.NOT_FAILED)


def assigned(*pairs: tuple[str, str], rules: PriorityRules = RULES) -> TierAssignment:
    return rules.assign(Headers(pairs), CONTACTS, SENT)


@pytest.mark.req("PQ-1")
def test_the_first_rule_that_matches_wins() -> None:
    contact, reply = ("From", "ann@friends.example"), ("In-Reply-To", "<sent-1@mail.example>")
    direct, bulk = ("To", OWNER), ("List-Unsubscribe", "<https://x.example>")
    assert assigned(contact, reply, direct, PROVEN) == KNOWN
    assert assigned(contact, reply, direct, bulk, PROVEN) == REPLY
    assert assigned(("From", "shop@x.example"), reply, direct, bulk) == REPLY
    assert assigned(("From", "shop@x.example"), direct) == DIRECT
    assert assigned(("From", "shop@x.example"), direct, bulk) == DEFAULT
    assert assigned() == DEFAULT


AWKWARD_SENDERS = [
    "ANN@Friends.EXAMPLE",
    '"Ann (at work)" <ann@friends.example>',
    "=?utf-8?q?Ann=2C_bob=40x=2Eexample?= <ann@friends.example>",
    "ann@friends.example (Ann, evil@x.example)",
    "Ann <@relay.example,@other.example:ann@friends.example>",
    "  ann  @  friends.example ",
    '"ann"@friends.example',
    "Max.Muster+news@googlemail.com",
    "Family: ann@friends.example, max.muster@gmail.com;",
]


@pytest.mark.req("PQ-2")
@pytest.mark.parametrize("sender", AWKWARD_SENDERS)
def test_a_contact_is_known_however_the_address_is_written(sender: str) -> None:
    assert assigned(PROVEN, ("FROM", sender)) == KNOWN


IMPOSTORS = [
    "ann@friends.example <evil@x.example>",
    '"ann@friends.example" <evil@x.example>',
    "=?utf-8?q?ann=40friends=2Eexample?= <evil@x.example>",
    "evil@x.example (ann@friends.example)",
    "ann@friends.example, evil@x.example",
    "evil@x.example, ann@friends.example",
    "ann@friends.example.evil.example",
    "ann+x@friends.example",
    "a.nn@friends.example",
    "",
]


@pytest.mark.req("PQ-2", "PQ-5")
@pytest.mark.parametrize("sender", IMPOSTORS)
def test_an_impostor_is_no_contact(sender: str) -> None:
    assert assigned(PROVEN, ("From", sender)) == DEFAULT
    assert assigned(("From", sender), rules=LENIENT) == DEFAULT


@pytest.mark.req("PQ-5")
def test_a_second_from_header_does_not_help_a_forger() -> None:
    two = (("From", "ann@friends.example"), ("From", "evil@x.example"))
    assert assigned(PROVEN, *two) == assigned(*two, rules=LENIENT) == DEFAULT


@pytest.mark.req("PQ-2")
@pytest.mark.parametrize(
    "to",
    [
        "OWNER@GMAIL.COM",
        "o.w.n.e.r+shop@googlemail.com",
        "Undisclosed: someone@x.example, Owner <owner@gmail.com>;",
        "=?iso-8859-1?q?B=E4r?= <x@y.example>, <owner@gmail.com>",
        "a@b.example (me, owner@x.example), owner@gmail.com",
    ],
)
def test_the_user_is_found_among_the_recipients(to: str) -> None:
    assert assigned(("From", "x@y.example"), ("tO", to)) == DIRECT


@pytest.mark.req("PQ-2")
def test_several_to_headers_count_together() -> None:
    assert assigned(("To", "x@y.example"), ("Cc", "z@y.example"), ("TO", OWNER)) == DIRECT
    assert assigned(("To", "x@y.example"), ("Cc", OWNER), ("Bcc", OWNER)) == DEFAULT


@pytest.mark.req("PQ-1")
@pytest.mark.parametrize("value", ["bulk", "LIST", " Junk ", "bulk; x=1", "list, bulk"])
def test_a_mass_mailing_is_not_direct(value: str) -> None:
    assert assigned(("To", OWNER), ("precedence", value)) == DEFAULT


def test_other_precedences_say_nothing() -> None:
    assert assigned(("To", OWNER), ("Precedence", "first-class")) == DIRECT
    assert assigned(("To", OWNER), ("Precedence", "")) == DIRECT


@pytest.mark.req("PQ-3")
def test_references_count_only_without_in_reply_to() -> None:
    old = ("References", "<x@y> <sent-1@mail.example>")
    assert assigned(old) == REPLY
    assert assigned(old, ("In-Reply-To", "<other@y>")) == DEFAULT
    assert assigned(old, ("In-Reply-To", "  ")) == REPLY
    assert assigned(("In-Reply-To", "sent-1@mail.example")) == REPLY
    assert assigned(("In-Reply-To", "your letter of Monday <sent-1@mail.example>")) == REPLY
    assert assigned(("In-Reply-To", "<SENT-1@mail.example>")) == DEFAULT


CONTACT = ("From", "Ann <ann@friends.example>")
FORGED = [
    "mx.google.com; dmarc=fail (p=REJECT) header.from=friends.example",
    "mx.google.com; spf=fail smtp.mailfrom=ann@friends.example",
    "mx.google.com; spf=softfail smtp.mailfrom=ann@friends.example; dkim=none",
    "mx.google.com; dkim=pass header.i=@evil.example; dkim=fail header.d=friends.example",
    "mx.google.com; dkim=fail (dmarc=pass; spf=pass) header.d=friends.example",
    'mx.google.com; spf=fail reason="x; dmarc=pass" smtp.mailfrom=a@friends.example',
    "MX.GOOGLE.COM 1; DMARC=FAIL",
    "mx.google.com (really; dmarc=pass); dmarc=fail",
]


@pytest.mark.req("PQ-5")
@pytest.mark.parametrize("verdict", FORGED)
def test_a_forged_contact_gets_no_priority(verdict: str) -> None:
    for rules in (RULES, LENIENT):
        assert assigned(CONTACT, ("Authentication-Results", verdict), rules=rules) == DEFAULT
        assert assigned(CONTACT, ("Authentication-Results", verdict), PROVEN, rules=rules) == DEFAULT


@pytest.mark.req("PQ-5")
@pytest.mark.parametrize("local", ["a(b", "a((b)", "x" * 20_000, "a\\)(b"])
def test_a_sender_cannot_hide_the_verdict_behind_its_own_name(local: str) -> None:
    """The server repeats the envelope's sender before it says what it found of the one in `From`."""
    verdict = (
        f"mx.google.com; spf=pass (google.com: domain of {local}@evil.example designates 1.2.3.4 as permitted) "
        f"smtp.mailfrom={local}@evil.example; dmarc=fail (p=NONE) header.from=friends.example"
    )
    assert assigned(CONTACT, ("Authentication-Results", verdict), rules=LENIENT) == DEFAULT


@pytest.mark.req("PQ-5")
def test_only_the_receiving_server_is_believed() -> None:
    others = ("Authentication-Results", "evil.example; dmarc=fail")
    assert assigned(CONTACT, others, rules=LENIENT) == KNOWN
    assert assigned(CONTACT, others, ("Authentication-Results", FORGED[0]), rules=LENIENT) == DEFAULT
    mine = PriorityRules(RULES.own, ContactProof.NOT_FAILED, ("mx.home.example",))
    assert assigned(CONTACT, ("Authentication-Results", FORGED[0]), rules=mine) == KNOWN
    assert assigned(CONTACT, ("Authentication-Results", "mx.home.example; spf=fail"), rules=mine) == DEFAULT
    boast = ("Authentication-Results", "evil.example; dmarc=pass header.from=friends.example")
    assert assigned(CONTACT, boast) == DEFAULT


AUTHENTICATED = [
    GENUINE,
    "mx.google.com; spf=fail smtp.mailfrom=list.example; dkim=pass header.d=friends.example; dmarc=pass",
    "mx.google.com; dkim=fail header.d=list.example; dkim=pass header.i=@mail.friends.example; spf=none",
    "mx.google.com; dkim=fail header.d=friends.example; spf=pass smtp.mailfrom=bounce@friends.example",
    "mx.google.com; dmarc=pass header.from=friends.example",
]
UNPROVEN = [
    "mx.google.com; none",
    "mx.google.com",
    "mx.google.com; dkim=temperror; spf=neutral; arc=fail",
    "mx.google.com; dkim=pass header.d=evil.example; spf=pass smtp.mailfrom=evil.example",
    "mx.google.com; dmarc=pass header.from=evil.example",
]


@pytest.mark.req("PQ-5")
@pytest.mark.parametrize("verdict", AUTHENTICATED)
def test_a_contact_is_served_first_when_the_domain_is_authenticated(verdict: str) -> None:
    assert assigned(CONTACT, ("Authentication-Results", verdict)) == KNOWN
    assert assigned(CONTACT, ("Authentication-Results", verdict), rules=LENIENT) == KNOWN


@pytest.mark.req("PQ-5")
@pytest.mark.parametrize("verdict", UNPROVEN)
def test_a_contact_that_nothing_proves_is_served_first_only_if_the_setting_says_so(verdict: str) -> None:
    assert assigned(CONTACT, ("Authentication-Results", verdict)) == DEFAULT
    assert assigned(CONTACT, ("Authentication-Results", verdict), rules=LENIENT) == KNOWN


@pytest.mark.req("PQ-5")
@pytest.mark.parametrize(
    "header",
    [("List-Id", "<dev.lists.example>"), ("List-Post", "NO"), ("List-Unsubscribe", "<x>"), ("Precedence", "list")],
)
def test_list_mail_is_not_served_first_because_its_author_is_known(header: tuple[str, str]) -> None:
    for rules in (RULES, LENIENT):
        assert assigned(CONTACT, PROVEN, header, rules=rules).tier is not Tier.HIGH_PRIORITY
        assert assigned(CONTACT, PROVEN, header, ("In-Reply-To", "<sent-1@mail.example>"), rules=rules) == REPLY


@pytest.mark.req("PQ-5")
def test_no_forged_friend_of_a_whole_mailbox_is_served_first() -> None:
    box = GeneratedMailbox(messages=1_200, seed=3, email="owner@example.com")
    rules = PriorityRules(frozenset({own_form(box.email)}))
    contacts = frozenset(box.contacts)
    ranks = {"spam": set[AssignmentRule](), "relationship": set[AssignmentRule]()}
    for index in range(box.count()):
        mail = box.summary(index)
        if mail.category in ranks and "SENT" not in mail.label_ids:
            ranks[mail.category].add(rules.assign(parse_headers(box.raw(index)), contacts, frozenset()).rule)
    assert AssignmentRule.KNOWN_CONTACT not in ranks["spam"]
    assert AssignmentRule.KNOWN_CONTACT in ranks["relationship"]


NAMES = ["From", "fROM", "To", "Cc", "In-Reply-To", "References", "List-Unsubscribe", "Precedence"]
VALUES = st.one_of(
    st.text(max_size=60),
    st.sampled_from([*AWKWARD_SENDERS, *IMPOSTORS, OWNER, "<sent-1@mail.example>", "bulk", *FORGED]),
)
HEADERS = st.lists(st.tuples(st.sampled_from([*NAMES, "Authentication-Results"]), VALUES), max_size=10).map(
    lambda pairs: Headers(tuple(pairs))
)


@pytest.mark.req("PQ-1", "PQ-2")
@given(HEADERS, st.randoms(use_true_random=False))
def test_the_case_of_header_names_changes_nothing(headers: Headers, dice: object) -> None:
    shouted = Headers(tuple((name.upper(), value) for name, value in headers))
    assert RULES.assign(headers, CONTACTS, SENT) == RULES.assign(shouted, CONTACTS, SENT)


@pytest.mark.req("PQ-1")
@given(HEADERS)
def test_a_rule_is_only_used_when_those_before_it_do_not_match(headers: Headers) -> None:
    with_all = RULES.assign(headers, CONTACTS, SENT)
    without_contacts = RULES.assign(headers, frozenset(), SENT)
    without_either = RULES.assign(headers, frozenset(), frozenset())
    if with_all.rule is not AssignmentRule.KNOWN_CONTACT:
        assert with_all == without_contacts
    if without_contacts.rule is not AssignmentRule.REPLY_TO_OUTBOUND:
        assert without_contacts == without_either
    assert without_either in (DIRECT, DEFAULT)


@pytest.mark.req("PQ-2")
@given(HEADERS)
def test_a_missing_header_never_matches(headers: Headers) -> None:
    bare = Headers(tuple((name, value) for name, value in headers if name.lower() not in ("from", "to")))
    assert RULES.assign(bare, CONTACTS, SENT) in (REPLY, DEFAULT)


@pytest.mark.req("PQ-5")
@given(st.sampled_from(FORGED), st.lists(VALUES, max_size=5))
def test_nothing_written_below_a_failed_verdict_undoes_it(verdict: str, below: list[str]) -> None:
    pairs = [("Authentication-Results", verdict), *(("Authentication-Results", each) for each in below), CONTACT]
    assert RULES.assign(Headers(tuple(pairs)), CONTACTS, frozenset()) == DEFAULT
