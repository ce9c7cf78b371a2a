"""Several calls in one request: the multipart body that asks, and the one that answers. Pure.

Answers are matched by their content id, never by their order; a call without a readable answer has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from postroom.gmail.refusals import Answer, not_gmail

PATH = "/batch/gmail/v1"
MOST_PARTS = 50
"""The documented maximum is 100, but the service has refused more than 50."""
_BOUNDARY = "postroom_batch"
CONTENT_TYPE = f"multipart/mixed; boundary={_BOUNDARY}"
_PARAMETER = re.compile(r'boundary\s*=\s*(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_CONTENT_ID = re.compile(rb"^content-id:[ \t]*<?response-(?:[^<>\r\n]*[^0-9<>\r\n])?([0-9]{1,4})>?\s*$", re.I | re.M)
_PART = re.compile(
    rb"(?:\r?\n)+ (?P<outer> (?:[^\r\n]+\r?\n)+ ) (?:\r?\n)+"
    rb"HTTP/[0-9.]+[ ](?P<status>[0-9]{3}) [^\r\n]* \r?\n (?P<head> (?:[^\r\n]+\r?\n)* ) \r?\n",
    re.VERBOSE,
)


def question(targets: Sequence[str]) -> bytes:
    """The body that asks for these paths; each is known by its place."""
    parts = [
        f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n"
        f"GET {target} HTTP/1.1\r\nAccept: application/json\r\n\r\n\r\n"
        for number, target in enumerate(targets)
    ]
    return ("".join(parts) + f"--{_BOUNDARY}--\r\n").encode("ascii")


def answers(answer: Answer, count: int) -> list[Answer | None]:
    """What came back for each place; None where nothing whole did."""
    content_type = answer.headers.get("content-type", "")
    boundary = _PARAMETER.search(content_type)
    if boundary is None or not content_type.lower().startswith("multipart/"):
        raise not_gmail(f"a batch was answered with {content_type[:60] or 'no content type'}")
    found: list[Answer | None] = [None] * count
    for piece in _pieces(answer.body, (boundary[1] or boundary[2]).encode("latin-1")):
        number, part = _part(piece)
        if part is not None and number is not None and number < count:
            found[number] = part
    return found


def _pieces(body: bytes, boundary: bytes) -> list[bytes]:
    """What stands between the delimiter lines. The last piece follows the closing one, or was cut off.

    A delimiter counts at the start of a line only: within a line, a message could hold a copy of it.
    """
    pieces = (b"\n" + body).split(b"\n--" + boundary)[1:-1]
    return [piece for piece in pieces if piece.startswith((b"\r", b"\n"))]


def _part(piece: bytes) -> tuple[int | None, Answer | None]:
    found = _PART.match(piece)
    content_id = _CONTENT_ID.search(found["outer"]) if found else None
    if found is None or content_id is None:
        return None, None
    part = Answer(int(found["status"]), _headers(found["head"]), piece[found.end() :])
    return int(content_id[1]), _whole(part)


def _whole(part: Answer) -> Answer | None:
    """A part that is shorter than it says was cut off on its way."""
    announced = part.headers.get("content-length", "")
    is_number = announced.isdecimal() and len(announced) < 19
    return None if is_number and len(part.body) < int(announced) else part


def _headers(head: bytes) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in head.decode("latin-1").splitlines())
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}
