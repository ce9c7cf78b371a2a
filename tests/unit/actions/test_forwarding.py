"""Forwards: every part of the original arrives in the bytes that it had, and what cannot be taken apart goes whole."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.actions.outbound.letters import ForwardNote, forward_of
from postroom.mail.addresses import Address
from postroom.mail.parsing import parse_mail

pytestmark = pytest.mark.req("JB-14")
steady = settings(deadline=None, derandomize=True)

ME, BOOKS = Address("me@example.org", "Me"), Address("books@example.org")
PNG, PDF = b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"%PDF-1.7\r\n\0\xff\n" * 50
PAGE = "<html><head><meta charset=windows-1252></head>\r\n<body>Total: 12 €<img src='cid:logo%40shop'></body></html>"


def invoice() -> EmailMessage:
    """HTML with a stub as its text, a picture within it, and a file."""
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"] = "Shop <shop@example.com>", "Me <me@example.org>"
    message["Subject"], message["Date"] = "Invoice 7", "Mon, 02 Mar 2026 10:00:00 +0000"
    message.set_content("Your mail program cannot show this message.\n")
    message.add_alternative(PAGE.encode("cp1252"), "text", "html", params={"charset": "windows-1252"})
    page = message.get_body(("html",))
    assert isinstance(page, EmailMessage)
    page.add_related(PNG, "image", "png", cid="<logo@shop>", filename="logo.png", disposition="inline")
    message.add_attachment(PDF, "application", "pdf", filename="Rechnung März.pdf")
    message.add_attachment("a;ü\n".encode("latin-1"), "text", "csv", filename="rows.csv", params={"charset": "latin-1"})
    return message


def sent(raw: bytes, note: ForwardNote | None = None) -> EmailMessage:
    letter = forward_of(parse_mail(raw), raw, from_=ME, to=(BOOKS,), note=note)
    message = message_from_bytes(letter.to_bytes(), policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


def part(message: EmailMessage, kind: str) -> EmailMessage:
    (found,) = [each for each in message.walk() if each.get_content_type() == kind]
    assert isinstance(found, EmailMessage)
    return found


def content(found: EmailMessage) -> bytes:
    data = found.get_payload(decode=True)
    assert isinstance(data, bytes)
    return data


def lines(found: EmailMessage) -> str:
    return content(found).decode().replace("\r\n", "\n")


def test_an_invoice_in_html_arrives_whole_with_its_picture_and_its_files() -> None:
    got = sent(invoice().as_bytes(), ForwardNote("For <the> bücher."))
    assert (got["Subject"], got["In-Reply-To"], got["References"]) == ("Fwd: Invoice 7", None, None)
    html = part(got, "text/html")
    assert html.get_param("charset") == "windows-1252"
    above, whole = content(html)[: -len(PAGE)], content(html)[-len(PAGE) :]
    assert whole == PAGE.encode("cp1252")
    assert b"For &lt;the&gt; b&#252;cher." in above
    assert b"From: Shop &lt;shop@example.com&gt;" in above
    logo = part(got, "image/png")
    assert (content(logo), logo["Content-ID"], logo.get_content_disposition()) == (PNG, "<logo@shop>", "inline")
    pdf, rows = part(got, "application/pdf"), part(got, "text/csv")
    assert (content(pdf), pdf.get_filename()) == (PDF, "Rechnung März.pdf")
    assert (content(rows), rows.get_param("charset")) == ("a;ü\n".encode("latin-1"), "latin-1")
    assert got.get_content_type() == "multipart/mixed"
    text = lines(part(got, "text/plain"))
    assert text.startswith("For <the> bücher.\n\n---------- Forwarded message ---------\nFrom: Shop")
    assert text.endswith("Your mail program cannot show this message.\n")


def test_plain_text_is_quoted_below_who_wrote_what_and_when() -> None:
    raw = b"From: Ana <ana@example.org>\nTo: me@example.org\nSubject: Lunch\n\nAt noon?\n"
    got = sent(raw, ForwardNote("For you"))
    assert got.get_content_type() == "text/plain"
    assert lines(got) == (
        "For you\n\n---------- Forwarded message ---------\nFrom: Ana <ana@example.org>\n"
        "Subject: Lunch\nTo: me@example.org\n\nAt noon?\n"
    )


def test_a_note_in_html_stands_above_plain_text_too() -> None:
    got = sent(b"From: ana@example.org\nSubject: Lunch\n\n1 < 2\n", ForwardNote("Note", "<b>Note</b>"))
    page = lines(part(got, "text/html"))
    assert page.startswith("<div><b>Note</b></div>")
    assert "<pre>1 &lt; 2\n</pre>" in page


SIGNED = (
    b"From: Ana <ana@example.org>\r\nSubject: Contract\r\nMIME-Version: 1.0\r\n"
    b'Content-Type: multipart/signed; protocol="application/pgp-signature"; boundary=b\r\n\r\n'
    b"--b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    b"Gr\xc3\xbc\xc3\x9fe\r\n"
    b"--b\r\nContent-Type: application/pgp-signature\r\n\r\nxyz\r\n--b--\r\n"
)
INVITATION = (
    b"From: Ana <ana@example.org>\r\nSubject: Lunch\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nAt noon?\r\n"
    b"--b\r\nContent-Type: text/calendar; method=REQUEST\r\n\r\nBEGIN:VCALENDAR\r\n--b--\r\n"
)
ENCLOSING = (
    b"From: a@example.org\r\nSubject: See\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nSee below.\r\n"
    b"--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nInner.\r\n--b--\r\n"
)
FOOTED = (
    b"From: a@example.org\r\nSubject: List\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nThe letter.\r\n"
    b"--b\r\nContent-Type: text/html\r\n\r\n<p>A footer</p>\r\n--b--\r\n"
)
CUT_OFF = (
    b"From: a@example.org\r\nSubject: Cut\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nThe letter\r\n"
)
DAMAGED = (
    b"From: a@example.org\r\nSubject: Damaged\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nSee.\r\n"
    b"--b\r\nContent-Type: image/png; name=x.png\r\nContent-Transfer-Encoding: base64\r\n\r\nA=BC\x80\r\n--b--\r\n"
)
WIDE = b"From: a@example.org\r\nSubject: Wide\r\nContent-Type: text/html; charset=utf-16\r\n\r\n" + "<p>Hi</p>".encode(
    "utf-16-le"
)


@pytest.mark.parametrize("raw", [SIGNED, INVITATION, ENCLOSING, FOOTED, CUT_OFF, DAMAGED])
def test_what_taking_apart_would_spoil_travels_whole_in_its_own_bytes(raw: bytes) -> None:
    letter = forward_of(parse_mail(raw), raw, from_=ME, to=(BOOKS,), note=ForwardNote("See below."))
    bytes_sent = letter.to_bytes()
    assert raw.rstrip() in bytes_sent
    got = message_from_bytes(bytes_sent, policy=policy.default)
    assert [each.get_content_type() for each in got.iter_parts()] == ["text/plain", "message/rfc822"]


def test_a_page_in_a_charset_that_is_not_like_ascii_travels_whole() -> None:
    assert part(sent(WIDE), "message/rfc822").get_filename() == "forwarded message.eml"


@pytest.mark.parametrize(
    "headers",
    [
        b'Content-Type: image/png; name="a\r\n Bcc: eve@example.org"\r\nContent-ID: <a b>\r\n',
        b"Content-Type: image/png\r\nContent-Disposition: attachment; filename*=utf-8''%0D%0ABcc%3A%20eve\r\n",
        b'Content-Type: text/csv; charset="utf-8\r\n\tX: y"; name=a\r\n',
        b"Content-Type: a/b/c; name=../../etc/passwd\r\n",
        b"Content-Type: image/png\r\nContent-ID: <logo@x>\r\nBcc: eve@example.org\r\n",
    ],
)
def test_no_part_of_a_hostile_original_adds_a_header(headers: bytes) -> None:
    raw = (
        b"From: a@example.org\r\nSubject: S\r\nContent-Type: multipart/related; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/html\r\n\r\n<img src=cid:logo@x>\r\n--b\r\n" + headers + b"\r\nDATA\r\n--b--\r\n"
    )
    got = sent(raw)
    assert {name.lower() for each in got.walk() for name in each} <= {
        "from",
        "to",
        "subject",
        "mime-version",
        "content-type",
        "content-transfer-encoding",
        "content-disposition",
        "content-id",
    }
    assert any(content(each) == b"DATA" for each in got.walk() if not each.is_multipart())


@pytest.mark.parametrize("body", ["a\0b\n", "<p>a&#0;&#xD800;b</p>"])
def test_what_no_mail_can_carry_does_not_keep_a_message_from_being_forwarded(body: str) -> None:
    kind = "text/html" if body.startswith("<") else "text/plain"
    raw = f"From: ana@example.org\nSubject: S\nContent-Type: {kind}\n\n{body}".encode()
    letter = forward_of(parse_mail(raw), raw, from_=ME, to=(BOOKS,), note=ForwardNote("note", "<p>note</p>"))
    read = parse_mail(letter.to_bytes())
    assert "Forwarded message" in (read.text or "")
    assert "note" in (read.html or "")


PARTS = st.lists(
    st.tuples(
        st.sampled_from(["text/plain", "text/html", "image/png", "message/rfc822", "text/calendar", "a/b"]),
        st.sampled_from(["", "; charset=utf-8", "; charset=utf-16", "; name=x", "; charset=x y"]),
        st.sampled_from(["7bit", "base64", "quoted-printable", "nonsense"]),
        st.binary(max_size=60),
    ),
    max_size=5,
)


@steady
@given(st.sampled_from(["mixed", "alternative", "related", "signed"]), PARTS)
def test_whatever_the_original_is_its_forward_can_be_sent_and_loses_nothing(
    kind: str, parts: list[tuple[str, str, str, bytes]]
) -> None:
    lines = [b"From: a@example.org", b"Subject: S", f"Content-Type: multipart/{kind}; boundary=b0undary".encode(), b""]
    for media, parameters, encoding, body in parts:
        lines += [b"--b0undary", f"Content-Type: {media}{parameters}".encode()]
        lines += [f"Content-Transfer-Encoding: {encoding}".encode(), b"", body]
    raw = b"\r\n".join([*lines, b"--b0undary--", b""])
    got = forward_of(parse_mail(raw), raw, from_=ME, to=(BOOKS,)).to_bytes()
    read = parse_mail(got)
    assert [each.address for each in read.to] == ["books@example.org"]
    enclosed = [each for each in read.attachments if each.content_type == "message/rfc822"]
    if not enclosed:
        files = {each.sha256 for each in read.attachments}
        assert {each.sha256 for each in parse_mail(raw).attachments} <= files
