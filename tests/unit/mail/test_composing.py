"""Outgoing mail: what is composed is what is read, and nothing can be smuggled into a header."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email import message_from_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.mail.addresses import Address
from postroom.mail.composing import MAX_REFERENCES, OutgoingAttachment, OutgoingMail, reply_to
from postroom.mail.parsing import ParsedMail, parse_mail

# The same examples on every run; how long one takes is not what these tests are about.
steady = settings(deadline=None, derandomize=True)

ME = Address("me@example.org", "Me")
ANA = Address("ana@example.org", "Ana Silva")


def letter(
    *,
    to: tuple[Address, ...] = (ANA,),
    cc: tuple[Address, ...] = (),
    subject: str = "Hello",
    text: str | None = "Hi\n",
    html: str | None = None,
    attachments: tuple[OutgoingAttachment, ...] = (),
    extra_headers: tuple[tuple[str, str], ...] = (),
    references: tuple[str, ...] = (),
    from_: Address = ME,
) -> OutgoingMail:
    return OutgoingMail(
        from_, to, subject, text, html, cc, references=references, attachments=attachments, extra_headers=extra_headers
    )


def original(headers: str = "", body: str = "How are you?\n") -> ParsedMail:
    return parse_mail(
        f"From: Ana Silva <ana@example.org>\nTo: Me <me@example.org>, b@example.org\nCc: c@example.org\n"
        f"Subject: Lunch\nMessage-ID: <2@x>\nReferences: <0@x> <1@x>\nDate: Mon, 2 Mar 2026 10:00:00 +0000\n"
        f"{headers}\n{body}".encode()
    )


def test_a_message_is_read_as_it_was_composed() -> None:
    pdf = OutgoingAttachment("Rechnung für März.pdf", "application/pdf", bytes(range(256)))
    sent = OutgoingMail(
        from_=ME,
        to=(ANA, Address("b@example.org", 'B "the" Bee, Esq.')),
        cc=(Address("c@bücher.example", "Żółć 东京" * 20),),
        bcc=(Address("d@example.org"),),
        subject="Grüße " * 40 + "end",
        text="Hallo Jürgen,\nwie geht's?\n",
        html="<p>Hallo <b>Jürgen</b></p>\n",
        in_reply_to="<1@x>",
        references=("<0@x>", "<1@x>"),
        attachments=(pdf,),
        extra_headers=(("X-Postroom-Action", "0192"),),
        message_id="<me@x>",
        date=datetime(2026, 3, 2, 10, tzinfo=UTC),
    )
    read = parse_mail(sent.to_bytes())
    assert read.problems == ()
    assert (read.from_, read.to, read.bcc) == ((sent.from_,), sent.to, sent.bcc)
    assert [(a.display_name, a.canonical) for a in read.cc] == [("Żółć 东京" * 20, "c@xn--bcher-kva.example")]
    assert (read.subject, read.text, read.html) == (sent.subject, sent.text, sent.html)
    assert (read.message_id, read.in_reply_to, read.references) == ("<me@x>", "<1@x>", ("<0@x>", "<1@x>"))
    assert read.date == sent.date
    assert read.headers.get("X-Postroom-Action") == "0192"
    assert [(a.filename, a.content_type, a.content()) for a in read.attachments] == [
        ("Rechnung für März.pdf", "application/pdf", pdf.content)
    ]


def test_the_same_message_has_the_same_bytes_in_lines_that_every_server_takes() -> None:
    sent = letter(subject="ö" * 500, html="<p>ö</p>", attachments=(OutgoingAttachment("a", "a/b", b"x"),))
    raw = sent.to_bytes()
    assert raw == sent.to_bytes()
    assert all(len(line) <= 78 for line in raw.split(b"\r\n"))
    assert b"\n" not in raw.replace(b"\r\n", b"")
    assert raw.isascii()


HOSTILE = ("a\r\nBcc: x@evil.org", "a\nb", "a\rb", "a\0b", "a\r\n\r\nbody", "\x1b[2J", "\ud800")
FIELDS: dict[str, Callable[[str], OutgoingMail]] = {
    "subject": lambda bad: letter(subject=bad),
    "from": lambda bad: letter(from_=Address("me@example.org", bad)),
    "to": lambda bad: letter(to=(Address("ana@example.org", bad),)),
    "cc": lambda bad: letter(cc=(Address(f"{bad}@example.org"),)),
    "references": lambda bad: letter(references=(f"<{bad}@x>",)),
    "attachments": lambda bad: letter(attachments=(OutgoingAttachment(bad, "a/b", b""),)),
    "extra_headers": lambda bad: letter(extra_headers=(("X-A", bad),)),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("bad", HOSTILE)
def test_no_value_can_inject_a_header(field: str, bad: str) -> None:
    with pytest.raises(BadInput) as refused:
        FIELDS[field](bad)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("extra_headers", lambda: letter(extra_headers=(("Bcc", "x@evil.org"),))),
        ("extra_headers", lambda: letter(extra_headers=(("X-A\r\nBcc", "x@evil.org"),))),
        ("to", lambda: letter(to=())),
        ("to", lambda: letter(to=(Address("not an address"),))),
        ("to", lambda: letter(to=(Address("a@b@c.org"),))),
        ("to", lambda: letter(to=(Address("a,b@example.org"),))),
        ("to", lambda: letter(to=(Address("a@-x.org"),))),
        ("to", lambda: letter(to=(Address("ana@example.org>, <x@evil.org"),))),
        ("text", lambda: letter(text=None)),
        ("text", lambda: letter(text="é\0")),
        ("attachments", lambda: letter(attachments=(OutgoingAttachment("x", "text", b""),))),
        ("attachments", lambda: letter(attachments=(OutgoingAttachment("x", "a/b\r\nX: y", b""),))),
        ("attachments", lambda: letter(attachments=(OutgoingAttachment("", "a/b", b""),))),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(field: str, make: Callable[[], OutgoingMail]) -> None:
    with pytest.raises(BadInput) as refused:
        make()
    assert refused.value.field == field


WRITABLE = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=200)


LINES = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\n \t.>=-"), max_size=500)


@steady
@given(WRITABLE, WRITABLE, LINES)
def test_any_name_subject_and_text_come_back_and_add_no_header(name: str, subject: str, text: str) -> None:
    raw = letter(to=(Address("ana@example.org", name),), subject=subject, text=text).to_bytes()
    read = parse_mail(raw)
    assert read.subject == " ".join(subject.split())
    assert [address.address for address in read.to] == ["ana@example.org"]
    shown = "".join(char if char.isprintable() else " " for char in name)
    assert read.to[0].display_name == " ".join(shown.split())
    assert read.text == (text if text.endswith("\n") else f"{text}\n")
    names = [name for name, _ in message_from_bytes(raw).items()]
    assert names == ["From", "To", "Subject", "Content-Type", "Content-Transfer-Encoding", "MIME-Version"]


def test_a_reply_stays_in_the_conversation() -> None:
    sent = reply_to(original(), from_=ME, text="Fine.\n")
    assert sent.to == (ANA,)
    assert (sent.subject, sent.cc) == ("Re: Lunch", ())
    assert sent.in_reply_to == "<2@x>"
    assert sent.references == ("<0@x>", "<1@x>", "<2@x>")


def test_a_reply_goes_where_the_writer_asks_and_to_all_but_oneself() -> None:
    sent = reply_to(original("Reply-To: list@example.org\n"), from_=Address("ME@Example.org"), text="x", reply_all=True)
    assert [address.address for address in sent.to] == ["list@example.org"]
    assert [address.address for address in sent.cc] == ["b@example.org", "c@example.org"]


def test_a_reply_to_ones_own_mail_goes_to_its_recipients() -> None:
    sent = reply_to(original(), from_=ANA, text="One more thing")
    assert [address.address for address in sent.to] == ["me@example.org", "b@example.org"]


def test_reply_marks_do_not_pile_up() -> None:
    for subject in ("Re: Lunch", "RE: Lunch", "AW: Lunch", "re[2]: Lunch"):
        parsed = parse_mail(f"From: a@x.org\nSubject: {subject}\n\nx".encode())
        assert reply_to(parsed, from_=ME, text="x").subject == subject


def test_a_long_chain_of_references_is_bounded() -> None:
    ids = "\n ".join(f"<{n}@x>" for n in range(90))
    parsed = parse_mail(f"From: a@x.org\nMessage-ID: <last@x>\nReferences: {ids}\n\nx".encode())
    references = reply_to(parsed, from_=ME, text="x").references
    assert (len(references), references[0], references[-1]) == (MAX_REFERENCES, "<0@x>", "<last@x>")


def test_hostile_mail_can_be_answered_without_carrying_its_tricks() -> None:
    parsed = parse_mail(
        b"From: =?utf-8?q?a=0D=0ABcc=3A_x=40evil=2Eorg?= <a@x.org>, <bad address>\n"
        b"Subject: =?utf-8?q?=1B=01x=0D=0ABcc=3A_y=40evil=2Eorg=7F?=\nMessage-ID: <a\x01b@x>\n\nx"
    )
    read = parse_mail(reply_to(parsed, from_=ME, text="x").to_bytes())
    assert "Bcc" not in read.headers
    assert read.subject == "Re: x Bcc: y@evil.org"
    assert read.to == (Address("a@x.org", "a Bcc: x@evil.org"),)
    assert read.in_reply_to is None


def test_a_reply_that_no_person_wrote_says_so() -> None:
    sent = reply_to(original(), from_=ME, text="Away.", auto_submitted="auto-replied")
    assert parse_mail(sent.to_bytes()).auto_submitted == "auto-replied"


def test_nothing_else_can_be_said_of_how_a_message_came_about() -> None:
    with pytest.raises(BadInput, match="auto_submitted"):
        reply_to(original(), from_=ME, text="x", auto_submitted="no\r\nBcc: eve@example.org")
