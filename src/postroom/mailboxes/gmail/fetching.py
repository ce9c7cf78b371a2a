"""Batch requests: many messages fetched at once, and calls about single messages that are wanted at the same moment.

`BatchFetcher` gives every id a result: the message, missing, or failed with a reason. A failed part is retried by
itself, throttled parts together. A batch that fails as a whole is tried once more and then taken apart, so that one
message that breaks its batch does not take others with it. `CallGatherer` retries nothing: its callers do.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, TypeAlias, TypeVar

from postroom.domain.clock import EQUAL_JITTER, Backoff
from postroom.domain.errors import PostroomError, Retryable, first_error
from postroom.mailboxes.errors import (
    Gone,
    LoginNeeded,
    MailboxThrottled,
    MailboxUnavailable,
    MailboxUnreachable,
    NotGmail,
    PermissionMissing,
)
from postroom.mailboxes.gmail import transport as instruments
from postroom.mailboxes.gmail.error_mapping import CallDescription, GmailAnswer, error_of, not_gmail
from postroom.mailboxes.gmail.methods import MINUTE_S, GmailMethod, QuotaProfile
from postroom.mailboxes.gmail.resources import GmailMessage
from postroom.mailboxes.gmail.transport import GmailCall, Json, ParsedAnswer, Transport, read_as, read_json
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Failed, Got, MissingMessage

BATCH_PATH = "/batch/gmail/v1"
MOST_PARTS = 50
"""The documented maximum is 100, but the service has refused more than 50."""
_BOUNDARY = "postroom_batch"
BATCH_CONTENT_TYPE = f"multipart/mixed; boundary={_BOUNDARY}"
_PARAMETER = re.compile(r'boundary\s*=\s*(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_CONTENT_ID = re.compile(rb"^content-id:[ \t]*<?response-(?:[^<>\r\n]*[^0-9<>\r\n])?([0-9]{1,4})>?\s*$", re.I | re.M)
_PART = re.compile(
    rb"(?:\r?\n)+ (?P<outer> (?:[^\r\n]+\r?\n)+ ) (?:\r?\n)+"
    rb"HTTP/[0-9.]+[ ](?P<status>[0-9]{3}) [^\r\n]* \r?\n (?P<head> (?:[^\r\n]+\r?\n)* ) \r?\n",
    re.VERBOSE,
)


def batch_body(calls: Sequence[GmailCall]) -> bytes:
    """The body that makes these calls; each is known by its place."""
    parts = [
        f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n".encode("ascii")
        + _request(call)
        for number, call in enumerate(calls)
    ]
    return b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode("ascii")


def _request(call: GmailCall) -> bytes:
    line = f"{call.verb} {call.target} HTTP/1.1\r\nAccept: application/json\r\n".encode("ascii")
    if call.body is None:
        return line + b"\r\n\r\n"
    about = f"Content-Type: {call.content_type}\r\nContent-Length: {len(call.body)}\r\n\r\n".encode("ascii")
    return line + about + call.body + b"\r\n"


def batch_call(calls: Sequence[GmailCall]) -> GmailCall:
    asked = calls[0].asked
    return GmailCall(
        CallDescription(asked.method, f"{len(calls)} messages", any(call.asked.changes for call in calls)),
        "POST",
        BATCH_PATH,
        sum(call.units for call in calls),
        body=batch_body(calls),
        content_type=BATCH_CONTENT_TYPE,
        name="batch",
    )


def batch_answers(answer: GmailAnswer, count: int) -> list[GmailAnswer | None]:
    """What came back for each place; None where nothing whole did."""
    content_type = answer.headers.get("content-type", "")
    boundary = _PARAMETER.search(content_type)
    if boundary is None or not content_type.lower().startswith("multipart/"):
        raise not_gmail(f"a batch was answered with {content_type[:60] or 'no content type'}")
    found: list[GmailAnswer | None] = [None] * count
    for piece in _pieces(answer.body, (boundary[1] or boundary[2]).encode("latin-1")):
        number, part = _part(piece)
        if part is not None and number is not None and number < count:
            found[number] = part
    return found


def _pieces(body: bytes, boundary: bytes) -> list[bytes]:
    """What stands between the delimiter lines. The last piece follows the closing one, or was cut off.

    A delimiter counts at the start of a line only: within a line, a message could hold a copy of it.
    """
    body = b"\n" + body
    found = list(re.finditer(rb"\n--" + re.escape(boundary), body))  # several times as fast as bytes.split
    pieces = (body[here.end() : after.start()] for here, after in pairwise(found))
    return [piece for piece in pieces if piece.startswith((b"\r", b"\n"))]


def _part(piece: bytes) -> tuple[int | None, GmailAnswer | None]:
    found = _PART.match(piece)
    content_id = _CONTENT_ID.search(found["outer"]) if found else None
    if found is None or content_id is None:
        return None, None
    part = GmailAnswer(int(found["status"]), _headers(found["head"]), piece[found.end() :])
    return int(content_id[1]), _whole(part)


def _whole(part: GmailAnswer) -> GmailAnswer | None:
    """A part that is shorter than it says was cut off on its way."""
    announced = part.headers.get("content-length", "")
    is_number = announced.isdecimal() and len(announced) < 19
    return None if is_number and len(part.body) < int(announced) else part


def _headers(head: bytes) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in head.decode("latin-1").splitlines())
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


KIND_BATCH = 20
"""Parts run at once, so wider batches lose parts to the limit on requests in flight."""
ATTEMPTS = 5
_EXTRA_ATTEMPTS_THROTTLED = 3
"""More attempts for a throttled message: throttling says nothing about the message."""
_WHOLE_TRIES = 2
_BACKOFF = Backoff(0.5, 30.0, jitter=EQUAL_JITTER, longest_asked_s=30.0)
_CONCERNS_THE_ACCOUNT = (LoginNeeded, NotGmail, PermissionMissing)


Fetched: TypeAlias = Got[GmailMessage] | MissingMessage | Failed
_Result: TypeAlias = GmailMessage | PostroomError


def batch_size_for(profile: QuotaProfile | None) -> int:
    """At most `KIND_BATCH`, and at most a second's worth of the allowance: the parts run, and are charged, at once."""
    if profile is None:
        return KIND_BATCH
    a_second = int(profile.units_per_minute / MINUTE_S // profile.cost(GmailMethod.MESSAGES_GET))
    return max(1, min(KIND_BATCH, a_second))


@dataclass(frozen=True)
class BatchFetcher:
    """Gets messages by id through one transport."""

    transport: Transport
    call_for: Callable[[str], GmailCall]
    make: Callable[[Json], GmailMessage]
    lane: PriorityLane
    batch_size: int
    attempts: int = ATTEMPTS
    dice: random.Random = field(default_factory=random.Random)

    async def fetch(self, ids: Iterable[str]) -> tuple[Fetched, ...]:
        """One answer for each different id, in the order given."""
        wanted = list(dict.fromkeys(ids))
        size = max(1, min(self.batch_size, MOST_PARTS))
        groups = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        results: dict[str, Fetched] = {}
        await self._settle_all(groups, 1, results)
        return tuple(results[each] for each in wanted)

    async def _settle_all(self, groups: Sequence[list[str]], attempt: int, results: dict[str, Fetched]) -> None:
        if len(groups) == 1:
            await self._settle(groups[0], attempt, results)
            return
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for group in groups:
                    tasks.create_task(self._settle(group, attempt, results))

    async def _settle(self, ids: list[str], attempt: int, results: dict[str, Fetched]) -> None:
        """Ask for these, keep what is final, and ask again for the rest."""
        again: dict[str, _Result] = {}
        for message_id, result in (await self._ask(ids)).items():
            if isinstance(result, Retryable) and attempt < self._attempts_for(result):
                again[message_id] = result
            else:
                results[message_id] = _final(message_id, result)
        if again:
            await self._back_off(again.values(), attempt)
            await self._settle_all(_regrouped(again, ids, attempt), attempt + 1, results)

    def _attempts_for(self, error: Retryable) -> int:
        return self.attempts + _EXTRA_ATTEMPTS_THROTTLED if isinstance(error, MailboxThrottled) else self.attempts

    async def _ask(self, ids: list[str]) -> dict[str, _Result]:
        try:
            if len(ids) == 1:
                return {ids[0]: await self._get_one(ids[0])}
            return await self._get_batch(ids)
        except _CONCERNS_THE_ACCOUNT:
            raise
        except PostroomError as error:
            return dict.fromkeys(ids, error)

    async def _get_one(self, message_id: str) -> _Result:
        call = self.call_for(message_id)
        return await self.transport.send(
            call, self.lane, lambda answer: ParsedAnswer(self._message(answer, call.asked, message_id))
        )

    async def _get_batch(self, ids: list[str]) -> dict[str, _Result]:
        calls = [self.call_for(message_id) for message_id in ids]
        return await self.transport.send(
            batch_call(calls), self.lane, lambda answer: self._read_batch(answer, ids, calls)
        )

    def _read_batch(
        self, answer: GmailAnswer, ids: list[str], calls: list[GmailCall]
    ) -> ParsedAnswer[dict[str, _Result]]:
        parts = batch_answers(answer, len(ids))
        results = {
            message_id: self._read_part(part, call.asked, message_id)
            for message_id, call, part in zip(ids, calls, parts, strict=True)
        }
        found = results.values()
        instruments.record_parts(GmailMethod.MESSAGES_GET, found)
        throttled = next((each for each in found if isinstance(each, MailboxThrottled)), None)
        return ParsedAnswer(results, throttled, any(isinstance(each, LoginNeeded) for each in found))

    def _read_part(self, part: GmailAnswer | None, asked: CallDescription, message_id: str) -> _Result:
        return _read_part(part, asked, lambda answer: self._message(answer, asked, message_id), self.transport)

    def _message(self, answer: GmailAnswer, asked: CallDescription, message_id: str) -> GmailMessage:
        message = read_as(self.make, read_json(answer, asked), asked)
        if message.id != message_id:
            raise MailboxUnavailable(f"Gmail answered with another message than {asked.what}")
        return message

    async def _back_off(self, errors: Iterable[_Result], attempt: int) -> None:
        """Wait as long as Gmail asked for, else with exponential backoff and jitter."""
        asked = [error.retry_after for error in errors if isinstance(error, Retryable) and error.retry_after]
        await self.transport.clock.sleep(_BACKOFF.delay_s(attempt, max(asked, default=None), random=self.dice))


def _regrouped(again: Mapping[str, _Result], asked: Sequence[str], attempt: int) -> list[list[str]]:
    """The groups to ask for next. Throttled and unreachable messages stay together, since no message is to blame. The
    others are asked for one by one, unless so far only the batch as a whole has failed."""
    together = [each for each, error in again.items() if isinstance(error, MailboxThrottled | MailboxUnreachable)]
    suspects = [each for each in again if each not in set(together)]
    failed_as_one = len(suspects) == len(asked) and len({id(error) for error in again.values()}) == 1
    if failed_as_one and attempt < _WHOLE_TRIES:
        return [suspects]
    return ([together] if together else []) + [[each] for each in suspects]


def _final(message_id: str, result: _Result) -> Fetched:
    match result:
        case GmailMessage():
            return Got(result)
        case Gone():
            return MissingMessage(message_id)
        case LoginNeeded() | NotGmail() | PermissionMissing():
            raise result
        case _:
            return Failed(message_id, result)


T = TypeVar("T")


def _read_part(
    part: GmailAnswer | None, asked: CallDescription, read: Callable[[GmailAnswer], T], transport: Transport
) -> T | PostroomError:
    if part is None:
        lacking = f"Gmail's answer to a batch lacks {asked.what}"
        return MailboxUnavailable(lacking, may_have_happened=asked.changes)
    if not part.is_success:
        return error_of(part, asked, transport.clock.now())
    try:
        return read(part)
    except PostroomError as error:
        return error


_LONGEST_GATHERING_S = 0.05


@dataclass(slots=True, eq=False)
class _WantedCall(Generic[T]):
    call: GmailCall
    read: Callable[[GmailAnswer], T]
    answer: asyncio.Future[T]
    sending: asyncio.Task[None] | None = None

    def end(self, result: T | PostroomError) -> None:
        if self.answer.done():
            return
        if isinstance(result, PostroomError):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class CallGatherer:
    """Calls that are wanted in one turn of the event loop, or for a short while as another request of their lane is
    under way, share a batch request, and each gets its own answer. A call that is alone goes by itself.

    Only for calls that may be made twice: if one caller gives up, the batch is sent again without its call.
    """

    def __init__(self, transport: Transport, batch_size: int) -> None:
        self._transport = transport
        self._size = max(1, min(batch_size, MOST_PARTS))
        self._wanted: dict[PriorityLane, list[_WantedCall[Any]]] = {}
        self._sending: dict[asyncio.Task[None], PriorityLane] = {}

    async def send(self, call: GmailCall, lane: PriorityLane, read: Callable[[GmailAnswer], T]) -> T:
        loop = asyncio.get_running_loop()
        mine: _WantedCall[T] = _WantedCall(call, read, loop.create_future())
        wanted = self._wanted.setdefault(lane, [])
        if not wanted:
            loop.call_soon(self._start, lane)
            loop.call_later(_LONGEST_GATHERING_S, self._start_now, lane)
        wanted.append(mine)
        try:
            return await mine.answer
        except asyncio.CancelledError:
            if mine.sending is not None:
                mine.sending.cancel()
            raise

    def _start(self, lane: PriorityLane) -> None:
        """What waits goes when nothing of its lane is under way."""
        if lane not in self._sending.values():
            self._start_now(lane)

    def _start_now(self, lane: PriorityLane) -> None:
        wanted = [each for each in self._wanted.pop(lane, ()) if not each.answer.done()]
        for first in range(0, len(wanted), self._size):
            group = wanted[first : first + self._size]
            task = asyncio.get_running_loop().create_task(self._settle(group, lane))
            self._sending[task] = lane
            task.add_done_callback(self._sent)
            for each in group:
                each.sending = task

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._start(self._sending.pop(task))

    async def _settle(self, group: Sequence[_WantedCall[Any]], lane: PriorityLane) -> None:
        while wanted := [each for each in group if not each.answer.done()]:
            try:
                await self._answer(wanted, lane)
            except asyncio.CancelledError:
                if not any(each.answer.cancelled() for each in wanted):
                    raise
            except BaseException as error:  # whatever it is, no caller waits for ever
                for each in wanted:
                    if not each.answer.done():
                        each.answer.set_exception(error)

    async def _answer(self, wanted: Sequence[_WantedCall[Any]], lane: PriorityLane) -> None:
        if len(wanted) == 1:
            await self._answer_one(wanted[0], lane)
            return
        try:
            results = await self._transport.send(
                batch_call([each.call for each in wanted]), lane, lambda answer: self._read(answer, wanted)
            )
        except (*_CONCERNS_THE_ACCOUNT, MailboxThrottled, MailboxUnreachable):
            raise
        except PostroomError:  # perhaps because of one call
            for each in wanted:
                await self._answer_one(each, lane)
            return
        for each, result in zip(wanted, results, strict=True):
            each.end(result)

    async def _answer_one(self, wanted: _WantedCall[Any], lane: PriorityLane) -> None:
        try:
            value = await self._transport.send(wanted.call, lane, lambda answer: ParsedAnswer(wanted.read(answer)))
        except PostroomError as error:
            wanted.end(error)
        else:
            wanted.end(value)

    def _read(self, answer: GmailAnswer, wanted: Sequence[_WantedCall[Any]]) -> ParsedAnswer[list[Any]]:
        parts = batch_answers(answer, len(wanted))
        found = [
            _read_part(part, each.call.asked, each.read, self._transport)
            for each, part in zip(wanted, parts, strict=True)
        ]
        for method in dict.fromkeys(each.call.asked.method for each in wanted):
            of_it = (result for each, result in zip(wanted, found, strict=True) if each.call.asked.method is method)
            instruments.record_parts(method, of_it)
        throttled = next((each for each in found if isinstance(each, MailboxThrottled)), None)
        return ParsedAnswer(found, throttled, any(isinstance(each, LoginNeeded) for each in found))
