"""Hostile files and texts that a person hands in: mail to import, address books, rules, settings, searches."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable

from tests.hostile.corpus import register
from tests.hostile.kinds_mail import mail

_FROM = b"From a@b.example Mon Mar 02 10:00:00 +0000 2026\n"
_TAKEOUT = b"From 1234567890123456789@xxx Mon Mar 02 10:00:00 +0000 2026\n"

register(
    "mbox",
    ("mbox",),
    {
        "many-empty": lambda n: (_FROM + b"\n\n") * n,
        "from-lines-only": lambda n: _FROM * n,
        "from-within": lambda n: _FROM + b"\n" + b"From within\n" * n,
        "from-after-blank": lambda n: _FROM + b"\n" + b"\n\nFrom nobody\n" * n,
        "from-after-blank-timed": lambda n: _FROM + b"\n" + b"\n\nFrom nobody 10:00\n" * n,
        "from-line-endless": lambda n: b"From " + b"a" * n,
        "from-line-endless-later": lambda n: _FROM + b"\n\n" + b"From " + b"a" * n,
        "quoted": lambda n: _FROM + b"\n" + b">From me\n" * n,
        "quoted-deep": lambda n: _FROM + b"\n" + b">" * n + b"From me\n",
        "one-line": lambda n: _FROM + b"\n" + b"x" * n,
        "newlines": lambda n: b"\n" * n + _FROM,
        "returns": lambda n: _FROM + b"\r" * n,
        "date-huge": lambda n: b"From a Mon Mar 02 10:00:00 +9999 9999\n" + b"x" * n,
        "not-one": lambda n: b"Subject: x\n\n" + b"x" * n,
        "nuls": lambda n: _FROM + b"\0" * n,
        "cut-off": lambda n: (_FROM + mail(b"x\n" * 10)) * n + b"\n\nFro",
        "broken-messages": lambda n: (_FROM + b"&#" + b"9" * 5_000 + b";\n\n") * n,
    },
)


def _labels(value: bytes) -> bytes:
    return _TAKEOUT + b"X-GM-THRID: 123\nX-Gmail-Labels: " + value + b"\nSubject: x\n\ny\n"


register(
    "takeout",
    ("takeout",),
    {
        "labels-many": lambda n: _labels(b"a," * n),
        "labels-folded": lambda n: _labels(b"a,\n " * n),
        "labels-encoded": lambda n: _labels(b"=?utf-8?q?a?=," * n),
        "labels-quoted": lambda n: _labels(b'"' * n),
        "labels-header-many": lambda n: _TAKEOUT + b"X-Gmail-Labels: a\n" * n + b"\ny",
        "thread-digits": lambda n: _TAKEOUT + b"X-GM-THRID: " + b"9" * n + b"\n\ny",
        "id-digits": lambda n: b"From " + b"9" * min(n, 900) + b"@xxx Mon Mar 02 10:00:00 +0000 2026\n\n" + b"y" * n,
        "headers-without-end": lambda n: _TAKEOUT + b"X-A: b\n" * n,
    },
)


def _zip(content: bytes, name: str = "Takeout/Mail/All.mbox") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(name, content)
    return out.getvalue()


def _tar(content: bytes, name: str = "Takeout/Mail/All.mbox") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as package:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        package.addfile(member, io.BytesIO(content))
    return out.getvalue()


register(
    "packages",
    ("package",),
    {
        "zip-of-newlines": lambda n: _zip(_FROM + b"\n" * n),
        "zip-of-one-line": lambda n: _zip(_FROM + b"\n" + b"x" * n),
        "zip-of-empty-mails": lambda n: _zip((_FROM + b"\n\n") * (n // 50)),
        "zip-cut-off": lambda n: _zip(_FROM + b"\n" * n)[:-30],
        "zip-damaged": lambda n: _zip(_FROM + b"\nabc" * n).replace(b"\xcb", b"\xcc"),
        "zip-climbing": lambda n: _zip(_FROM + b"\n" * n, "../../../etc/x.mbox"),
        "zip-long-name": lambda n: _zip(_FROM, "a" * min(n, 60_000) + ".mbox"),
        "tar-of-newlines": lambda n: _tar(_FROM + b"\n" * n),
        "tar-of-empty-mails": lambda n: _tar((_FROM + b"\n\n") * (n // 50)),
        "tar-cut-off": lambda n: _tar(_FROM + b"\nabc" * n)[:-30],
        "tar-climbing": lambda n: _tar(_FROM + b"\n" * n, "../../../etc/x.mbox"),
        "tar-is-a-bomb": lambda n: gzip.compress(b"\0" * n),
        "nothing": lambda n: b"\0" * 20,
    },
    n=1_000_000,
)

_CARD = b"BEGIN:VCARD\r\nVERSION:3.0\r\nFN:A\r\n%bEND:VCARD\r\n"
register(
    "vcards",
    ("vcards",),
    {
        "many": lambda n: (_CARD % b"EMAIL:a@b.example\r\n") * n,
        "many-addresses": lambda n: _CARD % (b"EMAIL:a@b.example\r\n" * n),
        "begins": lambda n: b"BEGIN:VCARD\r\n" * n,
        "ends": lambda n: b"END:VCARD\r\n" * n,
        "nested": lambda n: b"BEGIN:VCARD\r\n" * n + b"END:VCARD\r\n" * n,
        "folds": lambda n: _CARD % (b"NOTE:a\r\n " * n + b"\r\n"),
        "folded-to-nothing": lambda n: _CARD % (b"FN:\r\n " + b"\r\n " * n + b"x\r\n"),
        "quoted-printable-open": lambda n: _CARD % (b"FN;ENCODING=QUOTED-PRINTABLE:" + b"=\r\n" * n),
        "quoted-printable-lines": lambda n: _CARD % (b"FN;ENCODING=QUOTED-PRINTABLE:" + b"a=\r\n" * n),
        "quoted-printable-charset": lambda n: _CARD % (b"FN;ENCODING=QUOTED-PRINTABLE;CHARSET=utf-7:" + b"=41" * n),
        "semicolons": lambda n: _CARD % (b"N:" + b";" * n + b"\r\n"),
        "backslashes": lambda n: _CARD % (b"FN:" + b"\\" * n + b"\r\n"),
        "escaped-semicolons": lambda n: _CARD % (b"N:" + b"\\;" * n + b"\r\n"),
        "parameters": lambda n: _CARD % (b"EMAIL" + b";TYPE=x" * n + b":a@b.example\r\n"),
        "quoted-parameters": lambda n: _CARD % (b'EMAIL;X="' + b":;" * n + b'":a@b.example\r\n'),
        "photo": lambda n: _CARD % (b"PHOTO;ENCODING=b:" + b"A" * n + b"\r\n"),
        "name-endless": lambda n: _CARD % (b"FN:" + b"a" * n + b"\r\n"),
        "address-endless": lambda n: _CARD % (b"EMAIL:" + b"a" * n + b"@b.example\r\n"),
        "property-name-endless": lambda n: _CARD % (b"X" * n + b":y\r\n"),
        "groups": lambda n: _CARD % (b"item1." * n + b"EMAIL:a@b.example\r\n"),
        "no-colons": lambda n: b"BEGIN VCARD\r\n" * n,
        "utf-16": lambda n: (_CARD % b"EMAIL:a@b.example\r\n" * n).decode().encode("utf-16"),
        "eight-bit": lambda n: _CARD % (b"FN:\xff\xfe\x80" * n + b"\r\n"),
        "nuls": lambda n: _CARD % (b"FN:\0" * n + b"\r\n"),
    },
)

register(
    "csv",
    ("csv",),
    {
        "rows": lambda n: b"name,email\n" + b"a,b@c.example\n" * n,
        "empty-rows": lambda n: b"name,email\n" + b"\n" * n,
        "columns": lambda n: b"email," * n + b"\n" + b"a@b.example," * n,
        "columns-distinct": lambda n: b"email," + b"".join(b"c%d," % k for k in range(n)) + b"\nx",
        "open-quote": lambda n: b'name,email\n"' + b"x" * n,
        "open-quotes": lambda n: b'name,email\n"x' * n,
        "doubled-quotes": lambda n: b'name,email\n"' + b'""' * n,
        "cell-endless": lambda n: b"name,email\n" + b"x" * n,
        "commas": lambda n: b"name,email\n" + b"," * n,
        "delimiters-contest": lambda n: b";,\t" * n,
        "returns": lambda n: b"name,email\r" + b"a,b@c.example\r" * n,
        "nuls": lambda n: b"name,email\n" + b"\0,\0\n" * n,
        "several": lambda n: b"name,email\na," + b"a@b.example ::: " * n,
        "eight-bit": lambda n: b"name,email\n" + b"\xff\xfe,\x80\n" * n,
        "utf-16": lambda n: ("name,email\n" + "a,b@c.example\n" * n).encode("utf-16"),
        "header-endless": lambda n: b"email" + b"x" * n,
        "formulas": lambda n: b"name,email\n" + b"=cmd|' /C calc'!A0,a@b.example\n" * n,
    },
)

_RULE = b'[[rules]]\nname = "a"\nactions = ["archive"]\ncondition = '
_CONDITIONS: dict[str, Callable[[int], object]] = {
    "words": lambda n: {"subject_contains": ["word"] * n},
    "senders": lambda n: {"from_address": ["a@b.example"] * n},
    "unknown-keys": lambda n: {f"k{k}": "x" for k in range(n)},
    "pattern-endless": lambda n: {"subject_matches": "a" * n},
    "pattern-repeats": lambda n: {"subject_matches": "(a*)*" * n},
    "pattern-counted": lambda n: {"subject_matches": "(a{1000}){1000}" + "b" * n},
    "pattern-alternatives": lambda n: {"subject_matches": "|".join(["a"] * n)},
    "pattern-classes": lambda n: {"subject_matches": "[a-z]" * n},
    "pattern-open": lambda n: {"subject_matches": "(" * n},
    "pattern-unicode": lambda n: {"subject_matches": r"\p{L}" * n},
    "pattern-backreference": lambda n: {"subject_matches": r"(a)\1" * n},
    "header-names": lambda n: {"header": {"name": "X" * n, "contains": "y"}},
    "wrong-type": lambda n: {"subject_contains": n},
    "null": lambda n: {"subject_contains": None, "x": "y" * n},
    "numbers": lambda n: {"larger_than": int("9" * min(n, 4_000))},
}


def _rules(condition: object) -> bytes:
    rule = {"name": "a", "actions": ["archive"], "condition": condition}
    return json.dumps({"rules": [rule]}).encode()


def _deep(n: int, opening: str = '{"not":', closing: str = "}") -> bytes:
    return (
        '{"rules":[{"name":"a","actions":["archive"],"condition":' + opening * n + "1" + closing * n + "}]}"
    ).encode()


register(
    "rules",
    ("rules_json",),
    {name: lambda n, make=make: _rules(make(n)) for name, make in _CONDITIONS.items()},  # type: ignore[misc]
)
register(
    "rules",
    ("rules_json",),
    {
        "nested-not": lambda n: _deep(n),
        "nested-all": lambda n: _deep(n, '{"all":[', "]}"),
        "many-rules": lambda n: json.dumps(
            {
                "rules": [
                    {"name": f"r{k}", "actions": ["archive"], "condition": {"subject_contains": "x"}} for k in range(n)
                ]
            }
        ).encode(),
        "many-actions": lambda n: json.dumps(
            {"rules": [{"name": "a", "actions": ["apply_label=x"] * n, "condition": {"subject_contains": "x"}}]}
        ).encode(),
        "keys-twice": lambda n: b'{"rules":[' + b'{"name":"a","name":"b"},' * n + b"{}]}",
        "brackets": lambda n: b"[" * n,
        "strings-open": lambda n: b'{"rules":"' + b"\\" * n,
        "numbers-endless": lambda n: b'{"rules":' + b"9" * n + b"}",
        "not-a-number": lambda n: b'{"rules":[NaN,Infinity,-Infinity,' + b"1e999," * n + b"1]}",
        "eight-bit": lambda n: b"\xff\xfe\x00" * n,
        "surrogates": lambda n: b'{"rules":[{"name":"' + b"\\ud800" * n + b'"}]}',
    },
)
register(
    "toml",
    ("rules_toml", "sources"),
    {
        "nested-tables": lambda n: b"[" + b"a." * n + b"a]\n",
        "nested-arrays": lambda n: b"a = " + b"[" * n,
        "inline-tables": lambda n: b"a = " + b"{b=" * n,
        "many-tables": lambda n: b"".join(b"[t%d]\n" % k for k in range(n)),
        "many-rules": lambda n: (_RULE + b'{subject_contains="x"}\n') * n,
        "dotted-keys": lambda n: b"a" + b".b" * n + b" = 1\n",
        "string-open": lambda n: b'a = """' + b"x" * n,
        "quotes": lambda n: b"a = " + b'"' * n,
        "backslashes": lambda n: b'a = "' + b"\\\\" * n + b'"\n',
        "numbers": lambda n: b"a = " + b"9" * n + b"\n",
        "dates": lambda n: b"a = 9999-99-99T99:99:99Z\n" * n,
        "comments": lambda n: b"# x\n" * n,
        "keys-long": lambda n: b"k" * n + b" = 1\n",
        "source-values": lambda n: b'[[source]]\nslug = "a"\nname = "' + b"x" * n + b'"\n',
        "eight-bit": lambda n: b"a = '\xff'\n" * n,
    },
)
register(
    "yaml",
    ("rules_yaml",),
    {
        "aliases": lambda n: b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (k, k) for k in range(n)),
        "laughs": lambda n: (
            b"l0: &l0 [lol]\n"
            + b"".join(b"l%d: &l%d [%s]\n" % (k, k, b",".join([b"*l%d" % (k - 1)] * 10)) for k in range(1, min(n, 30)))
            + b"rules: *l%d\n" % (min(n, 30) - 1)
        ),
        "nested": lambda n: b"[" * n,
        "nested-maps": lambda n: b"{a: " * n,
        "merge-keys": lambda n: b"a: &a {x: y}\nb: {" + b"<<: *a, " * n + b"}\n",
        "tags": lambda n: b"rules: !!python/object/apply:os.system [x]\n" + b"# y\n" * n,
        "documents": lambda n: b"---\na: b\n" * n,
        "block-scalars": lambda n: b"a: |\n" + b"  x\n" * n,
        "keys": lambda n: b"".join(b"k%d: v\n" % k for k in range(n)),
        "question-keys": lambda n: b"? " * n + b"a",
        "timestamps": lambda n: b"a: 9999-99-99\n" * n,
    },
)

register(
    "queries",
    ("query",),
    {
        "words": lambda n: b"word " * n,
        "open-parentheses": lambda n: b"(" * n,
        "parentheses": lambda n: b"(" * n + b"a" + b")" * n,
        "closing-parentheses": lambda n: b")" * n,
        "braces": lambda n: b"{" * n + b"a" + b"}" * n,
        "minus": lambda n: b"-" * n + b"a",
        "nots": lambda n: b"-(" * n + b"a" + b")" * n,
        "ors": lambda n: b"a OR " * n,
        "ands": lambda n: b"a AND " * n,
        "around": lambda n: b"a AROUND 5 " * n + b"b",
        "open-quotes": lambda n: b'"a ' * n,
        "quotes": lambda n: b'"' * n,
        "colons": lambda n: b"from" + b":" * n,
        "operators": lambda n: b"from:a to:b subject:c has:attachment " * n,
        "operators-unknown": lambda n: b"nosuch:a " * n,
        "dates": lambda n: b"after:9999/99/99 before:0/0/0 " * n,
        "dates-digits": lambda n: b"after:" + b"9" * n,
        "ages": lambda n: b"older_than:" + b"9" * n + b"d",
        "sizes": lambda n: b"larger:" + b"9" * n + b"m",
        "stars": lambda n: b"*" * n,
        "nuls": lambda n: b"a\0b " * n,
        "unicode-digits": lambda n: "after:²٣/٣/٣ ".encode() * n,
        "nested-operators": lambda n: b"from:(" * n,
        "word-endless": lambda n: b"a" * n,
    },
)

_POLICY = {"version": "1", "rules": []}
register(
    "settings",
    ("categories", "policy"),
    {
        "brackets": lambda n: b"[" * n,
        "many": lambda n: json.dumps(_POLICY | {"rules": [{"note": "x"}] * n}).encode(),
        "patterns": lambda n: json.dumps(
            _POLICY | {"rules": [{"note": "x", "treatment": 1, "condition": {"subject": ["(a*)*" * n]}}]}
        ).encode(),
        "toml-categories": lambda n: b'[[category]]\nname = "x"\n' * n,
        "toml-patterns": lambda n: b'[[category]]\nname = "x"\nquery = "' + b"(" * n + b'"\n',
        "wrong-types": lambda n: json.dumps({"version": n, "rules": "x" * n}).encode(),
    },
)
