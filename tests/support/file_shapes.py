"""Hostile address books, rule files and texts, each of a shape that grows, with what reads it. As a program it prints
the processor time of each at two sizes: `python -m tests.support.file_shapes`."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from contextlib import suppress

from postroom.dashboard.showing.differences import difference
from postroom.domain.errors import PostroomError
from postroom.mail.contact_csv import read_csv
from postroom.mail.vcards import read_vcards
from postroom.triage.rules.files import FileFormat, parse_text
from postroom.websources.config import parse_sources

Shape = tuple[Callable[[int], object], int]
"""Reads the shape at this size; the size at which it takes some time."""


def _vcard(head: bytes, part: bytes, tail: bytes = b"\nEND:VCARD\n") -> Callable[[int], object]:
    return lambda size: read_vcards(b"BEGIN:VCARD\n" + head + part * size + tail)


def _csv(head: bytes, part: bytes, rows: bytes = b"") -> Callable[[int], object]:
    return lambda size: read_csv(head + part * size + b"\n" + rows * size)


def _toml(head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return lambda size: parse_sources(head + part * size + tail)


def _rules(format: FileFormat, head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return lambda size: parse_text(head + part * size + tail, format)


def _yaml(head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return _rules(FileFormat.YAML, head, part, tail)


def _json(head: str, part: str, tail: str = "") -> Callable[[int], object]:
    return _rules(FileFormat.JSON, head, part, tail)


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
