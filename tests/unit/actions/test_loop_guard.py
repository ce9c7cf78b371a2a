"""No machine is answered, and nothing goes round in a circle."""

from __future__ import annotations

import pytest

from postroom.actions.outbound import loop_guard
from postroom.actions.outbound.letters import Author, Original, SendRefused, compose, parse_request
from postroom.domain.actions import ForwardParameters, ReplyParameters
from postroom.domain.errors import BadInput
from postroom.mail.composing import OutgoingMail
from postroom.mail.parsing import ParsedMail, parse_mail

pytestmark = pytest.mark.req("JB-14")

OWN = ("me@example.org", "other.box@gmail.com")
ID = "0199a1c2-7e5b-7abc-8def-0123456789ab"


def mail(headers: str = "", sender: str = "Ann <ann@friends.example>") -> ParsedMail:
    return parse_mail(f"From: {sender}\nTo: me@example.org\nSubject: Hi\n{headers}\nHello\n".encode())


@pytest.mark.parametrize(
    "header",
    [
        "Auto-Submitted: auto-replied",
        "Auto-Submitted: auto-generated; owner=x",
        "AUTO-SUBMITTED: Auto-Notified",
        "Precedence: bulk",
        "Precedence: LIST",
        "Precedence: junk",
        "List-Id: News <news.example>",
        "List-Unsubscribe: <mailto:u@x>",
        "List-Post: <mailto:l@x>",
        "X-Auto-Response-Suppress: All",
        "X-Auto-Response-Suppress: DR, AutoReply",
        "Return-Path: <>",
        "Return-Path:",
        "Feedback-ID: 1:2:3:x",
        "X-Autoreply: yes",
        "X-Loop: list@x",
        "Content-Type: multipart/report; report-type=delivery-status; boundary=b",
        "X-Postroom-Action: 1",
        "X-Postroom-Digest: day-2026-11-16",
    ],
)
def test_mail_of_machines_is_not_answered(header: str) -> None:
    assert loop_guard.unanswerable(mail(f"{header}\n"), (), OWN) is not None


@pytest.mark.parametrize(
    "sender",
    [
        "noreply@shop.example",
        "no-reply@shop.example",
        "orders.no_reply@shop.example",
        "DoNotReply@shop.example",
        "do-not-reply@shop.example",
        "Mail Delivery <MAILER-DAEMON@mx.example>",
        "postmaster@mx.example",
        "bounces+123@list.example",
        "bounce-7@list.example",
        "ne-pas-repondre@boutique.example",
        "me@example.org",
        "Me <ME+shop@Example.org>",
        "o.t.h.e.r.box+x@googlemail.com",
    ],
)
def test_nobody_and_oneself_are_not_answered(sender: str) -> None:
    assert loop_guard.unanswerable(mail(sender=sender), (), OWN) is not None


@pytest.mark.parametrize(
    "sender",
    [
        "ann@friends.example",
        "norah.reply@friends.example",
        "me@example.com",
        "daemonica@friends.example",
        "n.o@reply.io",
    ],
)
def test_people_are_answered(sender: str) -> None:
    headers = "Auto-Submitted: no\nPrecedence: normal\nX-Auto-Response-Suppress: none\nReturn-Path: <a@b>\n"
    assert loop_guard.unanswerable(mail(headers, sender), ("INBOX",), OWN) is None


def test_spam_is_not_answered() -> None:
    assert loop_guard.unanswerable(mail(), ("SPAM",), OWN) is not None


def composed(
    kind: str, headers: str = "", *, is_attended: bool = False, **payload: object
) -> OutgoingMail | SendRefused:
    request = parse_request({"account_id": ID, "action_id": ID, "message_type": kind, **payload})
    parameters = ReplyParameters(body="Away.") if kind == "reply" else ForwardParameters(to=["b@books.example"])
    raw = f"From: ann@friends.example\nTo: me@example.org\nSubject: Hi\n{headers}\nHello\n".encode()
    return compose(request, parameters, (), Original.of(raw), Author("me@example.org", OWN, is_attended=is_attended))


def test_the_answer_goes_to_few() -> None:
    many = ", ".join(f"v{n}@victims.example" for n in range(10))
    assert isinstance(composed("reply", f"Reply-To: {many}\n"), SendRefused)


def test_recipients_given_in_the_payload_are_guarded_too() -> None:
    assert isinstance(composed("reply", to=["me+x@example.org"]), SendRefused)
    assert isinstance(composed("reply", cc=["noreply@shop.example"]), SendRefused)
    assert isinstance(composed("forward", to=["OTHERBOX@gmail.com"]), SendRefused)
    assert isinstance(composed("forward", cc=["me@example.org"]), SendRefused)


def test_a_message_that_has_passed_too_many_servers_is_not_passed_on() -> None:
    assert isinstance(composed("forward", "Received: by x\n" * 31), SendRefused)
    assert isinstance(composed("forward", "Received: by x\n" * 30), OutgoingMail)


def test_a_reply_without_anybody_to_answer_is_refused_with_the_reason() -> None:
    refused = composed("reply", "Reply-To: not an address\n")
    assert isinstance(refused, OutgoingMail)  # the sender's own address is the fallback
    request = parse_request({"account_id": ID, "action_id": ID, "message_type": "reply"})
    for orphan in (b"Subject: x\n\nx\n", b"To: victim@x.example\nSubject: x\n\nx\n"):
        nobody = compose(request, ReplyParameters(body="x"), (), Original.of(orphan), Author("me@example.org", OWN))
        assert nobody == SendRefused("to: there is no recipient; name at least one")


def test_a_reply_to_that_names_the_owner_has_nobody_else_answered() -> None:
    letter = composed("reply", "Reply-To: me@example.org\nTo: victim@x.example\n")
    assert isinstance(letter, OutgoingMail)
    assert [each.address for each in letter.to] == ["ann@friends.example"]


@pytest.mark.parametrize("asked", ["eve@elsewhere.example", "eve@notfriends.example", "ann@friends.example.org"])
def test_only_a_person_has_an_answer_go_to_another_domain_than_the_senders(asked: str) -> None:
    refused = composed("reply", f"Reply-To: {asked}\n")
    assert isinstance(refused, SendRefused)
    assert asked in refused.reason
    letter = composed("reply", f"Reply-To: {asked}\n", is_attended=True)
    assert isinstance(letter, OutgoingMail)
    assert [each.address for each in letter.to] == [asked]


@pytest.mark.parametrize("asked", ["home@friends.example", "ann@mail.friends.example"])
def test_an_answer_goes_where_the_sender_asks_within_his_domain(asked: str) -> None:
    assert isinstance(composed("reply", f"Reply-To: {asked}\n"), OutgoingMail)


def test_attachments_that_are_not_base64_are_refused() -> None:
    bad = [{"filename": "a", "mime_type": "text/plain", "data": "%%%"}]
    with pytest.raises(BadInput, match="'a' is not base64"):
        composed("forward", attachments=bad)
