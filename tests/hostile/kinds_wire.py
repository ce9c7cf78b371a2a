"""Hostile messages between programs: envelopes, tool calls, answers of Gmail, Discord and models, HTTP requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from tests.hostile.corpus import register

JSON_READERS = ("envelope", "tool", "discord", "gmail", "model", "client_secrets")

_JSON: dict[str, Callable[[int], bytes]] = {
    "brackets": lambda n: b"[" * n,
    "brackets-closed": lambda n: b"[" * n + b"]" * n,
    "objects": lambda n: b'{"a":' * n,
    "objects-closed": lambda n: b'{"a":' * n + b"1" + b"}" * n,
    "list-of-empty-objects": lambda n: b"[" + b"{}," * n + b"{}]",
    "list-of-lists": lambda n: b"[" + b"[]," * n + b"[]]",
    "object-of-many-keys": lambda n: b"{" + b"".join(b'"k%d":1,' % k for k in range(n)) + b'"z":1}',
    "keys-twice": lambda n: b"{" + b'"a":1,' * n + b'"a":2}',
    "key-endless": lambda n: b'{"' + b"k" * n + b'":1}',
    "text-endless": lambda n: b'{"type":"' + b"x" * n + b'"}',
    "text-open": lambda n: b'{"a":"' + b"x" * n,
    "escapes": lambda n: b'{"a":"' + b"\\u0041" * n + b'"}',
    "surrogates": lambda n: b'{"a":"' + b"\\ud800" * n + b'"}',
    "nuls-escaped": lambda n: b'{"type":"' + b"\\u0000" * n + b'"}',
    "number-endless": lambda n: b'{"type":' + b"9" * n + b"}",
    "number-exponent": lambda n: b'{"type":1e' + b"9" * n + b"}",
    "number-fraction": lambda n: b'{"type":0.' + b"9" * n + b"}",
    "number-negative": lambda n: b'{"type":-' + b"9" * n + b"}",
    "not-a-number": lambda n: b'{"type":[NaN,Infinity' + b",-Infinity" * n + b"]}",
    "null": lambda n: b"null" + b" " * n,
    "truth": lambda n: b"true" + b" " * n,
    "text-only": lambda n: b'"' + b"x" * n + b'"',
    "spaces": lambda n: b" " * n,
    "bom": lambda n: b"\xef\xbb\xbf{}" + b" " * n,
    "utf-16": lambda n: ("{}" + " " * n).encode("utf-16"),
    "eight-bit": lambda n: b'{"a":"' + b"\xff" * n + b'"}',
    "controls": lambda n: b'{"a":"' + b"\x01\n" * n + b'"}',
    "nothing": lambda n: b"",
    "html-instead": lambda n: b"<html>" * n,
    "commas": lambda n: b"[" + b"," * n,
    "colons": lambda n: b"{" + b":" * n,
}
register("json", JSON_READERS, _JSON)


def _of(**fields: object) -> bytes:
    return json.dumps(fields).encode()


register(
    "envelopes",
    ("envelope",),
    {
        "text-long": lambda n: _of(schema_version="ingest.v1", text="x" * n),
        "headers-many": lambda n: _of(schema_version="ingest.v1", headers={f"h{k}": "v" for k in range(n)}),
        "attachments-many": lambda n: _of(schema_version="ingest.v1", attachments=[{"filename": "a"}] * n),
        "raw-base64": lambda n: _of(schema_version="ingest.v1", raw={"base64": "A" * n}),
        "raw-not-base64": lambda n: _of(schema_version="ingest.v1", raw={"base64": "!" * n}),
        "raw-wrong-kind": lambda n: _of(schema_version="ingest.v1", raw=["x"] * n),
        "dates-odd": lambda n: _of(schema_version="ingest.v1", received_at="9" * n),
        "ids-odd": lambda n: _of(schema_version="ingest.v1", id="z" * n, trace_id=[1] * 10),
        "labels-many": lambda n: _of(schema_version="ingest.v1", labels=["x"] * n),
    },
)
register(
    "gmail",
    ("gmail",),
    {
        "message-raw": lambda n: _of(id="1", threadId="2", raw=base64.urlsafe_b64encode(b"x" * n).decode()),
        "message-raw-junk": lambda n: _of(id="1", threadId="2", raw="!" * n),
        "message-raw-number": lambda n: _of(id="1", threadId="2", raw=n),
        "message-labels": lambda n: _of(id="1", threadId="2", labelIds=["INBOX"] * n),
        "message-labels-text": lambda n: _of(id="1", threadId="2", labelIds="I" * n),
        "message-date": lambda n: _of(id="1", threadId="2", internalDate="9" * min(n, 4_000)),
        "message-date-negative": lambda n: _of(id="1", threadId="2", internalDate="-" + "9" * min(n, 4_000)),
        "message-date-unicode": lambda n: _of(id="1", threadId="2", internalDate="²" * min(n, 4_000)),
        "message-size": lambda n: _of(id="1", threadId="2", sizeEstimate="x" * n),
        "message-ids": lambda n: _of(id=["1"] * n, threadId=None),
        "parts-nested": lambda n: b'{"id":"1","threadId":"2","payload":' + b'{"parts":[' * n + b"{}" + b"]}" * n + b"}",
        "parts-many": lambda n: _of(id="1", threadId="2", payload={"parts": [{"partId": "1"}] * n}),
        "parts-wrong": lambda n: _of(id="1", threadId="2", payload={"parts": [1, None, "x"] * n}),
        "list": lambda n: _of(messages=[{"id": "1", "threadId": "2"}] * n, nextPageToken="x"),
        "list-wrong": lambda n: _of(messages=[None] * n),
        "list-estimate": lambda n: _of(messages=[], resultSizeEstimate="9" * n),
        "page-token": lambda n: _of(messages=[], nextPageToken="x" * n),
        "history": lambda n: _of(history=[{"id": "1", "messages": []}] * n, historyId="9"),
        "history-wrong": lambda n: _of(history=[{"messagesAdded": [{"message": None}]}] * n, historyId=9),
        "history-id": lambda n: _of(history=[], historyId="9" * n),
        "labels": lambda n: _of(labels=[{"id": "a", "name": "b"}] * n),
        "labels-wrong": lambda n: _of(labels=[{"id": None}] * n),
        "profile": lambda n: _of(emailAddress="x" * n, historyId=[]),
        "attachment": lambda n: _of(data="A" * (4 * n + 1), size=n),
    },
)

_BATCH = b"\r\n--B\r\nContent-ID: <response-%d>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}"
register(
    "batches",
    ("batch",),
    {
        "parts": lambda n: b"".join(_BATCH % k for k in range(n)) + b"\r\n--B--",
        "parts-same": lambda n: _BATCH % 0 * n + b"\r\n--B--",
        "part-numbers": lambda n: _BATCH.replace(b"%d", b"9" * min(n, 5_000)) + b"x" * n + b"\r\n--B--",
        "blank-lines": lambda n: b"\r\n--B" + b"\r\n" * n + b"\r\n--B--",
        "outer-headers": lambda n: b"\r\n--B\r\n" + b"X: y\r\n" * n + b"\r\n--B--",
        "outer-headers-and-blanks": lambda n: b"\r\n--B\r\n" + b"X: y\r\n\r\n" * n + b"\r\n--B--",
        "inner-headers": lambda n: _BATCH % 0 + b"X: y\r\n" * n + b"\r\n--B--",
        "status-line": lambda n: _BATCH.replace(b"OK", b"O" * n) % 0 + b"\r\n--B--",
        "delimiters": lambda n: b"\r\n--B" * n,
        "cut-off": lambda n: (_BATCH % 0 + b"x" * n)[:-5],
        "length-lies": lambda n: (_BATCH % 0).replace(b"{}", b"") + b"x" * n + b"\r\n--B--",
    },
)


def _call(name: str, **arguments: object) -> bytes:
    return json.dumps({"name": name, "arguments": json.dumps(arguments)}).encode()


_GOOD = {"confidence": 0.5, "reason": "x", "needs_approval": False}
register(
    "answers",
    ("model",),
    {
        "reason-endless": lambda n: _call("none", **_GOOD | {"reason": "x" * n}),
        "reason-unprintable": lambda n: _call("none", **_GOOD | {"reason": "\u202e\0\x1b" * (n % 600)}),
        "confidence-huge": lambda n: _call("none", **_GOOD | {"confidence": 10**400}),
        "confidence-text": lambda n: _call("none", **_GOOD | {"confidence": "1" * n}),
        "extra": lambda n: _call("none", **_GOOD | {f"k{k}": 1 for k in range(n)}),
        "tool-unknown": lambda n: _call("x" * n, **_GOOD),
        "tool-delete": lambda n: _call("delete", **_GOOD, x="y" * n),
        "label-endless": lambda n: _call("apply_label", **_GOOD, label="x" * n),
        "reply-endless": lambda n: _call("auto_reply", **_GOOD, body="x" * n),
        "reply-surrogates": lambda n: _call("auto_reply", **_GOOD, body="\ud800" * min(n, 3_000)),
        "forward-many": lambda n: _call("forward", **_GOOD, to=["a@b.example"] * n),
        "snooze-huge": lambda n: _call("snooze", **_GOOD, amount=10**30, unit="days"),
        "snooze-until": lambda n: _call("snooze", **_GOOD, until="9999-12-31T23:59:59-23:59"),
    },
)

register(
    "headers-of-answers",
    ("retry_after",),
    {
        "seconds": lambda n: b"9" * n,
        "date": lambda n: b"Mon, 02 Mar 2026 10:00:00 GMT" * n,
        "date-ends": lambda n: b"Fri, 31 Dec 9999 23:59:59 -2359",
        "text": lambda n: b"Retry after " * n,
        "text-date": lambda n: b"User-rate limit exceeded. Retry after 0001-01-01T00:00:00+23:59",
        "text-digits": lambda n: b"retry after " + b"9" * n + b"s",
        "unicode": lambda n: "²٣".encode() * n,
        "spaces": lambda n: b"retry after" + b" " * n,
    },
)

_SERVER = b"<incomingServer type='imap'><hostname>%b</hostname><port>993</port><socketType>SSL</socketType>"
register(
    "autoconfig",
    ("autoconfig",),
    {
        "elements-deep": lambda n: b"<clientConfig>" + b"<a>" * n,
        "elements-many": lambda n: b"<clientConfig>" + b"<a/>" * n + b"</clientConfig>",
        "servers-many": lambda n: b"<clientConfig><emailProvider>" + (_SERVER % b"x" + b"</incomingServer>") * n,
        "host-endless": lambda n: b"<clientConfig><emailProvider>" + _SERVER % (b"x." * n),
        "text-in-pieces": lambda n: b"<clientConfig><emailProvider>" + _SERVER % (b"x&#65;" * n),
        "entities": lambda n: b"<!DOCTYPE a [" + b"<!ENTITY a 'aaaaaaaa'>" * n + b"]><a>&a;</a>",
        "attributes-many": lambda n: b"<clientConfig " + b" ".join(b"a%d='1'" % k for k in range(n)) + b"/>",
        "encoding-unknown": lambda n: b"<?xml version='1.0' encoding='" + b"x" * n + b"'?><clientConfig/>",
        "utf-16": lambda n: ("<clientConfig>" + "<a/>" * n).encode("utf-16"),
    },
)
register(
    "dns",
    ("dns",),
    {
        "pointers-chained": lambda n: b"".join(b"\xc0%c" % (12 + k % 200) for k in range(n)),
        "labels-long": lambda n: (b"\x3f" + b"a" * 63) * n,
        "labels-forbidden": lambda n: b"\x80" * n,
        "records-many": lambda n: (b"\xc0\x0c\0\x21\0\1\0\0\0\0\0\7\0\0\0\0\0\0\0") * n,
        "length-lies": lambda n: b"\xc0\x0c\0\x21\0\1\0\0\0\0\xff\xff" + b"a" * n,
        "zeros": lambda n: b"\0" * n,
    },
)
