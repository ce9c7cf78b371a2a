"""On well-formed mail our parts are the standard library's parts, byte for byte."""

from __future__ import annotations

import base64
import quopri
from email import message_from_bytes
from email.message import Message

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import mime
from postroom.mail.headers import read_block, split_headers
from postroom.mail.mime import decode_transfer, parts_of
from postroom.sim.gmail.generated import GeneratedMailbox

# The same examples on every run; how long one takes is not what these tests are about.
steady = settings(deadline=None, derandomize=True)

Parts = list[tuple[str, bytes]]
KINDS = ("mixed", "alternative", "related", "report", "digest")
TYPES = ("text/plain", "text/html; charset=utf-8", "application/pdf", "image/png", "")


def ours(raw: bytes) -> Parts:
    """Enclosed messages are one part to us, and already taken apart by the library: only their place is compared."""
    return [(kind, b"" if kind.startswith("message/") else content) for kind, content in contents(raw)]


def contents(raw: bytes) -> Parts:
    problems: list[str] = []
    headers, start = split_headers(raw, problems)
    parts = parts_of(headers, raw, start, problems)
    assert problems == []
    return [(part.content_type, bytes(decode_transfer(part.body, part.transfer_encoding)[0])) for part in parts]


def theirs(message: Message) -> Parts:
    if message.get_content_maintype() == "multipart":
        children = message.get_payload()
        assert isinstance(children, list)
        return [part for child in children if isinstance(child, Message) for part in theirs(child)]
    if message.get_content_maintype() == "message":
        return [(message.get_content_type(), b"")]
    content = message.get_payload(decode=True)
    assert isinstance(content, bytes)
    return [(message.get_content_type(), content)]


@st.composite
def leaves(draw: st.DrawFn) -> bytes:
    content = draw(st.binary(max_size=200))
    kind = draw(st.sampled_from(TYPES))
    head = f"Content-Type: {kind}\r\n".encode() if kind else b""
    match draw(st.sampled_from(("base64", "quoted-printable", "8bit"))):
        case "base64":
            return head + b"Content-Transfer-Encoding: base64\r\n\r\n" + base64.encodebytes(content)
        case "quoted-printable":
            return head + b"Content-Transfer-Encoding: Quoted-Printable\r\n\r\n" + quopri.encodestring(content)
        case _:
            return head + b"\r\n" + content.replace(b"\r", b"").replace(b"-", b"").replace(b"\0", b"")


@st.composite
def containers(draw: st.DrawFn, children: st.SearchStrategy[bytes]) -> bytes:
    # No boundary here is the beginning of another one; the contents hold no "--".
    boundary = draw(st.text("abc'()+_,./:=?", min_size=5, max_size=20)) + draw(st.uuids()).hex
    kind = draw(st.sampled_from(KINDS[:-1]))
    parts = draw(st.lists(children, min_size=1, max_size=4))
    eol = draw(st.sampled_from((b"\r\n", b"\n")))
    line = b"--" + boundary.encode()
    body = eol.join(line + eol + part for part in parts)
    head = f'Content-Type: multipart/{kind}; boundary="{boundary}"'.encode() + eol + eol
    return head + b"preamble" + eol + body + eol + line + b"--" + eol + b"epilogue"


messages = st.recursive(leaves(), containers, max_leaves=12)


@steady
@given(messages)
def test_the_parts_of_well_formed_mail_are_those_of_the_standard_library(raw: bytes) -> None:
    raw = b"Subject: x\r\nMIME-Version: 1.0\r\n" + raw
    assert ours(raw) == theirs(message_from_bytes(raw))


def test_the_parts_of_generated_mail_are_those_of_the_standard_library() -> None:
    box = GeneratedMailbox(10_000, 5, "ana.silva@example.org")
    for index in range(600):
        if box.ugliness(index) is None:
            raw = box.raw(index)
            assert ours(raw) == theirs(message_from_bytes(raw)), index


def test_the_parts_of_a_digest_are_messages() -> None:
    raw = b"Content-Type: multipart/digest; boundary=b\n\n--b\n\nSubject: one\n\n1\n--b\n\nSubject: two\n\n2\n--b--\n"
    assert ours(raw) == theirs(message_from_bytes(raw))
    assert contents(raw) == [("message/rfc822", b"Subject: one\n\n1"), ("message/rfc822", b"Subject: two\n\n2")]


_LINES = (
    *(b"Content-Type: text/plain", b"content-type: text/html; charset=utf-8", b"Content-Type: nonsense", b"A : b "),
    *(b"Content-Transfer-Encoding: Base64 ; x", b"Content-Disposition: attachment; filename=a.txt", b"From x", b""),
    *(b" folded", b"\tname=b.pdf", b"no header", b"X: \xe9", b"X: \0", b"X:", b":", b"X: a\rb"),
)


@settings(deadline=None, derandomize=True, max_examples=2_000)
@given(st.lists(st.sampled_from(_LINES), max_size=5), st.sampled_from((b"\n", b"\r\n")), st.booleans())
def test_the_head_of_a_part_that_is_remembered_is_what_reading_it_finds(
    lines: list[bytes], line_end: bytes, has_body: bool
) -> None:
    block = line_end.join(lines)
    raw = block + (line_end * 2 + b"body" if has_body else b"")
    problems: list[str] = []
    headers, body, _ = read_block(raw, problems, 0, len(raw), 1_000)
    walk = mime._Walk(raw, [])
    assert walk._head_at(0, len(raw), 1_000, "text/plain") == (mime._head(headers, "text/plain"), body)
    assert walk.problems == problems
