"""The search language, on one message at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail.query import QueryError, parse
from postroom.sim.gmail.methods.listing import Candidate, Matcher
from postroom.sim.gmail.sources import MailSummary

DAY_MS = 86_400_000
NOW = 1_767_225_600_000  # 2026-01-01
MAIL = MailSummary(
    id="1900000000000001",
    thread_id="1900000000000001",
    label_ids=frozenset({"INBOX", "UNREAD", "CATEGORY_UPDATES", "Label_1"}),
    internal_date=1_735_689_600_000,  # 2025-01-01
    sender="First Bank <no-reply@mail.bank.example>",
    to="Owner <owner@example.com>",
    cc="Carol <carol@friends.example>",
    subject="Your statement for December",
    message_id="<abc.123@bank.example>",
    list_id="Statements <statements.bank.example>",
    has_attachment=True,
    size=20_000,
)
LABELS = {"INBOX": "INBOX", "UNREAD": "UNREAD", "my-bills": "Label_1", "CATEGORY_UPDATES": "CATEGORY_UPDATES"}


def matches(query: str, mail: MailSummary = MAIL) -> bool:
    matcher = Matcher(parse(query, NOW), LABELS.get)
    return matcher(Candidate(mail, lambda: "The balance is 12.50 euro.", lambda: ["Statement-2024.pdf"]))


@pytest.mark.parametrize(
    "query",
    [
        "",
        "statement",
        "STATEMENT december",
        "balance",
        '"balance is 12"',
        "from:bank",
        "from:no-reply@mail.bank.example",
        "from:bank.example",
        'from:"first bank"',
        "from:(nobody OR bank)",
        "to:owner@example.com",
        "cc:carol",
        "subject:statement",
        "subject:(your december)",
        'subject:"for december"',
        "in:inbox",
        "in:anywhere",
        "is:unread",
        "label:my-bills",
        "label:unread",
        "category:updates",
        "has:attachment",
        "has:userlabels",
        "filename:pdf",
        "filename:statement-2024.pdf",
        "list:statements.bank.example",
        "rfc822msgid:abc.123@bank.example",
        "rfc822msgid:<abc.123@bank.example>",
        "after:2025/01/01",
        "after:2025-01-01",
        "after:1735689600",
        "before:2025/01/02",
        "before:1735689601",
        "after:0",
        "older_than:1m",
        "newer_than:2y",
        "larger:10K",
        "smaller:1M",
        "larger:19999",
        "-from:ann",
        "-is:read",
        "nobody OR statement",
        "nobody | statement",
        "{nobody statement}",
        "(nobody OR from:bank) is:unread",
        "-(nobody somebody)",
        "(-nobody) -(-statement)",
        "(-from:ann OR nobody)",
        "{-from:ann nobody}",
        "no-reply",
        "from:-bank",
        "from:bank AND statement",
        'your "statement for',
        "from:",
        "from: bank",
        'from:"',
        'subject:"" statement',
        "-subject:from:bank",
    ],
)
def test_a_query_finds_what_it_describes(query: str) -> None:
    assert matches(query)


@pytest.mark.parametrize(
    "query",
    [
        "state",
        '"balance 12"',
        "from:ban",
        "from:carol",
        "to:bank",
        "subject:balance",
        "in:trash",
        "is:read",
        "is:starred",
        "label:other",
        "category:promotions",
        "has:nouserlabels",
        "filename:docx",
        "rfc822msgid:abc.123",
        "after:2025/01/02",
        "before:2025/01/01",
        "before:1735689600",
        "older_than:2y",
        "newer_than:1m",
        "larger:20000",
        "smaller:20000",
        "-statement",
        "statement -balance",
        "nobody OR somebody",
        "{nobody somebody}",
        "statement (nobody OR somebody)",
        "-(statement OR nobody)",
        "(-from:bank)",
    ],
)
def test_a_query_passes_over_what_it_does_not_describe(query: str) -> None:
    assert not matches(query)


@pytest.mark.parametrize(
    "query",
    [
        "(",
        ")",
        "a)",
        "{a)",
        "OR",
        "a OR",
        "after:yesterday",
        "before:2025/13/01",
        "after:99999999999999999",
        "older_than:3",
        "larger:big",
        "has:wings",
        "(" * 100 + "a" + ")" * 100,
        "-" + "(-" * 60 + "a" + ")" * 60,
        "a" * 30_000,
    ],
)
def test_a_query_that_means_nothing_is_refused(query: str) -> None:
    with pytest.raises(QueryError):
        parse(query, NOW)


def test_words_bind_tighter_by_or_than_side_by_side() -> None:
    assert not matches("nobody statement OR balance")
    assert matches("statement nobody OR balance")


def test_spam_and_trash_are_opened_only_by_name() -> None:
    def opened(query: str) -> bool:
        return Matcher(parse(query, NOW), LABELS.get).opens_spam_and_trash

    assert all(opened(query) for query in ("in:spam", "in:trash", "in:anywhere", "a OR in:spam", "(in:trash b)"))
    assert not any(opened(query) for query in ("", "in:inbox", "-in:spam", "-in:trash a"))


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ("after:10 before:20", (10_000, 20_000)),
        ("after:10 after:15 word", (15_000, None)),
        ("(after:10 before:20) OR (after:30 before:40)", (10_000, 40_000)),
        ("after:10 OR word", (None, None)),
        ("-after:10", (None, None)),
    ],
)
def test_the_dates_of_a_query_bound_what_is_looked_at(query: str, span: tuple[int | None, int | None]) -> None:
    matcher = Matcher(parse(query, NOW), LABELS.get)
    assert (matcher.start, matcher.end) == span


PIECES = st.sampled_from(
    [
        "(",
        ")",
        "{",
        "}",
        "-",
        "OR",
        "AND",
        '"',
        ":",
        "from:",
        "in:",
        "after:",
        "larger:",
        "has:",
        "2025/01/01",
        "1y",
        " ",
    ]
)


@settings(deadline=None, derandomize=True)
@given(st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join))
def test_any_text_is_either_a_query_or_refused_as_one(text: str) -> None:
    try:
        node = parse(text, NOW)
    except QueryError:
        return
    Matcher(node, LABELS.get)(Candidate(MAIL, lambda: "", list))


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 4_000_000_000), st.integers(0, 4_000_000_000), st.integers(0, 4_000_000_000))
def test_after_is_inclusive_and_before_is_not(second: int, start: int, end: int) -> None:
    mail = replace(MAIL, internal_date=second * 1000)
    # Five digits or more: a number of four would be a year.
    assert matches(f"after:{start:05} before:{end:05}", mail) is (start <= second < end)
