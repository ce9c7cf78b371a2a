"""Hostile mail: structure, headers, encodings, names. HTML bodies are in `kinds_markup.py`."""

from __future__ import annotations

import base64
import quopri

from tests.hostile.corpus import register

MAIL = ("mail", "shown")
_TOP = b"From: a@b.example\r\nTo: c@d.example\r\nSubject: x\r\nDate: Mon, 02 Mar 2026 10:00:00 +0000\r\n"


def mail(body: bytes, *headers: bytes) -> bytes:
    """A message whose own headers come first, so that they win."""
    return b"".join(header + b"\r\n" for header in headers) + _TOP + b"MIME-Version: 1.0\r\n\r\n" + body


def part(body: bytes, content_type: bytes = b"text/plain", *headers: bytes) -> bytes:
    more = b"".join(header + b"\r\n" for header in headers)
    return b"--B\r\nContent-Type: " + content_type + b"\r\n" + more + b"\r\n" + body + b"\r\n"


def mixed(*parts: bytes, kind: bytes = b"mixed", end: bytes = b"--B--\r\n") -> bytes:
    return mail(b"".join(parts) + end, b"Content-Type: multipart/" + kind + b"; boundary=B")


def encoded(body: bytes, encoding: bytes, content_type: bytes = b"text/plain") -> bytes:
    return mail(body, b"Content-Type: " + content_type, b"Content-Transfer-Encoding: " + encoding)


def header(name: bytes, value: bytes) -> bytes:
    return mail(b"Hello\r\n", name + b": " + value)


def _nested(n: int, kind: bytes = b"mixed", closed: bool = True) -> bytes:
    opened = b"".join(
        b"--%d\r\nContent-Type: multipart/%s; boundary=%d\r\n\r\n" % (level, kind, level + 1) for level in range(n)
    )
    closing = b"".join(b"--%d--\r\n" % level for level in range(n, -1, -1)) if closed else b""
    return mail(opened + closing, b"Content-Type: multipart/mixed; boundary=0")


_SAME_BOUNDARY = b"--B\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n"

register(
    "structure",
    MAIL,
    {
        "nested-multiparts": lambda n: _nested(n),
        "nested-unclosed": lambda n: _nested(n, closed=False),
        "nested-alternatives": lambda n: _nested(n, b"alternative"),
        "nested-digests": lambda n: _nested(n, b"digest"),
        "nested-same-boundary": lambda n: mixed(_SAME_BOUNDARY * n),
        "prefix-boundaries": lambda n: mixed(
            b"".join(
                b"--%s\r\nContent-Type: multipart/mixed; boundary=%s\r\n\r\n" % (b"B" * k, b"B" * (k + 1))
                for k in range(1, min(n, 60))
            )
            + b"--B\r\n" * n
        ),
        "many-parts": lambda n: mixed(part(b"x") * n),
        "many-empty-parts": lambda n: mixed(b"--B\r\n" * n),
        "many-closings": lambda n: mixed(b"--B--\r\n" * n),
        "many-html-parts": lambda n: mixed(part(b"<p>x</p>", b"text/html") * n),
        "many-attachments": lambda n: mixed(part(b"x", b"image/png; name=a.png") * n),
        "alternatives-without-end": lambda n: mixed(part(b"<b>x", b"text/html") * n, kind=b"alternative", end=b""),
        "delimiters-within-lines": lambda n: mixed(part(b" --B" * n)),
        "almost-delimiters": lambda n: mixed(part(b"--Bx\r\n" * n)),
        "dashes": lambda n: mixed(part(b"-" * n)),
        "delimiters-with-spaces": lambda n: mixed(part(b"x") + (b"--B" + b" " * 990 + b"\r\n") * n),
        "delimiter-line-endless": lambda n: mixed(part(b"x") + b"--B" + b" " * n),
        "long-boundary": lambda n: mail(
            b"--" + b"b" * n + b"\r\n\r\nx", b"Content-Type: multipart/mixed; boundary=" + b"b" * n
        ),
        "empty-boundary": lambda n: mail(b"--\r\n\r\nx\r\n" * n, b'Content-Type: multipart/mixed; boundary=""'),
        "boundary-of-spaces": lambda n: mail(
            b"--   \r\n\r\nx\r\n" * n, b'Content-Type: multipart/mixed; boundary="   "'
        ),
        "boundary-of-newline": lambda n: mail(
            b"--\n\r\n\r\nx\r\n" * n, b'Content-Type: multipart/mixed; boundary="\\\n"'
        ),
        "eight-bit-boundary": lambda n: mail(
            b"--\xff\xfe\r\n\r\nx\r\n" * n, b'Content-Type: multipart/mixed; boundary="\xff\xfe"'
        ),
        "no-boundary": lambda n: mail(b"--B\r\n\r\nx\r\n" * n, b"Content-Type: multipart/mixed"),
        "unused-boundary": lambda n: mail(b"--C\r\n\r\nx\r\n" * n, b"Content-Type: multipart/mixed; boundary=B"),
        "preamble-only": lambda n: mail(b"x\r\n" * n, b"Content-Type: multipart/mixed; boundary=B"),
        "epilogue": lambda n: mixed(part(b"x"), end=b"--B--\r\n" + b"more\r\n" * n),
        "parts-of-headers-only": lambda n: mixed(b"--B\r\nX: y\r\n" * n),
        "parts-with-many-headers": lambda n: mixed(part(b"x", b"text/plain", *[b"X-A: b"] * n)),
        "partial-messages": lambda n: mail(
            part(b"x") * n, b'Content-Type: message/partial; number=1; total=%d; id="B"' % n
        ),
        "encoded-multipart": lambda n: mail(
            base64.encodebytes(part(b"x") * n),
            b"Content-Type: multipart/mixed; boundary=B",
            b"Content-Transfer-Encoding: base64",
        ),
        "carriage-returns-only": lambda n: mixed(part(b"x\n") * n).replace(b"\n", b""),
        "mixed-line-ends": lambda n: mixed(part(b"a\nb\rc\r\n\n\r" * n)),
        "no-newline-at-all": lambda n: b"From: a@b.example " + b"x" * n,
        "only-newlines": lambda n: b"\n" * n,
        "only-returns": lambda n: b"\r" * n,
        "only-nuls": lambda n: b"\0" * n,
        "only-eight-bit": lambda n: b"\xff" * n,
        "only-spaces": lambda n: b" " * n,
        "random-bytes": lambda n: bytes((k * k * 31 + k * 7) % 251 for k in range(n)),
        "empty": lambda n: b"",
    },
)

register(
    "headers",
    MAIL,
    {
        "endless-block": lambda n: b"X-A: b\r\n" * n,
        "one-endless-header": lambda n: header(b"X-Long", b"a" * n),
        "endless-subject": lambda n: header(b"Subject", b"word " * n),
        "endless-name": lambda n: b"A" * n + b": x\r\n\r\nHello",
        "folded-a-thousand-times": lambda n: header(b"Subject", b"a\r\n " * n),
        "folded-empty": lambda n: header(b"Subject", b"\r\n " * n + b"x"),
        "folded-tabs": lambda n: header(b"Subject", b"\r\n\t" * n + b"x"),
        "lines-without-colon": lambda n: b"From: a@b.example\r\n" + b"nonsense\r\n" * n + b"\r\nx",
        "colons-only": lambda n: b":\r\n" * n + b"\r\nx",
        "spaces-before-colon": lambda n: b"Subject" + b" " * n + b": x\r\n\r\ny",
        "many-colons": lambda n: header(b"Subject", b":" * n),
        "many-subjects": lambda n: b"Subject: x\r\n" * n + b"\r\ny",
        "many-froms": lambda n: b"From: a@b.example\r\n" * n + b"\r\ny",
        "many-received": lambda n: mail(b"x", *[b"Received: from a by b; Mon, 2 Mar 2026 10:00:00 +0000"] * n),
        "many-distinct-names": lambda n: b"".join(b"X-%d: y\r\n" % k for k in range(n)) + b"\r\nz",
        "nul-in-values": lambda n: header(b"Subject", b"a\0b" * n),
        "nul-in-names": lambda n: b"Sub\0ject: x\r\n" * n + b"\r\ny",
        "controls": lambda n: header(b"Subject", b"\x01\x02\x1b[31m\x7f" * n),
        "raw-eight-bit": lambda n: header(b"Subject", b"\xc4\x8d\xff" * n),
        "raw-utf16": lambda n: header(b"Subject", "č".encode("utf-16") * n),
        "direction-marks": lambda n: header(b"Subject", "\u202e\u2066x".encode() * n),
        "combining-marks": lambda n: header(b"Subject", b"a" + "\u0301".encode() * n),
        "line-separators": lambda n: header(b"Subject", "a\u2028b\u2029c\x85".encode() * n),
        "from-line-first": lambda n: b"From nobody Mon\n" * n + b"Subject: x\n\ny",
        "message-id-open": lambda n: header(b"Message-ID", b"<" * n),
        "message-id-long": lambda n: header(b"Message-ID", b"<" + b"a" * n + b"@b>"),
        "message-id-hex": lambda n: header(b"Message-ID", b"<" + b"0a" * n),
        "message-id-bare": lambda n: header(b"Message-ID", b"a@" * n),
        "references-endless": lambda n: header(b"References", b"<a@b> " * n),
        "references-open": lambda n: header(b"References", b"<a@b " * n),
        "in-reply-to-junk": lambda n: header(b"In-Reply-To", b"your message of " * n),
        "return-path-open": lambda n: header(b"Return-Path", b"<-return" * n),
        "sender-owner-open": lambda n: header(b"Sender", b"<owner-" * n),
        "one-letter-subject": lambda n: header(b"Subject", b"a" * n),
        "digits-in-subject": lambda n: header(b"Subject", b"a" + b"1" * n + b"_"),
        "list-id-open": lambda n: header(b"List-ID", b"<" * n + b"list.example"),
        "list-unsubscribe-many": lambda n: header(b"List-Unsubscribe", b"<https://a.example/u>, " * n),
        "authentication-results-long": lambda n: header(b"Authentication-Results", b"mx.example; dkim=pass " * n),
        "authentication-results-quotes": lambda n: header(b"Authentication-Results", b'mx; a="\\' * n),
        "authentication-results-comments": lambda n: header(b"Authentication-Results", b"mx; (" * n),
        "authentication-results-properties": lambda n: header(b"Authentication-Results", b"mx; spf=pass a.b= " * n),
        "authentication-results-many": lambda n: mail(b"x", *[b"Authentication-Results: mx.google.com; spf=fail"] * n),
        "precedence-long": lambda n: header(b"Precedence", b"bulk;" * n),
        "auto-submitted-long": lambda n: header(b"Auto-Submitted", b"auto-replied; " * n),
        "body-without-blank-line": lambda n: b"Subject: x\r\n" + b"This is text, no header\r\n" * n,
    },
)

register(
    "words",
    MAIL,
    {
        "many": lambda n: header(b"Subject", b"=?utf-8?q?a?= " * n),
        "adjacent": lambda n: header(b"Subject", b"=?utf-8?b?YQ==?=" * n),
        "open": lambda n: header(b"Subject", b"=?utf-8?q?" * n),
        "open-with-text": lambda n: header(b"Subject", b"=?utf-8?q?aaaa" * n),
        "question-marks": lambda n: header(b"Subject", b"=" + b"?" * n),
        "marks-within": lambda n: header(b"Subject", b"=?utf-8?q?" + b"?a" * n + b"?="),
        "equals": lambda n: header(b"Subject", b"=?" + b"=" * n + b"?="),
        "unknown-charsets": lambda n: header(b"Subject", b"".join(b"=?x-%d?q?a?= " % k for k in range(n))),
        "many-charsets": lambda n: header(
            b"Subject",
            b"".join(b"=?%s?b?/w==?= " % c for c in (b"utf-7", b"gb18030", b"hz", b"iso-2022-jp") for _ in range(n)),
        ),
        "languages": lambda n: header(b"Subject", b"=?utf-8*en?q?a?= " * n),
        "damaged-base64": lambda n: header(b"Subject", b"=?utf-8?b?A?= " * n),
        "damaged-quoted": lambda n: header(b"Subject", b"=?utf-8?q?=ZZ=?= " * n),
        "nested": lambda n: header(b"Subject", b"=?utf-8?q?=3D=3Futf-8=3Fq=3Fa=3F=3D?= " * n),
        "split-character": lambda n: header(b"Subject", b"=?utf-8?q?=C4?= =?utf-8?q?=8D?= " * n),
        "nuls-within": lambda n: header(b"Subject", b"=?utf-8?q?=00?= " * n),
        "codec-names": lambda n: header(
            b"Subject",
            b"".join(b"=?%s?q?a?= " % c for c in (b"zlib", b"rot13", b"idna", b"punycode", b"undefined", b"hex")) * n,
        ),
        "in-display-names": lambda n: header(b"To", b"=?utf-8?q?a=2C_b?= <a@b.example>, " * n),
        "in-file-names": lambda n: mixed(part(b"x", b'text/plain; name="' + b"=?utf-8?q?a?= " * n + b'"')),
    },
)

register(
    "parameters",
    MAIL,
    {
        "many": lambda n: header(b"Content-Type", b"text/plain" + b"; a=b" * n),
        "many-distinct": lambda n: header(b"Content-Type", b"text/plain" + b"".join(b"; a%d=b" % k for k in range(n))),
        "semicolons": lambda n: header(b"Content-Type", b"text/plain" + b";" * n),
        "open-quote": lambda n: header(b"Content-Type", b'text/plain; a="' + b"x" * n),
        "open-quotes": lambda n: header(b"Content-Type", b'text/plain; a="' * n),
        "backslashes": lambda n: header(b"Content-Type", b'text/plain; a="' + b"\\" * n),
        "escaped-quotes": lambda n: header(b"Content-Type", b'text/plain; a="' + b'\\"' * n),
        "spaces-before-equals": lambda n: header(b"Content-Type", b"text/plain; a" + b" " * n + b"=b"),
        "spaces-everywhere": lambda n: header(b"Content-Type", b"text/plain" + b";   " * n),
        "pieces": lambda n: header(b"Content-Type", b"text/plain" + b"".join(b"; name*%d=a" % k for k in range(n))),
        "pieces-far-apart": lambda n: header(b"Content-Type", b"text/plain; name*999=b; name*0=a" * n),
        "pieces-huge-number": lambda n: header(b"Content-Type", b"text/plain; name*" + b"9" * n + b"=a"),
        "pieces-unicode-digits": lambda n: header(b"Content-Type", "text/plain; name*\u0663=a; name*²=b".encode() * n),
        "stars": lambda n: header(b"Content-Type", b"text/plain; " + b"*" * n + b"=a"),
        "percents": lambda n: header(b"Content-Type", b"text/plain; name*=utf-8''" + b"%ff" * n),
        "percents-broken": lambda n: header(b"Content-Type", b"text/plain; name*=utf-8''" + b"%" * n),
        "apostrophes": lambda n: header(b"Content-Type", b"text/plain; name*=" + b"'" * n),
        "charset-unknown": lambda n: header(b"Content-Type", b"text/plain; name*=x-" + b"a" * n + b"''b"),
        "type-of-slashes": lambda n: header(b"Content-Type", b"/" * n),
        "type-endless": lambda n: header(b"Content-Type", b"text/" + b"x" * n),
        "disposition-many": lambda n: mixed(
            part(b"x", b"text/plain", b"Content-Disposition: attachment" + b"; filename=a" * n)
        ),
        "charset-parameter-long": lambda n: header(b"Content-Type", b"text/plain; charset=" + b"u" * n),
    },
)

register(
    "addresses",
    MAIL,
    {
        "many": lambda n: header(b"To", b"a@b.example, " * n),
        "commas": lambda n: header(b"To", b"," * n),
        "open-angles": lambda n: header(b"To", b"<" * n),
        "open-angles-with-names": lambda n: header(b"To", b"a <" * n),
        "open-quotes": lambda n: header(b"To", b'"a' * n),
        "open-comments": lambda n: header(b"To", b"(" * n),
        "nested-comments": lambda n: header(b"To", b"(" * n + b")" * n + b" a@b.example"),
        "closed-comments": lambda n: header(b"To", b"()" * n + b"a@b.example"),
        "backslashes": lambda n: header(b"To", b'"' + b"\\" * n + b'" <a@b.example>'),
        "groups": lambda n: header(b"To", b"friends: a@b.example; " * n),
        "nested-groups": lambda n: header(b"To", b"a:" * n),
        "routes": lambda n: header(b"To", b"<" + b"@a.example," * n + b":b@c.example>"),
        "at-signs": lambda n: header(b"To", b"@" * n),
        "long-local": lambda n: header(b"To", b"a" * n + b"@b.example"),
        "long-domain": lambda n: header(b"To", b"a@" + b"b." * n + b"example"),
        "quoted-local": lambda n: header(b"To", b'"' + b"a b" * n + b'"@c.example'),
        "idna-long": lambda n: header(b"To", b"a@" + "č".encode() * n + b".example"),
        "idna-many": lambda n: header(b"To", "a@čaša.example, ".encode() * n),
        "idna-broken": lambda n: header(b"To", b"a@xn--" + b"9" * n + b".example"),
        "idna-dots": lambda n: header(b"To", "a@b\u3002\uff0e\uff61c".encode() * n),
        "combining": lambda n: header(b"To", b"a" + "\u0301\u0323".encode() * n + b"@b.example"),
        "mailto": lambda n: header(b"To", b"mailto:" * n + b"a@b.example"),
        "display-of-addresses": lambda n: header(b"From", b'"boss@bank.example" <' * n + b"a@b.example>"),
        "control-characters": lambda n: header(b"From", b"a\x01@b\x02.example, " * n),
        "many-in-every-field": lambda n: mail(
            b"x", *(name + b": " + b"a@b.example, " * n for name in (b"To", b"Cc", b"Bcc", b"Reply-To", b"Sender"))
        ),
    },
)

register(
    "dates",
    MAIL,
    {
        "long": lambda n: header(b"Date", b"Mon, " * n),
        "digits": lambda n: header(b"Date", b"9" * n),
        "huge-year": lambda n: header(b"Date", b"Mon, 02 Mar " + b"9" * min(n, 150) + b" 10:00:00 +0000"),
        "year-zero": lambda n: header(b"Date", b"Mon, 02 Mar 0000 10:00:00 +0000") + b"x" * n,
        "year-one-behind": lambda n: header(b"Date", b"Mon, 01 Jan 0001 00:00:00 +2359") + b"x" * n,
        "year-9999-ahead": lambda n: header(b"Date", b"Fri, 31 Dec 9999 23:59:59 -2359") + b"x" * n,
        "huge-zone": lambda n: header(b"Date", b"Mon, 02 Mar 2026 10:00:00 +" + b"9" * min(n, 140)),
        "zone-minus-zero": lambda n: header(b"Date", b"Mon, 02 Mar 2026 10:00:00 -0000") + b"x" * n,
        "hour-99": lambda n: header(b"Date", b"Mon, 32 Foo 2026 99:99:99 +9999") + b"x" * n,
        "unicode-digits": lambda n: header(b"Date", "Mon, ٠٢ Mar ²026 10:00:00 +0000".encode()) + b"x" * n,
        "nul-inside": lambda n: header(b"Date", b"Mon, 02\0 Mar 2026 10:00:00") + b"x" * n,
        "colons": lambda n: header(b"Date", b"2 Mar 2026 " + b":" * 150) + b"x" * n,
        "minus-signs": lambda n: header(b"Date", b"-" * 199) + b"x" * n,
        "empty": lambda n: header(b"Date", b"") + b"x" * n,
    },
)

_UU_LINE = b"#86)C\n"
register(
    "transfer",
    MAIL,
    {
        "base64-between-junk": lambda n: encoded(b"!A" * n + b"!", b"base64"),
        "base64-junk-only": lambda n: encoded(b"!" * n + b"A", b"base64"),
        "base64-padding": lambda n: encoded(b"=" * n, b"base64"),
        "base64-padding-between": lambda n: encoded(b"QQ==" * n, b"base64"),
        "base64-one-byte-lines": lambda n: encoded(b"Q\n" * n, b"base64"),
        "base64-odd": lambda n: encoded(b"A" * (4 * n + 1), b"base64"),
        "base64-eight-bit": lambda n: encoded(b"\xffQ" * n + b"A", b"base64"),
        "base64-nuls": lambda n: encoded(b"\0Q" * n + b"A", b"base64"),
        "base64-junk-in-attachment": lambda n: encoded(b"!A" * n + b"!", b"base64", b"image/png; name=a.png"),
        "base64-of-html": lambda n: encoded(base64.encodebytes(b"<p>x" * n), b"base64", b"text/html"),
        "base64-of-base64": lambda n: encoded(base64.encodebytes(base64.encodebytes(b"x" * n)), b"base64"),
        "base64-no-lines": lambda n: encoded(base64.b64encode(b"word " * n), b"base64"),
        "quoted-equals": lambda n: encoded(b"=" * n, b"quoted-printable"),
        "quoted-soft-breaks": lambda n: encoded(b"=\r\n" * n, b"quoted-printable"),
        "quoted-broken": lambda n: encoded(b"=ZZ=4=" * n, b"quoted-printable"),
        "quoted-nuls": lambda n: encoded(b"=00" * n, b"quoted-printable"),
        "quoted-spaces": lambda n: encoded(b"a" + b" " * n + b"\r\n", b"quoted-printable"),
        "quoted-of-html": lambda n: encoded(
            quopri.encodestring(b"<p class='a'>\xc4\x8d" * n), b"quoted-printable", b"text/html"
        ),
        "uu": lambda n: encoded(b"begin 644 a\n" + _UU_LINE * n + b"end\n", b"x-uuencode"),
        "uu-without-begin": lambda n: encoded(_UU_LINE * n, b"x-uuencode"),
        "uu-junk": lambda n: encoded(b"begin 644 a\n" + b"~~~~\n" * n, b"x-uuencode"),
        "uu-one-line": lambda n: encoded(b"begin 644 a\n" + b"M" * n, b"x-uuencode"),
        "uu-many-begins": lambda n: encoded(b"begin 644 a\n" * n, b"x-uuencode"),
        "unknown": lambda n: encoded(b"x" * n, b"x-unheard-of"),
        "encoding-name-endless": lambda n: encoded(b"x", b"base64" * n),
        "binary": lambda n: encoded(bytes(range(256)) * n, b"binary"),
        "contradiction": lambda n: mail(
            b"QQ==" * n, b"Content-Transfer-Encoding: 7bit", b"Content-Transfer-Encoding: base64"
        ),
    },
)

_CHARSETS = (
    *("utf-7", "utf-16", "utf-16le", "utf-32", "gb18030", "gb2312", "big5", "hz-gb-2312", "iso-2022-jp", "iso-2022-kr"),
    *("shift_jis", "euc-jp", "euc-kr", "koi8-r", "windows-1258", "utf-8-sig", "unicode-escape", "raw-unicode-escape"),
    *("punycode", "idna", "zlib", "bz2", "rot13", "uu", "undefined", "mbcs", "x-unknown", "../../etc/passwd", ""),
)
_AWKWARD = b"+AGE-~{<:\x1b$B\x81\xff\\u00e9\\ud800%%\x00 "
register(
    "charsets",
    MAIL,
    {
        f"as-{charset or 'empty'}": lambda n, charset=charset: mail(  # type: ignore[misc]
            _AWKWARD * n, b"Content-Type: text/plain; charset=" + charset.encode()
        )
        for charset in _CHARSETS
    },
)
register(
    "charsets",
    MAIL,
    {
        "shifts-without-text": lambda n: mail(b"\x1b$B\x1b(B" * n, b"Content-Type: text/plain; charset=iso-2022-jp"),
        "utf-7-unclosed": lambda n: mail(b"+" + b"A" * n, b"Content-Type: text/plain; charset=utf-7"),
        "lone-surrogates": lambda n: mail(b"\xed\xa0\x80" * n, b"Content-Type: text/plain; charset=utf-8"),
        "overlong": lambda n: mail(b"\xc0\xaf\xe0\x80\xaf" * n, b"Content-Type: text/plain; charset=utf-8"),
        "cut-utf8": lambda n: mail(b"\xf0\x9f\x98" * n, b"Content-Type: text/plain; charset=utf-8"),
        "marks-of-order": lambda n: mail(b"\xff\xfe\xfe\xff" * n, b"Content-Type: text/plain; charset=utf-16"),
        "meta-lies": lambda n: mail(b"<meta charset=utf-16>" + b"<p>x" * n, b"Content-Type: text/html"),
        "meta-many": lambda n: mail(b"<meta charset=x>" * n, b"Content-Type: text/html"),
        "meta-open": lambda n: mail(b"<meta " * n, b"Content-Type: text/html"),
        "one-long-line": lambda n: mail(b"x" * n, b"Content-Type: text/plain; charset=utf-8"),
        "one-long-word-cjk": lambda n: mail("邮".encode() * n, b"Content-Type: text/plain; charset=utf-8"),
        "zero-width": lambda n: mail("\u200b\u200d\ufeff".encode() * n, b"Content-Type: text/plain; charset=utf-8"),
        "emoji-joined": lambda n: mail("👩\u200d".encode() * n, b"Content-Type: text/plain; charset=utf-8"),
        "line-separators": lambda n: mail(
            "a\u2028\u2029\x85\x0b\x0c".encode() * n, b"Content-Type: text/plain; charset=utf-8"
        ),
    },
)


def _named(name: bytes) -> bytes:
    return mixed(part(b"x", b"application/octet-stream", b'Content-Disposition: attachment; filename="' + name + b'"'))


register(
    "attachments",
    MAIL,
    {
        "name-endless": lambda n: _named(b"a" * n + b".pdf"),
        "name-of-dots": lambda n: _named(b"." * n),
        "name-of-slashes": lambda n: _named(b"../" * n + b"etc/passwd"),
        "name-of-backslashes": lambda n: _named(b"..\\\\" * n),
        "name-with-nul": lambda n: _named(b"a\0.exe" * n),
        "name-reversed": lambda n: _named("\u202efdp.exe".encode() * n),
        "name-of-controls": lambda n: _named(b"\x01\x1b" * n),
        "name-reserved": lambda n: _named(b"con" + b".x" * n),
        "name-many-extensions": lambda n: _named(b".a" * n),
        "name-in-pieces": lambda n: mixed(
            part(
                b"x",
                b"application/pdf",
                b"Content-Disposition: attachment" + b"".join(b"; filename*%d=a" % k for k in range(n)),
            )
        ),
        "ids-endless": lambda n: mixed(part(b"x", b"image/png", b"Content-ID: <" + b"a" * n + b">")),
        "ids-open": lambda n: mixed(part(b"x", b"image/png", b"Content-ID: " + b"<" * n)),
        "one-large": lambda n: mixed(
            part(base64.encodebytes(b"x" * n), b"application/zip; name=a.zip", b"Content-Transfer-Encoding: base64")
        ),
        "same-many-times": lambda n: mixed(part(b"y" * 2_000, b"application/pdf; name=a.pdf") * n),
        "overlapping": lambda n: mixed(
            *(part(b"y" * n + b"%d" % k, b"application/pdf; name=a.pdf") for k in range(50))
        ),
        "tnef": lambda n: mixed(part(b"\x78\x9f\x3e\x22" + b"\xff" * n, b"application/ms-tnef; name=winmail.dat")),
        "text-as-attachment": lambda n: mixed(
            part(b"x\n" * n, b"text/plain; charset=x-none", b"Content-Disposition: attachment; filename=a.txt")
        ),
    },
)

register(
    "calendars",
    MAIL,
    {
        "events": lambda n: mixed(part(b"BEGIN:VEVENT\r\nEND:VEVENT\r\n" * n, b"text/calendar; method=REQUEST")),
        "folds": lambda n: mixed(part(b"SUMMARY:a\r\n " * n, b"text/calendar; method=REQUEST")),
        "one-line": lambda n: mixed(part(b"SUMMARY:" + b"x" * n, b"text/calendar")),
        "method-endless": lambda n: mixed(part(b"BEGIN:VCALENDAR", b"text/calendar; method=" + b"A" * n)),
        "many": lambda n: mixed(part(b"BEGIN:VCALENDAR", b"text/calendar") * n),
        "rules": lambda n: mixed(part(b"RRULE:FREQ=SECONDLY;COUNT=999999999\r\n" * n, b"application/ics; name=a.ics")),
        "binary": lambda n: mixed(part(b"\0\xff" * n, b"text/calendar; charset=utf-16")),
    },
)

_ENCLOSED = b"Content-Type: message/rfc822\r\n\r\n"
register(
    "enclosed",
    MAIL,
    {
        "nested": lambda n: _ENCLOSED * n + mail(b"Hello"),
        "nested-in-multiparts": lambda n: mixed(part(_ENCLOSED * n + mail(b"Hello"), b"message/rfc822")),
        "many": lambda n: mixed(part(mail(b"Hello"), b"message/rfc822") * n),
        "many-html": lambda n: mixed(part(mail(b"<p>x", b"Content-Type: text/html"), b"message/rfc822") * n),
        "nines-within": lambda n: mixed(
            part(mail(b"&#" + b"9" * n + b";", b"Content-Type: text/html"), b"message/rfc822")
        ),
        "base64-within": lambda n: mixed(
            part(base64.encodebytes(mail(b"x\n" * n)), b"message/rfc822", b"Content-Transfer-Encoding: base64")
        ),
        "junk-within": lambda n: mixed(part(b"\xff\0" * n, b"message/rfc822")),
        "delivery-status": lambda n: mixed(
            part(b"Final-Recipient: rfc822; a@b\r\n\r\n" * n, b"message/delivery-status")
        ),
        "headers-only": lambda n: mixed(part(b"X-A: b\r\n" * n, b"text/rfc822-headers")),
        "external-body": lambda n: mixed(part(b"x", b"message/external-body; access-type=URL; URL=" + b"a" * n)),
        "global": lambda n: mixed(part(mail("č".encode() * n), b"message/global")),
        "digest": lambda n: mixed(b"--B\r\n\r\nSubject: x\r\n\r\ny\r\n" * n, kind=b"digest"),
    },
)
