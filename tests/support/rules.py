"""Facts and rules for tests, written by hand and generated at random."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from postroom.triage.rules.facts import MessageFacts, stored_facts
from postroom.triage.rules.rule import Rule, parse_draft, rule_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
_ADDRESSES = ("ann@example.org", "bob@mail.example.org", "shop@shop.example", "x@a.b.shop.example", "eve@example.com")
_DOMAINS = ("example.org", "mail.example.org", "shop.example", "example", "b.shop.example", "example.com")
_WORDS = ("receipt", "Invoice", "Überweisung", "привет", "order 17", "re:", "a.b", "$5", "[list]")
_PATTERNS = ("receipt|invoice", r"^re:", r"order \d+", "(a+)+$", r"\$\d", "b$", "[0-9]{2}", "Ü")
_LABELS = ("INBOX", "Receipts", "Label_7", "UNREAD")
_HEADERS = ("X-Mailer", "Precedence", "List-Unsubscribe")
_LISTS = ("dev.lists.example.org", "news.example.com")


def facts(**given: Any) -> MessageFacts:
    known: dict[str, Any] = {
        "account_id": None,
        "sender": "ann@example.org",
        "subject": "A letter",
        "headers": {},
        "labels": ["INBOX"],
        "has_attachment": False,
        "size_bytes": 2_000,
        "received_at": NOW - timedelta(hours=1),
    }
    return stored_facts(**{**known, **given})


def rule(condition: Mapping[str, Any], name: str = "a rule", actions: Any = ("archive",), **given: Any) -> Rule:
    draft = parse_draft({"name": name, "condition": condition, "actions": list(actions), **given})
    return rule_of(name, draft)


def _one_or_more(values: tuple[str, ...]) -> SearchStrategy[Any]:
    one = st.sampled_from(values)
    return one | st.lists(one, min_size=1, max_size=3)


def leaves() -> SearchStrategy[dict[str, Any]]:
    header = st.one_of(
        st.fixed_dictionaries({"name": st.sampled_from(_HEADERS), "contains": _one_or_more(_WORDS)}),
        st.fixed_dictionaries({"name": st.sampled_from(_HEADERS), "regex": _one_or_more(_PATTERNS)}),
        st.fixed_dictionaries({"name": st.sampled_from(_HEADERS), "present": st.booleans()}),
    )
    tree = st.fixed_dictionaries({"domain": _one_or_more(_DOMAINS), "subdomains": st.booleans()})
    ways: dict[str, SearchStrategy[Any]] = {
        "sender": _one_or_more(_ADDRESSES),
        "sender_domain": _one_or_more(_DOMAINS) | tree,
        "subject_contains": _one_or_more(_WORDS),
        "subject_regex": _one_or_more(_PATTERNS),
        "header": header,
        "label": _one_or_more(_LABELS),
        "recipient": _one_or_more(_ADDRESSES),
        "list_id": _one_or_more(_LISTS),
        "has_attachment": st.booleans(),
        "larger_than": st.sampled_from(["1K", "1M", 0, 5_000]),
        "smaller_than": st.sampled_from(["1K", "1M", 0, 5_000]),
        "older_than": st.sampled_from(["2h", "1d", "1w"]),
        "younger_than": st.sampled_from(["2h", "1d", "1w"]),
    }
    single = st.one_of(*(st.fixed_dictionaries({name: value}) for name, value in ways.items()))
    return single | st.fixed_dictionaries({}, optional=ways).filter(bool)


def conditions() -> SearchStrategy[dict[str, Any]]:
    def grow(inner: SearchStrategy[dict[str, Any]]) -> SearchStrategy[dict[str, Any]]:
        several = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            st.fixed_dictionaries({"all": several}),
            st.fixed_dictionaries({"any": several}),
            st.fixed_dictionaries({"not": inner}),
            st.fixed_dictionaries({"any": several, "not": inner}),
        )

    return st.recursive(leaves(), grow, max_leaves=8)


def mails() -> SearchStrategy[MessageFacts]:
    text = st.lists(st.sampled_from([*_WORDS, "aaa", "b", "99"]), max_size=4).map(" ".join)
    addresses = st.lists(st.sampled_from(_ADDRESSES), max_size=2, unique=True).map(", ".join)
    headers = st.fixed_dictionaries(
        {},
        optional={
            "from": addresses.filter(bool),
            "to": addresses,
            "cc": addresses,
            "list-id": st.sampled_from([f"A list <{name}>" for name in _LISTS]),
            **{name.lower(): text for name in _HEADERS},
        },
    )
    return st.builds(
        facts,
        sender=st.sampled_from([*_ADDRESSES, ""]),
        subject=text,
        headers=headers,
        labels=st.lists(st.sampled_from(_LABELS), unique=True),
        has_attachment=st.booleans(),
        size_bytes=st.sampled_from([None, 0, 1024, 1025, 5_000, 1 << 21]),
        received_at=st.sampled_from([NOW - timedelta(hours=hours) for hours in (0, 1, 2, 3, 24, 30, 400)]),
    )
