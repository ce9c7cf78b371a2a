"""Which headers are kept for rules and the model."""

from __future__ import annotations

import pytest

from postroom.mail.addresses import parse_addresses
from postroom.mail.headers import LONGEST_HEADER, MOST_BYTES, Headers, triage_headers


@pytest.mark.req("JB-9")
def test_what_a_sender_wrote_is_kept_and_what_servers_added_is_not() -> None:
    kept = triage_headers(
        Headers(
            (
                ("Received", "from a by b"),
                ("ARC-Seal", "i=1"),
                ("DKIM-Signature", "v=1"),
                ("From", "Ann <ann@example.org>"),
                ("X-GitHub-Reason", "mention"),
                ("X-Mailer", "=?utf-8?q?Gr=C3=BC=C3=9Fe?="),
            )
        )
    )
    assert kept == {"from": '"Ann" <ann@example.org>', "x-github-reason": "mention", "x-mailer": "Grüße"}


def test_a_header_that_stands_twice_is_kept_whole_but_for_verdicts() -> None:
    twice = (("X-Tag", "a"), ("X-Tag", "b"), ("Authentication-Results", "mine"), ("Authentication-Results", "forged"))
    assert triage_headers(Headers(twice)) == {"authentication-results": "mine", "x-tag": "a, b"}


@pytest.mark.req("JB-9")
def test_an_encoded_name_cannot_smuggle_in_an_address() -> None:
    sneaky = Headers((("From", "=?utf-8?q?bank=40bank.example=2C_=22x=22?= <eve@example.com>"),))
    [found] = parse_addresses(triage_headers(sneaky)["from"])
    assert found.canonical == "eve@example.com"


def test_a_flood_of_headers_is_bounded_and_drowns_nothing_that_triage_needs() -> None:
    flood = tuple((f"X-{number}", "x" * 5_000) for number in range(2_000))
    kept = triage_headers(Headers((*flood, ("List-Id", "<a.example.org>"), ("From", "ann@example.org"))))
    assert kept["list-id"] == "<a.example.org>"
    assert kept["from"] == "ann@example.org"
    assert max(map(len, kept.values())) <= LONGEST_HEADER
    assert sum(len(name) + len(text) for name, text in kept.items()) <= MOST_BYTES


def test_many_recipients_are_cut_between_addresses() -> None:
    many = ", ".join(f"person{number}@example.org" for number in range(1_000))
    text = triage_headers(Headers((("To", many),)))["to"]
    assert len(text) <= LONGEST_HEADER
    assert all(address.address.endswith("@example.org") for address in parse_addresses(text))


@pytest.mark.req("JB-9")
@pytest.mark.parametrize(
    "crowd",
    [
        ", ".join(f"clerk.with.a.long.name.{number}@bank.example" for number in range(60)),
        ", ".join(["boss@bank.example"] * 60),
        f'boss@bank.example, "{"x" * 3_000}" <clerk@bank.example>',
    ],
)
def test_a_crowd_of_senders_hides_nobody(crowd: str) -> None:
    for headers in ((("From", f"{crowd}, eve@example.com"),), (*[("From", crowd)] * 30, ("From", "eve@example.com"))):
        text = triage_headers(Headers(headers))["from"]
        assert len(text) <= LONGEST_HEADER
        assert {"eve@example.com", "bank.example"} <= {
            part for each in parse_addresses(text) for part in (each.canonical, each.domain)
        }
