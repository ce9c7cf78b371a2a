"""Hard mail, case by case: what must be read, and what must be reported."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.charsets import decode_text, decode_words
from postroom.mail.headers import parse_parameters
from postroom.mail.html import html_to_text
from postroom.mail.mime import MAX_DEPTH, MAX_PARTS, safe_filename
from postroom.mail.parsing import parse_headers, parse_mail

CLEAN = b"Message-ID: <m@x.org>\r\nDate: Mon, 2 Mar 2026 10:00:00 +0100\r\n"


def mail(headers: bytes, body: bytes = b"") -> bytes:
    return CLEAN + headers + b"\r\n" + body


def test_the_fields_of_an_ordinary_message() -> None:
    parsed = parse_mail(
        mail(
            b'From: "Silva, Ana" <Ana@X.org>\r\nTo: b@y.org, c@z.org\r\nSubject: =?utf-8?q?Caf=C3=A9?=\r\n at noon\r\n'
            b"In-Reply-To: <a@x.org>\r\nReferences: <0@x.org>\r\n <a@x.org>\r\nList-Id: News <News.X.org>\r\n"
            b"List-Unsubscribe: <https://x.org/u>\r\nPrecedence: Bulk\r\nAuto-Submitted: auto-replied; owner=x\r\n",
            b"Hello\r\n",
        )
    )
    assert parsed.problems == ()
    assert parsed.message_id == "<m@x.org>"
    assert (parsed.in_reply_to, parsed.references) == ("<a@x.org>", ("<0@x.org>", "<a@x.org>"))
    assert [address.canonical for address in parsed.from_ + parsed.to] == ["ana@x.org", "b@y.org", "c@z.org"]
    assert parsed.subject == "Café at noon"
    assert parsed.date == datetime(2026, 3, 2, 9, tzinfo=UTC)
    assert (parsed.list_id, parsed.has_list_unsubscribe) == ("news.x.org", True)
    assert (parsed.precedence, parsed.auto_submitted) == ("bulk", "auto-replied")
    assert parsed.text == "Hello\n"


@pytest.mark.req("PQ-2")
def test_header_names_match_in_any_case_and_a_missing_header_never_matches() -> None:
    parsed = parse_mail(mail(b"LIST-unsubscribe: <x>\r\nX-Empty:\r\n"))
    assert parsed.has_list_unsubscribe
    assert parsed.headers.get("x-EMPTY") == ""
    assert parsed.headers.get("Precedence") is None
    assert parsed.headers.get_all("Precedence") == ()
    assert (parsed.precedence, parsed.list_id) == (None, None)
    assert "Precedence" not in parsed.headers


def test_repeated_headers_keep_their_order_and_the_newest_verdict_is_first() -> None:
    parsed = parse_mail(
        mail(
            b"Authentication-Results: mx.us; spf=pass\r\nReceived: 1\r\n"
            b"authentication-results: evil; spf=pass\r\nReceived: 2\r\n"
        )
    )
    assert parsed.authentication_results == ("mx.us; spf=pass", "evil; spf=pass")
    assert [value for name, value in parsed.headers if name == "Received"] == ["1", "2"]


@pytest.mark.parametrize(
    ("declared", "data", "text", "problem"),
    [
        ("utf-8", "Grüße".encode(), "Grüße", False),
        ("UTF8", "Grüße".encode(), "Grüße", False),
        ("iso-8859-1", "Grüße".encode("latin-1"), "Grüße", False),
        ("iso-8859-1", b"\x93quoted\x94", "“quoted”", False),
        ("iso-8859-1", "Grüße".encode(), "Grüße", True),
        ("us-ascii", "Grüße".encode(), "Grüße", True),
        ("utf-8", "Grüße".encode("latin-1"), "Grüße", True),
        ("gb2312", "你好".encode("gb18030"), "你好", False),
        ("ks_c_5601-1987", "안녕".encode("cp949"), "안녕", False),
        ("iso-2022-jp", "こんにちは".encode("iso2022_jp"), "こんにちは", False),
        ("Shift_JIS", "①".encode("cp932"), "①", False),
        ("koi8-r", "Привет".encode("koi8-r"), "Привет", False),
        ("windows-1251", "Привет".encode("cp1251"), "Привет", False),
        ("x-made-up", "Grüße".encode(), "Grüße", True),
        ("unicode_escape", b"\\ud800", "\\ud800", True),
        ("idna", b"xn--a", "xn--a", True),
        ("", "Grüße".encode(), "Grüße", False),
        (None, "Grüße".encode("latin-1"), "Grüße", True),
        ("utf-7", b"+2AA-x", "\N{REPLACEMENT CHARACTER}x", None),
        ("utf-8", b"a\0b", "ab", True),
    ],
)
def test_text_is_read_in_known_unknown_and_lying_charsets(
    declared: str | None, data: bytes, text: str, problem: bool | None
) -> None:
    found, reported = decode_text(data, declared or None)
    assert found == text
    assert problem is None or bool(reported) is problem


def test_a_page_may_name_its_charset_itself() -> None:
    page = '<html><head><meta http-equiv="Content-Type" content="text/html; charset=koi8-r"></head>Привет'
    parsed = parse_mail(mail(b"Content-Type: text/html\r\n", page.encode("koi8-r")))
    assert (parsed.html_as_text, parsed.problems) == ("Привет", ())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("plain", "plain"),
        ("=?utf-8?Q?a_b?= =?utf-8?Q?c?=", "a bc"),
        ("=?utf-8?Q?a?= x =?utf-8?Q?b?=", "a x b"),
        ("=?utf-8?b?4oI=?= =?utf-8?b?rA==?=", "€"),
        ("=?iso-8859-1?q?=E9?= =?utf-8?q?=C3=A9?=", "éé"),
        ("=?utf-8?b?Y2Fm6Q?=", "café"),
        ("=?utf-8*en?Q?x?=", "x"),
        ("=?utf-8?Q?why?_not?=", "why? not"),
        ("=?utf-8?X?nope?=", "=?utf-8?X?nope?="),
        ("=?utf-8?b?!!!!?= rest", " rest"),
        ("=?no-such?q?abc?=", "abc"),
        ("=?utf-8?q?unfinished", "=?utf-8?q?unfinished"),
    ],
)
def test_encoded_words_are_read_and_broken_ones_left_alone(written: str, read: str) -> None:
    assert decode_words(written) == read


@pytest.mark.parametrize(
    ("value", "parameters"),
    [
        ('a/b; x=1; Y="2; 3"', {"x": "1", "y": "2; 3"}),
        ("a/b; name*=utf-8''%e2%82%ac%20x.pdf", {"name": "€ x.pdf"}),
        ("a/b; name*0*=utf-8''%e2%82; name*1*=%ac; name*2=.pdf", {"name": "€.pdf"}),
        ("a/b; name*1=b; name*0=a", {"name": "ab"}),
        ("a/b; name=plain; name*=utf-8''better", {"name": "better"}),
        ("a/b; name*=x-unknown''abc", {"name": "abc"}),
        ('a/b; name="unclosed', {"name": "unclosed"}),
        ("a/b; name*999999=x", {"name*999999": "x"}),
    ],
)
def test_parameters_are_put_together_as_rfc_2231_says(value: str, parameters: dict[str, str]) -> None:
    assert parse_parameters(value) == ("a/b", parameters)


_SHORT = st.text('aB/-*";\\= \t\n\u00e9\u0130', max_size=6)


@given(_SHORT, _SHORT, _SHORT)
def test_a_lone_parameter_is_read_as_one_before_others_is(main: str, name: str, content: str) -> None:
    for value in (f"{main};{name}={content}", f'{main}; {name}="{content}"'):
        assert parse_parameters(value) == parse_parameters(f"{value};")


@pytest.mark.parametrize(
    ("written", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ana\\x.doc", "x.doc"),
        ("..", ""),
        ("/", ""),
        (".bashrc", "bashrc"),
        ("a\0b\r\nc.txt", "abc.txt"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("=?utf-8?q?=2E=2E=2Fr=C3=A9sum=C3=A9.pdf?=", "résumé.pdf"),
        ("CON.txt", "_CON.txt"),
        ("a:b?.txt", "a_b_.txt"),
        ("x" * 300 + ".pdf", "x" * 146 + ".pdf"),
    ],
)
def test_a_file_name_is_never_a_path(written: str, safe: str) -> None:
    assert safe_filename(written) == safe


def multipart(*parts: bytes, kind: bytes = b"mixed", end: bytes = b"--b--\r\n") -> bytes:
    body = b"".join(b"--b\r\n" + part + b"\r\n" for part in parts)
    return mail(b"Content-Type: multipart/" + kind + b'; boundary="b"\r\n', b"preamble\r\n" + body + end + b"epilogue")


def test_bodies_attachments_and_invitations_are_told_apart() -> None:
    pdf = base64.encodebytes(b"%PDF-1.7 ...")
    parsed = parse_mail(
        multipart(
            b'Content-Type: multipart/alternative; boundary="i"\r\n\r\n--i\r\n\r\nplain\r\n--i\r\n'
            b"Content-Type: text/html\r\n\r\n<p>rich</p>\r\n--i\r\nContent-Type: text/calendar; method=request\r\n\r\n"
            b"BEGIN:VCALENDAR\r\n--i--",
            b'Content-Type: application/pdf; name="../x.pdf"\r\nContent-Transfer-Encoding: base64\r\n\r\n' + pdf,
            b"Content-Type: image/png\r\nContent-ID: <logo@x>\r\n\r\n\x89PNG",
            b"Content-Disposition: attachment; filename=notes.txt\r\n\r\nnotes",
            b"Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\ninside",
        )
    )
    assert parsed.problems == ()
    assert (parsed.text, parsed.html, parsed.html_as_text) == ("plain", "<p>rich</p>", "rich")
    assert [(part.method, part.text) for part in parsed.calendars] == [("REQUEST", "BEGIN:VCALENDAR")]
    assert [(a.filename, a.content_type, a.inline, a.size) for a in parsed.attachments] == [
        ("x.pdf", "application/pdf", False, 12),
        ("", "image/png", True, 4),
        ("notes.txt", "text/plain", False, 5),
        ("", "message/rfc822", False, 24),
    ]
    assert parsed.attachments[0].content() == b"%PDF-1.7 ..."
    assert parsed.attachments[1].content_id == "logo@x"
    assert parse_mail(parsed.attachments[3].content()).subject == "inner"


@pytest.mark.parametrize(
    ("raw", "text", "problem"),
    [
        (mail(b"Content-Type: multipart/mixed\r\n", b"--b\r\n\r\nx"), "--b\n\nx", "a multipart names no boundary"),
        (mail(b"Content-Type: multipart/mixed; boundary=q\r\n", b"x"), "x", "a multipart never uses its boundary"),
        (multipart(b"\r\nx", end=b""), "x\nepilogue", "a multipart ends early"),
        (mail(b"Content-Transfer-Encoding: base64\r\n", b"SGVsbG8h!"), "Hello!", None),
        (mail(b"Content-Transfer-Encoding: base64\r\n", b"SGVsbG8hX"), "Hello!", "part 1: base64 is damaged"),
        (mail(b"Content-Transfer-Encoding: uuencode\r\n", b"begin 644 x\n#86)C\n`\nend\n"), "abc", None),
        (mail(b"Content-Transfer-Encoding: uuencode\r\n", b"#86)C\n"), "", "part 1: uuencoded data is damaged"),
        (mail(b"Content-Transfer-Encoding: x-odd\r\n", b"x"), "x", "part 1: the transfer encoding is unknown"),
        (mail(b"Content-Type: text\r\n", b"x"), "x", None),
        (mail(b"Subject: a\r\nno colon here\r\nX-B: 1\r\n", b"x"), "x", "a header line is malformed"),
        (CLEAN + b"Subject: a\r\nHello there\r\n", "Hello there\n", "no blank line between headers and body"),
        (mail(b"X-Huge: " + b"x" * 100_000 + b"\r\n", b"x"), "x", "a header is longer than 64 KiB"),
        (mail(b"X-A: 1\r\n" * 3_000, b"x"), "x", "more than 2000 headers"),
        (mail(b"Subject: caf\xe9\0\r\n", b"x"), "x", "8-bit characters in a header"),
        (mail(b"", b"a\0b"), "ab", "part 1: NUL characters were left out"),
    ],
)
def test_damaged_mail_is_read_as_far_as_it_goes_and_reported(raw: bytes, text: str, problem: str | None) -> None:
    parsed = parse_mail(raw)
    assert parsed.text == text
    assert [found[: len(problem or "")] for found in parsed.problems] == ([problem] if problem else [])


@pytest.mark.parametrize(
    "raw", [b"", b"\r\n", b"\0", b"hello", b":", b"From x\n", b"\xff" * 100, b"\r" * 10, b"--", b"a:\rb:"]
)
def test_what_is_hardly_mail_is_read_too(raw: bytes) -> None:
    assert "Message-ID is missing" in parse_mail(raw).problems


def test_8_bit_headers_are_read_and_the_rest_of_the_message_too() -> None:
    parsed = parse_mail("From: Jürgen <j@x.org>\nSubject: Grüße\n\n".encode("latin-1") + b"x")
    assert (parsed.subject, parsed.from_[0].display_name, parsed.text) == ("Grüße", "Jürgen", "x")
    assert parse_mail("Subject: Grüße €\n\n".encode()).subject == "Grüße €"


@pytest.mark.parametrize("before", range(4))
def test_a_header_that_is_cut_within_a_character_is_still_read_as_utf_8(before: int) -> None:
    subject = parse_mail(b"Subject: " + b"x" * before + "€".encode() * 30_000 + b"\n\nx").subject
    assert set(subject[before:]) == {"€"}
    assert len(subject) > 21_800


@pytest.mark.parametrize(
    ("header", "date"),
    [
        ("Mon, 2 Mar 2026 10:00:00 -0000", datetime(2026, 3, 2, 10, tzinfo=UTC)),
        ("2 Mar 26 10:00 EST", datetime(2026, 3, 2, 15, tzinfo=UTC)),
        ("Mon, 2 Mar 2026 10:00:00 +0100 (CET)", datetime(2026, 3, 2, 9, tzinfo=UTC)),
        ("yesterday", None),
        ("Mon, 99 Foo 2026 99:99:99 +9999", None),
        ("Fri, 31 Dec 9999 23:59:59 -1200", None),
        ("Mon, " + "9" * 5_000 + " Mar 2026 10:00:00 +0000", None),
        ("", None),
    ],
)
def test_a_date_is_an_instant_in_utc_or_nothing(header: str, date: datetime | None) -> None:
    assert parse_mail(f"Date: {header}\n\n".encode()).date == date


@pytest.mark.parametrize(
    ("header", "read"),
    [
        ("<a@x>", "<a@x>"),
        ("a@x", "<a@x>"),
        ("Your mail of today <a@x>", "<a@x>"),
        ("< a@x >", "<a@x>"),
        ("nonsense", None),
    ],
)
def test_message_ids_have_one_form(header: str, read: str | None) -> None:
    assert parse_mail(f"Message-ID: {header}\nIn-Reply-To: {header}\n\n".encode()).in_reply_to == read


def test_nesting_and_division_stop_at_their_limits() -> None:
    deep = b"x"
    for level in range(200):
        boundary = b"b%d" % level
        deep = (
            b"Content-Type: multipart/mixed; boundary="
            + boundary
            + b"\r\n\r\n--"
            + boundary
            + b"\r\n"
            + deep
            + b"\r\n--"
            + boundary
            + b"--"
        )
    parsed = parse_mail(CLEAN + deep)
    assert f"parts are nested deeper than {MAX_DEPTH}; the rest was not taken apart" in parsed.problems
    assert [part.content_type for part in parsed.attachments] == ["multipart/mixed"]

    wide = parse_mail(mail(b"Content-Type: multipart/mixed; boundary=b\r\n", b"--b\r\n\r\nx\r\n" * 5_000))
    assert (wide.text or "").count("x") <= MAX_PARTS
    assert f"more than {MAX_PARTS} parts" in wide.problems


def test_an_endless_reference_chain_keeps_its_first_and_latest_ids() -> None:
    header = " ".join(f"<{n}@x>" for n in range(1_000))
    references = parse_mail(f"References: {header}\n\n".encode()).references
    assert (len(references), references[0], references[-1]) == (100, "<0@x>", "<999@x>")


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\r"])
def test_headers_alone_are_those_of_the_whole(line_end: bytes) -> None:
    raw = mail(b"Subject: x\r\nTo: a@x.test\r\n", b"body").replace(b"\r\n", line_end)
    assert parse_headers(raw) == parse_mail(raw).headers
    assert parse_headers(raw).get("Subject") == "x"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>Hello <b>w</b>orld</p><p>again</p>", "Hello world\nagain"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("<style>p{x:y}</style><script>1<2</script><!-- no -->seen", "seen"),
        ("<head><title>t</title></head><body>seen", "seen"),
        ("caf&eacute; &amp; &#8364; &lt;b&gt;", "café & € <b>"),
        ('<img alt="a > b">after', "after"),
        ("<table><tr><td>1</td><td>2</td></tr></table>", "1\n2"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<<b>b>x", "x"),
        ("unclosed <a href='", "unclosed <a href='"),
        ("", ""),
    ],
)
def test_html_is_told_as_text(markup: str, text: str) -> None:
    assert html_to_text(markup) == text
