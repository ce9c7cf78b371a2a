"""Mutated and hostile mail: no exception, no hang, no unbounded memory."""

from __future__ import annotations

import html
import random
import re
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import headers
from postroom.mail.html import html_to_text
from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.sim.gmail.generated import GeneratedMailbox

# The same examples on every run; how long one takes is not what these tests are about.
steady = settings(deadline=None, derandomize=True)

SEED_MAIL = (
    b"Received: by mx\r\nAuthentication-Results: mx; spf=pass\r\n"
    b'From: =?utf-8?q?J=C3=BCrgen?= <j@x.org>, "a, b" (c (d)) <a@b.org>\r\nTo: g: x@y.org;, z@w.org\r\n'
    b"Subject: =?utf-8?b?4oKs?=\r\n =?iso-8859-1?q?=E9?=\r\nDate: Mon, 2 Mar 2026 10:00:00 +0100\r\n"
    b"Message-ID: <1@x.org>\r\nReferences: <a@b> <c@d>\r\nList-Id: x <l.x.org>\r\n"
    b'Content-Type: multipart/mixed; boundary="b0"\r\n\r\npreamble\r\n--b0\r\n'
    b"Content-Type: multipart/alternative; boundary=b1\r\n\r\n--b1\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Transfer-Encoding: quoted-printable\r\n\r\nGr=C3=BC=C3=9Fe\r\n--b1\r\nContent-Type: text/html\r\n\r\n"
    b"<p>Hi <b>you</b>&nbsp;&amp; me</p>\r\n--b1--\r\n--b0\r\nContent-Type: application/pdf; name*0*=utf-8''%e2%82;\r\n"
    b' name*1*=%ac.pdf\r\nContent-Transfer-Encoding: base64\r\nContent-Disposition: attachment; filename="x.pdf"\r\n'
    b"\r\nJVBERi0xLjcK\r\n--b0\r\nContent-Type: text/calendar; method=REQUEST\r\n\r\nBEGIN:VCALENDAR\r\n--b0--\r\n"
)
SPLICES = (
    *(
        b"\0",
        b"\r\n",
        b"\n\n",
        b"\r",
        b"--b0",
        b"--b0--",
        b"--b1\r\n",
        b"=?utf-8?q?",
        b"?=",
        b'"',
        b"<",
        b">",
        b"(",
        b"\\",
    ),
    *(
        b"boundary=",
        b"; charset=utf-16",
        b"; charset=unicode_escape",
        b"base64",
        b"\xff\xfe",
        b"name*99*=",
        b"%zz",
        b"=\r\n",
    ),
    *(
        b"Content-Type: multipart/mixed; boundary=b0\r\n",
        b"Content-Type: message/rfc822\r\n\r\n",
        b"<!--",
        b"<style>",
        b":",
    ),
)


def check(parsed: ParsedMail) -> None:
    """Everything that can be asked of a message answers, in text that any store can hold."""
    texts = [parsed.subject, parsed.text or "", parsed.html or "", parsed.html_as_text or "", parsed.best_text]
    texts += [text for pair in parsed.headers for text in pair]
    texts += [name for attachment in parsed.attachments for name in (attachment.filename, attachment.content_id)]
    texts += [str(address) for address in (*parsed.from_, *parsed.to, *parsed.cc, *parsed.reply_to)]
    texts += [parsed.list_id or "", *parsed.references, *parsed.problems, *(part.text for part in parsed.calendars)]
    for text in texts:
        assert "\0" not in text
        text.encode("utf-8")
    for attachment in parsed.attachments:
        assert len(attachment.content()) == attachment.size
        assert not {"/", "\\"} & set(attachment.filename)


def mutated(rng: random.Random, seed: bytes = SEED_MAIL) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 12)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[position:position] = rng.choice(SPLICES)
            case 1:
                del data[position : position + rng.randint(1, 60)]
            case 2:
                data[position : position + 1] = bytes([rng.randrange(256)])
            case _:
                other = rng.randrange(len(data) + 1)
                data[position:position] = data[other : other + rng.randint(1, 200)]
    return bytes(data)


def test_the_seed_of_the_fuzz_is_clean() -> None:
    assert parse_mail(SEED_MAIL).problems == ()


def test_mutated_mail_is_always_read() -> None:
    rng = random.Random(3)
    for _ in range(4_000):
        check(parse_mail(mutated(rng)))


def test_mutated_mail_of_every_kind_is_always_read() -> None:
    rng = random.Random(4)
    box = GeneratedMailbox(10_000, 6, "ana.silva@example.org")
    for index in range(600):
        raw = box.raw(index)
        check(parse_mail(raw))
        check(parse_mail(mutated(rng, raw[:20_000])))


@settings(steady, max_examples=200)
@given(st.binary(max_size=2_000))
def test_any_bytes_are_read(raw: bytes) -> None:
    check(parse_mail(raw))


@settings(steady, max_examples=200)
@given(st.lists(st.sampled_from([*SPLICES, b"x", b" ", b"a: b\n", b"Subject: "]), max_size=100))
def test_any_heap_of_mail_fragments_is_read(pieces: list[bytes]) -> None:
    check(parse_mail(b"".join(pieces)))


def of_body(content_type: bytes, body: bytes) -> bytes:
    return b"Content-Type: " + content_type + b"\n\n" + body


K = 1 << 10
HOSTILE: dict[str, Callable[[], bytes]] = {
    "encoded words that never end": lambda: b"Subject: " + b"=?a?q?" * (10 * K),
    "encoded words within encoded words": lambda: b"Subject: " + b"=?utf-8?q?=?utf-8?q?x?=" * (2 * K),
    "two million one-letter lines": lambda: b"a: b\n\n" + b"x\n" * (2 << 20),
    "a megabyte of boundaries": lambda: of_body(b"multipart/mixed; boundary=b", b"--b\n" * (256 * K)),
    "a megabyte of near-boundaries": lambda: of_body(b"multipart/mixed; boundary=b", b"--bx" * (256 * K)),
    "boundaries with endless white space": lambda: of_body(b"multipart/mixed; boundary=b", (b"--b" + b" " * 900) * K),
    "a boundary in every nested part": lambda: of_body(
        b"multipart/mixed; boundary=b", b"--b\nContent-Type: multipart/mixed; boundary=b\n\n" * (8 * K)
    ),
    "parentheses": lambda: b"From: " + b"(" * (60 * K),
    "open quotes": lambda: b"From: " + b'"\\' * (30 * K),
    "open angles": lambda: b"From: " + b'<"' * (30 * K),
    "sixty thousand commas": lambda: b"To: " + b"a@b," * (15 * K),
    "parameters": lambda: b"Content-Type: text/plain" + b';a="' * (15 * K),
    "parameter pieces": lambda: b"Content-Type: text/plain" + b"".join(b";a*%d*=%%41" % n for n in range(5 * K)),
    "one header of eight megabytes": lambda: b"X: " + b"x" * (8 << 20),
    "a folded header of a megabyte": lambda: b"X: " + b"\n x" * (340 * K),
    "a million headers": lambda: b"a:\n" * (1 << 20) + b"\n",
    "one header name over and over": lambda: b"Received: x\n" * (80 * K) + b"\n",
    "references": lambda: b"References: " + b"<" * (60 * K),
    "base64 of nothing": lambda: b"Content-Transfer-Encoding: base64\n\n" + b"=" * (4 << 20),
    "uuencoded lines": lambda: b"Content-Transfer-Encoding: x-uuencode\n\nbegin 644 x\n" + b"!\n" * (256 * K),
    "a charset that explodes": lambda: of_body(b"text/plain; charset=utf-7", b"+" * (1 << 20)),
    "open tags": lambda: of_body(b"text/html", b"<div>" * (200 * K)),
    "tags that never close": lambda: of_body(b"text/html", b"<a " * (300 * K)),
    "open attributes": lambda: of_body(b"text/html", b"<a b='" * (150 * K)),
    "open comments": lambda: of_body(b"text/html", b"<!--" * (250 * K)),
    "open styles": lambda: of_body(b"text/html", b"<style>" * (150 * K)),
    "closing styles": lambda: of_body(b"text/html", b"<style></style " * (70 * K)),
    "short words": lambda: of_body(b"text/html", b"ab " * (340 * K)),
    "entities": lambda: of_body(b"text/html", b"&#99999999999;&ampx" * (50 * K)),
    "formatting rebuilt in each paragraph": lambda: of_body(
        b"text/html", b"".join(b"<b a=%d>" % n for n in range(10_000)) + b"<p>x" * 10_000
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_mail_costs_little_time_and_memory(name: str) -> None:
    raw = HOSTILE[name]()
    started = time.process_time()
    parsed = parse_mail(raw)
    _ = parsed.html_as_text
    assert time.process_time() - started < 5  # quadratic work on these sizes would take minutes

    tracemalloc.start()
    try:
        check(parse_mail(raw))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(raw) + (16 << 20)


def test_html_is_cut_before_it_is_read() -> None:
    assert len(html_to_text("x" * (5 << 20))) == 2 << 20


_SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2028\u3000\u200b\u200c\ufeff\u00ad\u034f"
_PAGE_PIECES = st.sampled_from(
    [*_SPACES, "a", "word", "\xe9", "\u4e2d", "<p>", "<b>", "&nbsp;", "&#8203;", "\ue001", "\0"]
)


@settings(deadline=None, derandomize=True, max_examples=2_000)
@given(st.lists(_PAGE_PIECES, max_size=20).map("".join))
def test_any_run_of_spaces_in_html_is_one_blank_and_none_at_the_ends_of_a_line(page: str) -> None:
    """Spaces that take no room are spaces too, and a line without a word is none."""
    plain = html.unescape(page.replace("<b>", "").replace("<p>", "\ue001")).replace("\0", "")
    lines = [re.sub(rf"[\s{_SPACES}]+", " ", line).strip() for line in plain.split("\ue001")]
    assert html_to_text(page) == "\n".join(filter(None, lines))


_HEADER_PIECES = st.sampled_from(
    ["From", "X-A", "x-a", ":", ": ", " : ", "\t:\t", "value", " ", "\t", "\r\n", "\n", "\r", "\n ", "\r\n\t", "\0",
     "é", "a@b.org", "=?utf-8?q?a?=", "n" * 201, "\x0b", "\x1c", "\x7f", ">From me", "From me"]
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=2_000)
@given(st.lists(_HEADER_PIECES, max_size=14).map("".join))
def test_the_short_way_through_plain_headers_finds_what_the_long_way_finds(text: str) -> None:
    block = text.encode("latin-1")
    problems: list[str] = []
    short = headers._pairs(block, problems)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headers, "_plain_pairs", lambda text: None)
        found: list[str] = []
        assert (short, problems) == (headers._pairs(block, found), found)
