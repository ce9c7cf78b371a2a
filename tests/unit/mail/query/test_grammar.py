"""The search language itself: what is refused and where, what is forgiven, and that it can be written down again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from postroom.domain.errors import BadInput
from postroom.mail.query import QueryError, format_query, parse
from postroom.mail.query.nodes import And, Labelled, MessageId, Node, Not, Or, Received, Text, TextField
from tests.support.naive_search import NOISE, any_leaf, trees

NOW = 1_767_225_600_123  # 2026-01-01 and some milliseconds
pytestmark = pytest.mark.req("SY-15")


def refusal(query: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        parse(query, NOW, strict=True)
    return caught.value


def read(query: str, *, strict: bool) -> Node | QueryError:
    try:
        return parse(query, NOW, strict=strict)
    except QueryError as error:
        return error


@pytest.mark.parametrize(
    ("query", "position", "expected"),
    [
        ("form:alice", 1, "from:"),
        ("hello  form:alice", 8, "from:"),
        ("hello (-subjct:alice)", 9, "subject:"),
        ("xyzzy:alice", 1, "an operator such as from:"),
        ("from: alice", 7, "its value"),
        ("from:", 6, "its value"),
        ("(from:)", 7, "its value"),
        ('a "b', 3, 'a second "'),
        ('from:a"b', 7, 'a second "'),
        ("a & b", 3, "something to look for"),
        ("from:@", 6, "something to look for"),
        ("is:unraed", 4, "unread"),
        ("category:fun", 10, "promotions"),
        ("after:yesterday", 7, "YYYY/MM/DD"),
        ("a before:2025/13/01", 10, "YYYY/MM/DD"),
        ("a before:0000", 10, "YYYY"),
        ("larger:big", 8, "5M"),
        ("older_than:3", 12, "3d"),
        ("has:wings", 5, "attachment"),
        ("a OR", 5, "a word"),
        ("OR a", 1, "a word"),
        ("(a", 3, "')'"),
        ("a)", 2, "the end"),
        ("{a)", 3, "'}'"),
        ("after:(2025/01/01 soon)", 19, "YYYY/MM/DD"),
    ],
)
def test_a_refusal_says_where_and_what_was_expected(query: str, position: int, expected: str) -> None:
    error = refusal(query)
    assert isinstance(error, BadInput)
    assert error.field == "query"
    assert error.position == position
    assert expected in error.expected
    assert f"at column {position}" in error.message


@pytest.mark.parametrize("query", ["form:alice", "from: alice", 'a "b', "a & b", "is:unraed", "category:fun"])
def test_what_is_a_mistake_here_is_forgiven_where_gmail_forgives_it(query: str) -> None:
    parse(query, NOW)


def test_the_strict_reader_and_the_forgiving_one_agree_on_good_queries() -> None:
    query = '(from:ann OR to:bob) -subject:"weekly report" has:attachment label:my-bills is:unread "http://x" http://y'
    assert parse(query, NOW, strict=True) == parse(query, NOW)


def test_operators_become_what_they_mean() -> None:
    assert parse("bcc:ann@x.example", NOW) == Text(TextField.BCC, "ann@x.example")
    assert parse("is:read", NOW) == Not(Labelled("UNREAD"))
    assert parse("rfc822msgid:<a@b>", NOW) == MessageId("a@b")
    assert parse("a b OR c", NOW) == And(
        (Text(TextField.ANY, "a"), Or((Text(TextField.ANY, "b"), Text(TextField.ANY, "c"))))
    )


@pytest.mark.parametrize("query", ["after:2019", "newer:2019", "after:(2019)", "after:2019/01/01", "after:1546300800"])
def test_a_number_of_four_digits_is_a_year(query: str) -> None:
    assert parse(query, NOW, strict=True) == Received(start=1_546_300_800_000)


@pytest.mark.parametrize("query", ["before:1950", "older:0001", "before:9999", "before:01234", "before:999"])
def test_any_year_and_any_second_can_be_written_down(query: str) -> None:
    node = parse(query, NOW)
    assert parse(format_query(node), NOW) == node


def test_a_number_of_another_length_is_seconds() -> None:
    assert parse("before:20190", NOW) == Received(end=20_190_000)
    assert parse("before:201", NOW) == Received(end=201_000)
    assert refusal("before:0000").expected == "YYYY, YYYY/MM/DD or seconds since 1970"


def test_ages_count_back_in_whole_seconds_and_not_beyond_1970() -> None:
    assert parse("newer_than:1d", NOW) == Received(start=1_767_225_600_000 - 86_400_000)
    assert parse("older_than:99999y", NOW) == Received(end=0)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("(lunch", "the query ends at column 7; expected ')'"),
        ("lunch)", "unexpected ')' at column 6; expected the end"),
        ("lunch OR", "nothing to search for before the end at column 9"),
    ],
)
def test_a_refusal_reads_like_a_sentence(query: str, message: str) -> None:
    assert message in refusal(query).message


@pytest.mark.parametrize("query", ["a" * 20_001, "(" * 60 + "a" + ")" * 60, "-(" * 60 + "a" + ")" * 60])
def test_a_query_without_measure_is_refused(query: str) -> None:
    assert refusal(query).position > 1


@settings(deadline=None, derandomize=True)
@given(trees(any_leaf()))
def test_a_query_written_down_reads_as_the_same_query(node: Node) -> None:
    assert parse(format_query(node), NOW) == node


@settings(deadline=None, derandomize=True, max_examples=300)
@given(NOISE)
def test_any_text_is_a_query_that_can_be_written_down_or_is_refused_within_it(text: str) -> None:
    node = read(text, strict=False)
    if isinstance(node, QueryError):
        assert 1 <= node.position <= len(text) + 1
        return
    assert parse(format_query(node), NOW) == node


@settings(deadline=None, derandomize=True, max_examples=300)
@given(NOISE)
def test_the_strict_reader_accepts_only_what_the_forgiving_one_reads_alike(text: str) -> None:
    node = read(text, strict=True)
    if isinstance(node, QueryError):
        assert 1 <= node.position <= len(text) + 1
        return
    assert node == parse(text, NOW)
    assert parse(format_query(node), NOW, strict=True) == node
