"""Mail taken apart: whatever the bytes, there is an answer that JSON can carry."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock
from postroom.sim.gmail.call import MailboxState
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.raw_mail import recipients, stamped
from postroom.sim.gmail.rendering import RenderFormat, snippet
from postroom.sim.gmail.sources import ListedMail, ListSource
from tests.support import google_client
from tests.support.mail import OWNER, START_MS, letter

LINES = st.sampled_from(
    [
        b"Subject: =?utf-8?q?caf=C3=A9?= =?bad",
        b"From: \xc3\xa9 <a@b.example>",
        b"Date: Mon, 99 Foo 2020",
        b"Content-Type: multipart/mixed; boundary=x",
        b"Content-Type: text/html; charset=utf-7",
        b"Content-Type: text/plain; charset*=''%ff",
        b"Content-Transfer-Encoding: base64",
        b"Content-Disposition: attachment; filename*0*=x'y'%e2; filename*1=z",
        b"",
        b"--x",
        b"--x--",
        b"<b>text &amp; more</b>",
        b"aGVsbG8=",
        b"\xff\x00\xed\xa0\x80",
    ]
)


@settings(deadline=None, derandomize=True)
@given(st.lists(LINES | st.binary(max_size=20), max_size=25).map(b"\r\n".join))
def test_any_bytes_can_be_shown_in_every_format(raw: bytes) -> None:
    box = MailboxState(ListSource([ListedMail(raw, START_MS)]), ManualClock())
    _, mail = next(box.store.walk(None, None, None))
    for form in RenderFormat:
        shown = box.renderer.message(mail, form)
        google_client.check("Message", json.loads(json.dumps(shown).encode("utf-8")))


def test_every_kind_of_generated_mail_can_be_shown() -> None:
    box = MailboxState(GeneratedMailbox(messages=400, seed=11, email=OWNER), ManualClock())
    for _, mail in box.store.walk(None, None, None):
        google_client.check("Message", json.loads(json.dumps(box.renderer.message(mail, RenderFormat.FULL))))


def test_very_deep_mail_is_shown_as_far_as_it_goes() -> None:
    levels = [
        b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (number, number) for number in range(500)
    ]
    box = MailboxState(ListSource([ListedMail(b"".join(levels) + b"\r\nend", START_MS)]), ManualClock())
    _, mail = next(box.store.walk(None, None, None))
    google_client.check("Message", box.renderer.message(mail, RenderFormat.FULL))


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        (b"Subject: x\r\n\r\nHello   there\r\nfriend", "Hello there friend"),
        (b"Content-Type: text/html\n\n<style>p{}</style><p>Hi &amp; bye</p>", "Hi &amp; bye"),
        (b"Content-Transfer-Encoding: base64\nContent-Type: text/plain\n\naGVsbG8gd29ybGQ=", "hello world"),
        (b"Content-Transfer-Encoding: quoted-printable\n\ncaf=C3=A9", "café"),
        (b"Content-Type: text/plain; charset=iso-8859-1\n\ncaf\xe9", "café"),
        (letter("x", "In a part\n", attachment=("a.pdf", b"x")), "In a part"),
        (b"Content-Type: application/pdf\n\n%PDF", ""),
        (b"", ""),
    ],
)
def test_a_snippet_is_the_start_of_the_text(raw: bytes, start: str) -> None:
    assert snippet(raw) == start


def test_sending_replaces_the_message_id_and_keeps_the_rest() -> None:
    raw = b"To: b@x.example\r\nMessage-ID:\r\n <folded@x>\r\nX-Mine: 1\r\n\r\nMessage-ID: <in@body>\r\n"
    out = stamped(raw, "<new@x>", "me@x.example", ManualClock().now())
    assert out.count(b"<folded@x>") == 0
    assert b"Message-ID: <new@x>\r\n" in out
    assert out.endswith(b"\r\nX-Mine: 1\r\n\r\nMessage-ID: <in@body>\r\n")
    assert recipients(out) == {"b@x.example"}
