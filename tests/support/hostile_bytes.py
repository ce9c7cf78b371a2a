"""Mail that is made to cost as much as possible to read, by kind and size, and what reading it costs a process."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass

Make = Callable[[int], bytes]
_MIB = 1 << 20


def _filled(head: bytes, unit: bytes, size: int, tail: bytes = b"") -> bytes:
    room = max(0, size - len(head) - len(tail))
    return head + unit * (room // len(unit)) + tail


def _body(content_type: bytes, unit: bytes, encoding: bytes = b"8bit") -> Make:
    head = b"From: a@x.example\nContent-Type: %b\nContent-Transfer-Encoding: %b\n\n" % (content_type, encoding)
    return lambda size: _filled(head, unit, size)


def _headers(name: bytes, unit: bytes, line: int = 60_000) -> Make:
    """As many headers of this name as fill it, each of about `line` bytes."""

    def make(size: int) -> bytes:
        one = name + b": " + unit * (line // len(unit)) + b"\n"
        return _filled(b"Subject: x\n", one, size, b"\n\nbody")

    return make


def _nested(size: int) -> bytes:
    """Every part holds all that follows."""
    out = b""
    for depth in range(30):
        out += b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (depth, depth)
    return _filled(out, b"\n--b", size)


def _many_parts(header: bytes, body: bytes) -> Make:
    def make(size: int) -> bytes:
        head = b"Content-Type: multipart/mixed; boundary=b\n\n"
        return _filled(head, b"--b\n" + header + b"\n\n" + body + b"\n", size, b"--b--\n")

    return make


def _enclosing(size: int) -> bytes:
    inner = b"To: " + b",a@b.c" * 10_000 + b"\nContent-Type: text/html\n\n" + b"&lt<b>" * 20_000 + b"\n"
    return _many_parts(b"Content-Type: message/rfc822", inner)(size)


def _matryoshka(size: int) -> bytes:
    return _filled(b"", b"Content-Type: message/rfc822\n\n", size)


HOSTILE: dict[str, Make] = {
    "long reference": lambda size: b"Content-Type: text/html\n\n&#" + b"9" * size + b";",
    "damaged base64": _body(b"text/plain", b"!A", b"base64"),
    "damaged base64 file": _body(b"application/pdf", b"!A", b"base64"),
    "padded base64 file": _body(b"application/pdf", b"A=", b"base64"),
    "base64 file": _body(b"application/pdf", b"QUJD" * 19 + b"\r\n", b"base64"),
    "base64 text": _body(b"text/plain; charset=utf-8", b"8J+YgA==", b"base64"),
    "quoted-printable file": _body(b"application/pdf", b"=41", b"quoted-printable"),
    "quoted-printable breaks": _body(b"text/plain", b"=\n", b"quoted-printable"),
    "uuencode blank": _body(b"application/pdf", b"\nbegin 6 x\n" + b"\n" * 5_000, b"x-uuencode"),
    "uuencode short": lambda size: _filled(
        b"Content-Type: a/b\nContent-Transfer-Encoding: uuencode\n\nbegin 6 x\n", b"!\n", size
    ),
    "uuencode wide": lambda size: _filled(
        b"Content-Type: a/b\nContent-Transfer-Encoding: uuencode\n\nbegin 6 x\n", b"_\n", size
    ),
    "newlines": _body(b"text/plain", b"\n"),
    "emoji": _body(b"text/plain; charset=utf-8", "😀".encode()),
    "one emoji": lambda size: _filled(b"\n\xf0\x9f\x98\x80", b"a", size),
    "bad utf-8": _body(b"text/plain; charset=utf-8", b"\xff\xfe"),
    "bad utf-7": _body(b"text/html; charset=utf-7", b"+2AA-\xff"),
    "surrogates utf-7": lambda size: _filled(b"Content-Type: text/plain; charset=utf-7\n\n+", b"2ADYANgA", size),
    "bad utf-16": _body(b"text/plain; charset=utf-16", b"\x00\xd8"),
    "bad utf-32": _body(b"text/plain; charset=utf-32", b"\xff\xff\xff\xff"),
    "bad gb18030": _body(b"text/plain; charset=gb18030", b"\xff\x80"),
    "bad greek": _body(b"text/plain; charset=cp1253", b"\xaa\xe1"),
    "iso-2022": _body(b"text/plain; charset=iso-2022-jp", b"\x1b$B!!\x1b(B"),
    "nul": _body(b"text/plain", b"\0a"),
    "references": _body(b"text/html", b"&a"),
    "entities": _body(b"text/html", b"&lt"),
    "unknown entities": _body(b"text/html", b"&" + b"a" * 31),
    "comments": _body(b"text/html", b"<!--"),
    "styles": _body(b"text/html", b"<style "),
    "ended styles": _body(b"text/html", b"<style></style "),
    "tags": _body(b"text/html", b"<b>x"),
    "blocks": _body(b"text/html", b"<p>x"),
    "open tags": _body(b"text/html", b"<a "),
    "quotes": _body(b"text/html", b"<a \"'"),
    "one tag": lambda size: _filled(b"Content-Type: text/html\n\n<a ", b"x='", size),
    "spaces": _body(b"text/html", b" \t"),
    "no headers": lambda size: b"a\n" * (size // 2),
    "only colons": lambda size: b"a:\n" * (size // 3),
    "one header": lambda size: b"Subject: " + b"a" * size,
    "folded": lambda size: b"Subject: a" + b"\n b" * (size // 3),
    "encoded words": _headers(b"Subject", b"=?a?q?"),
    "good words": _headers(b"From", b"=?utf-8?q?a?= "),
    "words of names": _headers(b"From", b"=?a?q?,"),
    "commas": _headers(b"To", b","),
    "colons after an address": lambda size: _filled(b"To: " + b"a " * 10_000 + b"x@y ", b":", size),
    "addresses": _headers(b"Cc", b"a@b,"),
    "angles": _headers(b"To", b'<"'),
    "parentheses": _headers(b"To", b"("),
    "quoted": _headers(b"To", b'"\\'),
    "message ids": _headers(b"References", b"<a@b>"),
    "open ids": _headers(b"Message-ID", b"<a"),
    "parameters": _many_parts(b"Content-Type: a/b" + b";a*1=x" * 1_000, b"x"),
    "names": _many_parts(b"Content-Disposition: attachment; filename=" + b"=?a?q?" * 1_000, b"x"),
    "part headers": _many_parts(b"a: b\n" * 10_000, b"x"),
    "part non-headers": _many_parts(b"a\n" * 100_000, b"x"),
    "many parts": _many_parts(b"Content-Type: text/html", b"<p>x"),
    "many files": _many_parts(b"Content-Type: a/b\nContent-Transfer-Encoding: base64", b"QUJD"),
    "empty multiparts": _many_parts(b"Content-Type: multipart/mixed; boundary=c\n\n--c--", b""),
    "calendars": _many_parts(b"Content-Type: text/calendar", b"BEGIN:VCALENDAR\n" * 1_000),
    "nested": _nested,
    "false boundaries": lambda size: _filled(b"Content-Type: multipart/mixed; boundary=b\n\n", b"\n--bx", size),
    "dashes": lambda size: _filled(b"Content-Type: multipart/mixed; boundary=----x\n\n", b"-", size),
    "enclosed": _enclosing,
    "matryoshka": _matryoshka,
    "carriage returns": lambda size: b"Subject: x\rContent-Type: a/b\r\r" + b"a\r" * (size // 2),
    "dates": _headers(b"Date", b"1 "),
}


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    memory: int
    """By how many bytes the process grew at most."""


def cost_of(work: Callable[[], object]) -> Cost:
    """What this costs, in a process of its own that has everything imported already."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF)
            work()
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            os.write(writer, f"{cpu} {(after.ru_maxrss - before.ru_maxrss) * 1024}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read().split()
    os.waitpid(pid, 0)
    assert said, "the process died"
    return Cost(float(said[0]), int(said[1]))
