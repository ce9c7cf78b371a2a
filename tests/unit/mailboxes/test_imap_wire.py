"""The wire format reads the same however its bytes are cut, and never more than its bounds."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailboxes.imap.folders import fetched, flags_in
from postroom.mailboxes.imap.wire import (
    MAX_DEPTH,
    ResponseReader,
    ServerResponse,
    UidSet,
    Value,
    WireError,
    _Scanner,
    decode_folder,
    encode_folder,
    pairs,
    quoted,
)

SESSION = (
    b"* OK [CAPABILITY IMAP4rev1 IDLE] ready\r\n"
    b'* LIST (\\HasNoChildren \\Sent) "/" "Sent \\"x\\""\r\n'
    b"* LIST () NIL foo]bar\r\n"
    b"* 12 FETCH (UID 3 FLAGS (\\Seen $x) BODY[HEADER.FIELDS (MESSAGE-ID)] {7}\r\nab\r\nc\r\n"
    b' INTERNALDATE "01-Jan-2020 00:00:00 +0000" RFC822.SIZE 12)\r\n'
    b"* VANISHED (EARLIER) 1:5,7\r\n"
    b"* STATUS {3}\r\nx y (MESSAGES 1)\r\n"
    b"* SEARCH\r\n"
    b"+ go on\r\n"
    b"P1 OK [COPYUID 1 2:3 4:5] done\r\n"
    b"P2 NO [AUTHENTICATIONFAILED] no\r\n"
)


def read(data: bytes, cuts: list[int] | None = None, **bounds: int) -> list[ServerResponse]:
    reader = ResponseReader(**bounds)
    found: list[ServerResponse] = []
    at = 0
    for cut in sorted(cuts or []):
        found += reader.feed(data[at:cut])
        at = max(at, cut)
    return [*found, *reader.feed(data[at:])]


def test_a_session_is_read_into_values() -> None:
    found = read(SESSION)
    assert [each.name for each in found] == [
        *("OK", "LIST", "LIST", "FETCH", "VANISHED", "STATUS", "SEARCH", "+", "OK", "NO")
    ]
    assert found[1].values[2] == b'Sent "x"'
    assert found[2].values == ([], None, b"foo]bar")
    items = pairs(found[3].values[0])
    assert items["BODY[HEADER.FIELDS (MESSAGE-ID)]"] == b"ab\r\nc\r\n"
    assert items["RFC822.SIZE"] == b"12"
    assert found[8].code is not None
    assert str(UidSet.parse(found[8].code.values[2])) == "4:5"


@pytest.mark.req("IM-7")
@given(st.lists(st.integers(0, len(SESSION)), max_size=30))
def test_however_it_is_cut_the_same_is_read(cuts: list[int]) -> None:
    assert read(SESSION, cuts) == read(SESSION)


@pytest.mark.req("IM-7")
@settings(max_examples=300)
@given(st.binary(max_size=300) | st.text('*+P1 ()[]{}"\\\r\nFETCHOK019', max_size=80).map(str.encode))
def test_anything_is_read_or_refused_and_nothing_else_is_raised(data: bytes) -> None:
    reader = ResponseReader(max_literal=1_000, max_line=1_000)
    with contextlib.suppress(WireError):
        for response in reader.feed(data + b"\r\n"):
            assert response.name == response.name.upper()


@pytest.mark.req("IM-7")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"* 1 FETCH (BODY[] {10737418240}\r\n", "literal of 10,737,418,240"),
        (b"* OK " + b"x" * 70_000, "line of more than"),
        (b"* LIST " + b"(" * (MAX_DEPTH + 2) + b"\r\n", "nested"),
        (b'* LIST () "/" "endless\r\n', "does not end"),
        (b"* 1 FETCH (UID 1\r\n", "ends within a list"),
        (b"GET / HTTP/1.1\r\n", "neither OK, NO nor BAD"),
        (b"<html>\r\n", "no response"),
        (b"* 99999999999999999999 EXISTS\r\n", "too large"),
    ],
)
def test_what_goes_beyond_the_bounds_is_refused_at_once(data: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        read(data, max_literal=1 << 20, max_line=1 << 16)


def test_a_set_of_four_billion_numbers_is_a_range_and_not_four_billion() -> None:
    uids = UidSet.parse(b"1:4294967295")
    assert (len(uids), 7 in uids, 0 in uids) == (4_294_967_295, True, False)
    with pytest.raises(WireError, match="4,294,967,295"):
        uids.in_order(100)


@given(st.sets(st.integers(1, 300)))
def test_a_set_of_numbers_keeps_them(numbers: set[int]) -> None:
    uids = UidSet.of(numbers)
    assert set(UidSet.parse(str(uids).encode()).in_order(300)) == numbers == {n for n in range(302) if n in uids}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_folder_has_the_same_name_there_and_back(name: str) -> None:
    wire = encode_folder(name)
    assert wire.isascii()
    assert decode_folder(wire) == name


@pytest.mark.req("IM-7")
@pytest.mark.parametrize("wire", ["&Jjo", "&Jjo!-", "a&AAAAA-b", "&2D3-", "&-&"])
def test_a_name_in_broken_utf_7_is_shown_as_it_stands(wire: str) -> None:
    assert decode_folder(wire)


def test_a_line_break_never_gets_into_a_command() -> None:
    with pytest.raises(ValueError, match="line break"):
        quoted("INBOX\r\nP9 DELETE INBOX")


def test_pairs_want_a_list() -> None:
    value: Value = b"UID"
    with pytest.raises(WireError):
        pairs(value)


PARTS = [b"(", b")", b"()", b" ", b"a", b"NIL", b"nil", b"BODY[X (Y)]", b"[", b"]"]
PARTS += [b'"', b'"q"', b'"a\\"b"', b"{3}", b"~{3}", b"\\"]


@given(st.lists(st.sampled_from(PARTS), max_size=14))
@settings(max_examples=600)
def test_what_is_read_token_by_token_is_what_the_rules_say(parts: list[bytes]) -> None:
    line = b"".join(parts)
    plain = _Scanner([line, b" rest"], [b"abc"]).plain_values()
    if plain is not None:
        assert plain == _Scanner([line, b" rest"], [b"abc"])._until(b"", 0)


WORDS = [
    "\\Seen",
    "\\Flagged",
    "\\Recent",
    "$label",
    "NIL",
    "nil",
    "",
    "x" * 120,
    "a}b",
    "a]b",
    "[a b]",
    '"q"',
    "(",
    ")",
    "é",
]
FLAG_PARTS = [b"UID 7", b"UID 0", b"UID 07", b"UID 99999999999999999999", b"RFC822.SIZE 3", b"MODSEQ (9)", b"FLAGS NIL"]
FLAGS = st.lists(st.sampled_from(WORDS), max_size=4).map(lambda words: f"FLAGS ({' '.join(words)})".encode("latin-1"))
UIDS = st.integers(1, 10**18).map(lambda uid: b"UID %d" % uid)
ITEMS = (
    st.tuples(UIDS, FLAGS) | st.tuples(FLAGS, UIDS) | st.lists(FLAGS | UIDS | st.sampled_from(FLAG_PARTS), max_size=3)
)
NAMES = st.sampled_from([b"* 1 FETCH (", b"* 12345 FETCH (", b"* 1 fetch (", b"* FETCH (", b"* 1 EXISTS (", b"P1 OK ("])
ENDS = st.sampled_from([b")\r\n"] * 5 + [b")\n", b" )\r\n", b") \r\n", b"\r\n", b") {3}\r\nabc\r\n"])
LINES = st.builds(lambda name, items, end: name + b" ".join(items) + end, NAMES, ITEMS, ENDS)
PLAIN = st.builds(lambda uid, flags: b"* 1 FETCH (%b %b)\r\n" % (uid, flags), UIDS, FLAGS)


def flags_said(data: bytes, cuts: list[int], *, is_quick: bool) -> tuple[list[object], str | None]:
    """What a connection makes of these bytes, and where reading them ends: UIDs with flags, and all other responses."""
    reader, found = ResponseReader(), list[object]()
    edges = sorted({0, *(each for each in cuts if each < len(data)), len(data)})
    try:
        for start, end in pairwise(edges):
            piece = data[start:end]
            if is_quick:
                found += [(uid, flags_in(words)) for uid, words in reader.flag_lines(piece)]
                piece = b""
            for response in reader.feed(piece):
                items = fetched(response)
                is_plain = items is not None and items.items.keys() == {"UID", "FLAGS"}
                found.append((items.uid, items.flags) if items is not None and is_plain else response)
    except WireError as error:
        return found, str(error)
    return found, None


@pytest.mark.req("IM-7")
@given(st.lists(LINES | PLAIN, max_size=12).map(b"".join), st.lists(st.integers(0, 700), max_size=8))
@settings(max_examples=600)
def test_lines_of_flags_that_are_read_together_say_what_each_says_by_itself(data: bytes, cuts: list[int]) -> None:
    assert flags_said(data, cuts, is_quick=True) == flags_said(data, cuts, is_quick=False)


def test_all_lines_of_flags_in_both_orders_are_read_together() -> None:
    lines = b"".join(b"* %d FETCH (UID %d FLAGS (\\Seen $x))\r\n" % (n, n) for n in range(1, 500))
    lines += b"* 500 FETCH (FLAGS () UID 500)\r\n"
    reader = ResponseReader()
    assert len(reader.flag_lines(lines + b"* 501 FETCH (UID 501")) == 500
    assert not reader.is_idle
    assert reader.flag_lines(b" FLAGS (\\Seen))\r\n") == [(501, b"\\Seen")]
    assert reader.is_idle
