"""The batch endpoint: many calls in one request, each with its own answer, charge and failure."""

from __future__ import annotations

from http import HTTPStatus

from postroom.gmail.sim.errors import ApiError, invalid
from postroom.gmail.sim.faults import refuse_at_once, spoiled
from postroom.gmail.sim.gateway import Gateway
from postroom.gmail.sim.http import Reply, Request
from postroom.gmail.sim.multipart import Section, section, sections

MOST_PARTS = 100
_BOUNDARY = "batch_postroom_sim"


def run_batch(gateway: Gateway, request: Request) -> Reply:
    parts = sections(request.body, request.headers.get("content-type", ""))
    if len(parts) > MOST_PARTS:
        raise invalid(f"The batch request has {len(parts)} calls, which exceeds the maximum of {MOST_PARTS}.")
    gateway.meter.tally.batches += 1
    answers = [_answer(part, _one(gateway, request, part, number)) for number, part in enumerate(parts)]
    body = b"".join(answers) + f"--{_BOUNDARY}--\r\n".encode()
    return Reply(200, body, content_type=f"multipart/mixed; boundary={_BOUNDARY}")


def _one(gateway: Gateway, outer: Request, part: Section, number: int) -> Reply:
    try:
        call = gateway.admit(_inner(outer, part))
        fault = gateway.trouble_for(call, in_batch=True).fault
        gateway.meter.check_batch_part(number)
        refuse_at_once(fault)
        return spoiled(gateway.carry_out(call, fault), fault)
    except ApiError as error:
        return gateway.refuse(error)


def _inner(outer: Request, part: Section) -> Request:
    """The request inside a part; it may bring its own credentials, else those of the batch count."""
    line, _, rest = part.body.lstrip(b"\r\n").partition(b"\n")
    words = line.decode("latin-1").split()
    if len(words) < 2:
        raise invalid("Failed to parse batch request, error: a part has no request line.")
    path, _, query_string = words[1].partition("?")
    inner = section(rest)
    headers = {"authorization": outer.headers.get("authorization", "")} | inner.headers
    return Request(words[0].upper(), path, query_string, headers, inner.body)


def _answer(part: Section, reply: Reply) -> bytes:
    content_id = part.headers.get("content-id", "").strip("<>")
    lines = [f"--{_BOUNDARY}", "Content-Type: application/http"]
    if content_id:
        lines.append(f"Content-ID: <response-{content_id}>")
    lines += ["", f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    if reply.body:
        lines.append(f"Content-Type: {reply.content_type}")
    lines.append(f"Content-Length: {len(reply.body)}")
    lines += [f"{name}: {value}" for name, value in reply.headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + reply.body + b"\r\n"
