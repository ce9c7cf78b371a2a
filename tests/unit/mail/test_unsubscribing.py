"""What a message of a list offers to those who want to leave it, and what a hostile one does not get."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.headers import Headers
from postroom.mail.unsubscribing import UnsubscribeMail, UnsubscribeWay, is_link, unsubscribe_offer
from tests.support.pictures import LINK, SERVERS, authenticated, headers_of, list_headers

pytestmark = pytest.mark.req("UX-1")


def test_one_click_is_offered_for_authenticated_mail_whose_signature_covers_it() -> None:
    offer = unsubscribe_offer(headers_of(list_headers()), SERVERS)
    assert offer is not None
    assert (offer.way, offer.link, offer.host, offer.obstacle) == (
        UnsubscribeWay.ONE_CLICK,
        LINK,
        "lists.example",
        None,
    )
    assert offer.mail == UnsubscribeMail("leave@lists.example", "leave 42", "unsubscribe")


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        (
            {"Authentication-Results": "mx.google.com; dkim=fail header.d=lists.example"},
            "its sender is not authenticated",
        ),
        (authenticated("other.example"), "its sender is not authenticated"),
        (
            {"Authentication-Results": "mx.evil.example; dkim=pass header.d=lists.example"},
            "its sender is not authenticated",
        ),
        (
            {"Authentication-Results": "mx.google.com; spf=pass smtp.mailfrom=lists.example"},
            "no valid signature covers it",
        ),
        ({"DKIM-Signature": "v=1; d=lists.example; h=From:List-Unsubscribe; b=x"}, "no valid signature covers it"),
        (
            {"DKIM-Signature": "v=1; d=evil.example; h=List-Unsubscribe:List-Unsubscribe-Post"},
            "no valid signature covers it",
        ),
        ({"List-Unsubscribe": "<http://lists.example/leave>"}, "it has no https address"),
        (
            {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click, evil"},
            "List-Unsubscribe-Post does not ask for one click",
        ),
        ({"List-Unsubscribe-Post": ""}, "List-Unsubscribe-Post does not ask for one click"),
    ],
)
def test_one_click_is_refused_where_anyone_could_have_written_it(changed: dict[str, str], obstacle: str) -> None:
    offer = unsubscribe_offer(headers_of({**list_headers(), **changed}), SERVERS)
    assert offer is not None
    assert (offer.way is UnsubscribeWay.ONE_CLICK, offer.obstacle) == (False, obstacle)


def test_a_header_that_stands_there_twice_or_a_second_sender_is_no_one_click() -> None:
    pairs = headers_of(list_headers()).pairs
    for more in (("List-Unsubscribe", "<https://evil.example/x>"), ("From", "eve@evil.example")):
        offer = unsubscribe_offer(Headers((more, *pairs)), SERVERS)
        assert offer is not None
        assert offer.way is UnsubscribeWay.MAIL


@pytest.mark.parametrize(
    ("value", "way", "link", "to"),
    [
        ("<mailto:a@b.example>", "mail", None, "a@b.example"),
        ("<https://b.example/x>", "link", "https://b.example/x", None),
        (
            "<http://b.example/1>, <https://b.example/2>, <mailto:a@b.example>",
            "mail",
            "https://b.example/2",
            "a@b.example",
        ),
        ("(a comment) <https://b.example/\r\n x>", "link", "https://b.example/x", None),
    ],
)
def test_the_best_of_what_is_offered_is_used(value: str, way: str, link: str | None, to: str | None) -> None:
    offer = unsubscribe_offer(headers_of({"List-Unsubscribe": value}), SERVERS)
    assert offer is not None
    assert (offer.way, offer.link, offer.mail and offer.mail.to) == (way, link, to)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "https://bare.example/",
            "<>",
            "<javascript:alert(1)>",
            "<file:///etc/passwd>",
            "<https://>",
            "<//b.example>",
        ),
        *(
            "<https://user:pass@b.example/>",
            "<https://b.example\\@c.example/>",
            "<https://b.example/\u202e>",
            "<data:text/html,x>",
        ),
        *(
            "<mailto:>",
            "<mailto:a@b.example,c@d.example>",
            "<mailto:a@b.example%0d%0aBcc:x@y.example>",
            "<mailto:%00@b>",
        ),
        *("<https://b.example/" + "x" * 3_000 + ">", "<" * 5_000, "<https://[::1>"),
    ],
)
def test_hostile_headers_offer_nothing(value: str) -> None:
    assert unsubscribe_offer(headers_of({"List-Unsubscribe": value}), SERVERS) is None


def test_a_mail_has_only_recipient_subject_and_text() -> None:
    value = "<mailto:a@b.example?cc=x@y.example&subject=Stop%0d%0aBcc:%20z@y.example&body=one%0atwo%00&subject=second>"
    offer = unsubscribe_offer(headers_of({"List-Unsubscribe": value}), SERVERS)
    assert offer is not None
    assert offer.mail == UnsubscribeMail("a@b.example", "Stop Bcc: z@y.example", "one\ntwo")


@given(
    st.lists(
        st.tuples(st.sampled_from(["List-Unsubscribe", "List-Unsubscribe-Post", "From", "DKIM-Signature"]), st.text())
    )
)
def test_any_headers_are_read_and_only_plain_addresses_come_out(pairs: list[tuple[str, str]]) -> None:
    offer = unsubscribe_offer(Headers(tuple(pairs)), SERVERS)
    if offer is not None:
        assert offer.way is not UnsubscribeWay.ONE_CLICK  # nobody vouches for it
        assert offer.link is None or is_link(offer.link)


@given(subject=st.text(max_size=50), body=st.text(max_size=50))
def test_what_a_mail_says_is_one_line_of_subject_and_printable_text(subject: str, body: str) -> None:
    said = f"<mailto:a@b.example?subject={quote(subject, errors='replace')}&body={quote(body, errors='replace')}>"
    offer = unsubscribe_offer(headers_of({"List-Unsubscribe": said}), SERVERS)
    assert offer is not None
    assert offer.mail is not None
    assert offer.mail.subject.isprintable()
    assert offer.mail.body.replace("\n", "").isprintable()
    assert offer.mail.subject
    assert offer.mail.body
