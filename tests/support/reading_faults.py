"""What goes wrong when mail and files are read: mail, address books and rule files made to be expensive, what reading
them costs, and a reader that fails for chosen messages.

As a program it prints the processor time of each file at two sizes: `python -m tests.support.reading_faults`.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from postroom.dashboard.display.differences import difference
from postroom.domain.errors import PostroomError
from postroom.mail.address_books import read_csv, read_vcards
from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.reading import mail
from postroom.reading.limited import Failure, ReadingFailed, ReadingLimits
from postroom.triage.rules.files import RulesFileFormat, parse_text
from postroom.web.sources import parse_sources


def break_reading(
    monkeypatch: pytest.MonkeyPatch, is_hostile: Callable[[bytes], bool], error: type[Exception] = ValueError
) -> None:
    """Until `monkeypatch.undo()`, reading such a message raises this error wherever it is read."""

    def parse(raw: bytes) -> ParsedMail:
        if is_hostile(raw):
            raise error
        return parse_mail(raw)

    class Child:
        def run(
            self, task: str, header: Mapping[str, Any], body: bytes = b"", limits: ReadingLimits | None = None
        ) -> tuple[dict[str, Any], bytes]:
            if is_hostile(body):
                raise ReadingFailed(Failure.ERROR, f"{error.__name__} in mail.py")
            return mail.answer(header, body)

    monkeypatch.setattr(mail, "parse_mail", parse)
    monkeypatch.setattr(mail, "shared_reader", Child)


Make = Callable[[int], bytes]


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


Shape = tuple[Callable[[int], object], int]
"""Reads the shape at this size; the size at which it takes some time."""


def _vcard(head: bytes, part: bytes, tail: bytes = b"\nEND:VCARD\n") -> Callable[[int], object]:
    return lambda size: read_vcards(b"BEGIN:VCARD\n" + head + part * size + tail)


def _csv(head: bytes, part: bytes, rows: bytes = b"") -> Callable[[int], object]:
    return lambda size: read_csv(head + part * size + b"\n" + rows * size)


def _toml(head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return lambda size: parse_sources(head + part * size + tail)


def _rules(format: RulesFileFormat, head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return lambda size: parse_text(head + part * size + tail, format)


def _yaml(head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return _rules(RulesFileFormat.YAML, head, part, tail)


def _json(head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return _rules(RulesFileFormat.JSON, head, part, tail)


SHAPES: dict[str, Shape] = {
    "vcard: soft breaks without end": (_vcard(b"FN;ENCODING=QUOTED-PRINTABLE:", b"a=\n"), 20_000),
    "vcard: folded lines without end": (_vcard(b"FN:", b"a\n "), 100_000),
    "vcard: open quotes": (_vcard(b"FN", b';"'), 100_000),
    "vcard: parameters": (_vcard(b"FN", b';x="y"', b":name\nEND:VCARD\n"), 50_000),
    "vcard: a long name of a property": (_vcard(b"", b"a-"), 200_000),
    "vcard: groups": (_vcard(b"", b"a."), 200_000),
    "vcard: addresses of one card": (_vcard(b"", b"EMAIL:a@b.example\n"), 10_000),
    "vcard: one long address": (_vcard(b"EMAIL:", b'"<(,'), 20_000),
    "vcard: parts of a name": (_vcard(b"N:", b"\\;;"), 50_000),
    "vcard: cards that begin only": (_vcard(b"", b"BEGIN:VCARD\n"), 20_000),
    "csv: as many columns as rows": (_csv(b"email", b",email", b"a@b.example\n"), 2_000),
    "csv: cells of one row": (_csv(b"email\n", b"a,"), 100_000),
    "csv: open quotes": (_csv(b'email\n"', b'""'), 40_000),
    "csv: values of one cell": (_csv(b"email\n", b"a@b.example ::: "), 5_000),
    "csv: delimiters of the header": (_csv(b"email", b";,\t"), 50_000),
    "toml: nested arrays": (_toml("a = ", "["), 300),
    "toml: dotted keys": (_toml("a", ".a", " = 1"), 2_000),
    "toml: a long table name": (_toml("[a", ".a", "]"), 2_000),
    "toml: tables": (_toml("", "[[source]]\n"), 5_000),
    "toml: a long text": (_toml('a = "', "\\n", '"'), 50_000),
    "toml: a long number": (_toml("a = ", "9"), 50_000),
    "toml: a text of many lines": (_toml('a = """', '"\n', '"""'), 50_000),
    "yaml: nested lists": (_yaml("rules: ", "["), 1_000),
    "yaml: nested maps": (_yaml("rules: ", "{a: "), 1_000),
    "yaml: a number of base sixty": (_yaml("rules: 1", ":10"), 20_000),
    "yaml: a fraction of base sixty": (_yaml("rules: 1", ":10", ".5"), 20_000),
    "yaml: a long number": (_yaml("rules: ", "9"), 20_000),
    "yaml: aliases": (_yaml("rules: [&a [1], ", "*a, ", "]"), 3_000),
    "yaml: rules": (_yaml("rules:\n", "- {name: a, condition: {}, actions: []}\n"), 500),
    "yaml: merged maps": (_yaml("a: &a {x: 1}\nrules: {<<: [", "*a, ", "]}"), 3_000),
    "json: nested lists": (_json('{"rules": ', "["), 50_000),
    "json: a long number": (_json('{"rules": ', "9"), 100_000),
    "json: keys": (_json('{"rules": [{"a": 1', ', "a": 1', "}]}"), 50_000),
    "texts: lines that all differ": (lambda size: difference("a\n" * size, "b\n" * size), 5_000),
    "texts: the same lines in another order": (
        lambda size: difference("\n".join(map(str, range(size))), "\n".join(map(str, range(size, 0, -1)))),
        5_000,
    ),
    "texts: two lines in turn": (lambda size: difference("a\nb\n" * size, "b\na\n" * size), 2_500),
    "texts: pairs that repeat": (
        lambda size: difference(
            "".join(f"{n}\n{n}\n" for n in range(size)), "".join(f"{n}\nx\n{n}\n" for n in range(size))
        ),
        2_500,
    ),
    "texts: one long line": (lambda size: difference("a " * size, "b " * size), 500_000),
}


def _seconds(read: Callable[[int], object], size: int) -> float:
    begun = time.process_time()
    with suppress(PostroomError):
        read(size)
    return time.process_time() - begun


def measure() -> dict[str, tuple[float, float]]:
    return {name: (_seconds(read, size), _seconds(read, 2 * size)) for name, (read, size) in SHAPES.items()}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
    print(json.dumps(measure()))
