"""Addresses as people write them, and the one form in which they are compared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail.addresses import Address, _all_mailboxes, canonical_address, parse_addresses, usual_mailbox

# The same examples on every run; how long one takes is not what these tests are about.
steady = settings(deadline=None, derandomize=True)


@pytest.mark.req("PQ-2")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("ana@example.org", [("ana@example.org", "")]),
        ("Ana <ana@example.org>", [("ana@example.org", "Ana")]),
        ('"Silva, Ana" <ana@example.org>', [("ana@example.org", "Silva, Ana")]),
        ('"Ana \\"the\\" Silva" <ana@example.org>', [("ana@example.org", 'Ana "the" Silva')]),
        ("ana@example.org (Ana Silva)", [("ana@example.org", "Ana Silva")]),
        ("ana (work (main)) @example.org", [("ana@example.org", "work main")]),
        ("a@x.org, B <b@y.org>,, c@z.org", [("a@x.org", ""), ("b@y.org", "B"), ("c@z.org", "")]),
        ("Team: a@x.org, B <b@y.org>; c@z.org", [("a@x.org", ""), ("b@y.org", "B"), ("c@z.org", "")]),
        ("undisclosed-recipients:;", []),
        ("=?utf-8?q?J=C3=BCrgen?= <j@x.org>", [("j@x.org", "Jürgen")]),
        ("=?utf-8?q?a=40evil.org=2C?= <j@x.org>", [("j@x.org", "a@evil.org,")]),
        ("=?utf-8?q?Silva,_Ana_(work)?= <j@x.org>, b@y.org", [("j@x.org", "Silva, Ana (work)"), ("b@y.org", "")]),
        ("ana@[IPv6:2001:db8::1]", [("ana@[IPv6:2001:db8::1]", "")]),
        ("a@x.org; b@y.org", [("a@x.org", ""), ("b@y.org", "")]),
        ("=?utf-8?b?PGVAZXZpbC5vcmc+LA==?= <j@x.org>", [("j@x.org", "<e@evil.org>,")]),
        ('"ana@bank.example" <x@evil.org>', [("x@evil.org", "ana@bank.example")]),
        ("ana@bank.example <x@evil.org>", [("x@evil.org", "ana@bank.example")]),
        ("<@relay.org,@b.org:ana@example.org>", [("ana@example.org", "")]),
        ('"john doe"@example.org', [('"john doe"@example.org', "")]),
        ("Ana <ana@example.org", [("ana@example.org", "Ana")]),
        ("<>", []),
        ("", []),
        ("not an address", []),
        ("MAILER-DAEMON", [("MAILER-DAEMON", "")]),
        ("mailto:ana@example.org", [("ana@example.org", "")]),
        ("Ana\r\n\tSilva <ana@example.org>", [("ana@example.org", "Ana Silva")]),
        ("Ана <ana@example.org>", [("ana@example.org", "Ана")]),
    ],
)
def test_an_address_header_is_read_as_its_writer_meant_it(written: str, read: list[tuple[str, str]]) -> None:
    assert [(found.address, found.display_name) for found in parse_addresses(written)] == read


@pytest.mark.req("PQ-2")
@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("Ana.Silva@Example.ORG", "ana.silva@example.org"),
        ("  ana@example.org. ", "ana@example.org"),
        ("ana@MÜNCHEN.example", "ana@xn--mnchen-3ya.example"),
        ("ana@xn--MNCHEN-3ya.example", "ana@xn--mnchen-3ya.example"),
        ('"ana"@example.org', "ana@example.org"),
        ('"ana silva"@example.org', '"ana silva"@example.org'),
        ("A.b+c@gmail.com", "a.b+c@gmail.com"),
        ("Postmaster", "postmaster"),
    ],
)
def test_addresses_are_compared_in_lowercase_canonical_form(address: str, canonical: str) -> None:
    assert canonical_address(address) == canonical


def test_gmail_spellings_are_folded_only_when_asked_for() -> None:
    assert canonical_address("A.b+c@googlemail.com", fold_gmail=True) == "ab@gmail.com"
    assert canonical_address("A.b+c@example.org", fold_gmail=True) == "a.b+c@example.org"


def test_an_address_without_a_domain_has_none() -> None:
    assert Address("root").domain == ""
    assert Address("ana@Example.org").domain == "example.org"


@steady
@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(value: str) -> None:
    for found in parse_addresses(value):
        assert found.address
        assert found.canonical == canonical_address(found.canonical)
        assert not any(char in found.display_name for char in "\r\n\0")


@steady
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z0-9]{1,10}@[a-z]{1,10}\.org", fullmatch=True), st.text('aé ,"<>@:;()\\', max_size=20)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_quoted_name_never_adds_or_hides_an_address(people: list[tuple[str, str]]) -> None:
    quoted = [(address, name.replace("\\", "\\\\").replace('"', '\\"')) for address, name in people]
    header = ", ".join(f'"{name}" <{address}>' for address, name in quoted)
    assert [found.address for found in parse_addresses(header)] == [address for address, _ in people]


_PIECES = (
    *('"', "Ann", "O'Neil", " ", "  ", "<", ">", "@", "a@b.org", "x.y+z@c-d.example", " <a@b.org>", '"Lee, Ann"'),
    *("mailto:", "(c)", ",", ";", ":", ".", "_", "=?utf-8?q?a?=", "\u00e9", "\t", "\\", "=", "&"),
)


@settings(deadline=None, derandomize=True, max_examples=2_000)
@given(st.lists(st.sampled_from(_PIECES), max_size=6).map("".join))
def test_the_short_way_to_read_a_usual_address_finds_what_the_long_one_does(value: str) -> None:
    usual = usual_mailbox(value)
    assert usual is None or usual == _all_mailboxes((value,))


@pytest.mark.parametrize("value", ["Ann Lee <ann@b.org>", '"Lee, Ann" <ann@b.org>', "ann@b.org", "<ann@b.org>"])
def test_the_usual_forms_take_the_short_way(value: str) -> None:
    assert usual_mailbox(value) == _all_mailboxes((value,))
