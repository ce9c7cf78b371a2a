"""Many messages at once: batched while all goes well, alone where something fails; every id gets an answer.

A part that fails is asked for again by itself, parts that were too many at once again together. A batch that fails as a
whole is tried once more, then taken apart: one message that breaks every answer it is in takes no neighbour along.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from postroom.domain.errors import PostroomError, Retryable
from postroom.gmail import batch, instruments
from postroom.gmail.errors import Gone, LoginNeeded, NotGmail, PermissionMissing, Throttled, Unavailable, Unreachable
from postroom.gmail.ports import Lane
from postroom.gmail.quota import MINUTE_S, Method, QuotaProfile
from postroom.gmail.refusals import Answer, Asked, error_of
from postroom.gmail.resources import Message
from postroom.gmail.transport import Call, Json, Reading, Transport, read_as, read_json

KIND_BATCH = 20
"""Parts run at once, so wider batches lose parts to the limit on requests in flight."""
ATTEMPTS = 5
_PATIENCE = 3
"""More attempts for what was only too many at once: it says nothing against the message."""
_WHOLE_TRIES = 2
_FIRST_BACK_OFF_S = 0.5
_LONGEST_BACK_OFF_S = 30.0
_CONCERNS_THE_ACCOUNT = (LoginNeeded, NotGmail, PermissionMissing)


@dataclass(frozen=True, slots=True)
class Got:
    message: Message

    @property
    def id(self) -> str:
        return self.message.id


@dataclass(frozen=True, slots=True)
class Missing:
    """It is no longer in the mailbox."""

    id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be had, after every attempt that made sense."""

    id: str
    error: PostroomError


Fetched: TypeAlias = Got | Missing | Failed
_Result: TypeAlias = Message | PostroomError


def batch_size_for(profile: QuotaProfile | None) -> int:
    """As wide as is kind, but never more than a second of the allowance: parts run at once and are charged at once."""
    if profile is None:
        return KIND_BATCH
    a_second = int(profile.units_per_minute / MINUTE_S // profile.cost(Method.MESSAGES_GET))
    return max(1, min(KIND_BATCH, a_second))


@dataclass(frozen=True)
class Fetcher:
    """Gets messages by id through one transport."""

    transport: Transport
    call_for: Callable[[str], Call]
    make: Callable[[Json], Message]
    lane: Lane
    batch_size: int
    attempts: int = ATTEMPTS
    dice: random.Random = field(default_factory=random.Random)

    async def fetch(self, ids: Iterable[str]) -> tuple[Fetched, ...]:
        """One answer for each different id, in the order given."""
        wanted = list(dict.fromkeys(ids))
        size = max(1, min(self.batch_size, batch.MOST_PARTS))
        groups = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        results: dict[str, Fetched] = {}
        await self._settle_all(groups, 1, results)
        return tuple(results[each] for each in wanted)

    async def _settle_all(self, groups: Sequence[list[str]], attempt: int, results: dict[str, Fetched]) -> None:
        if len(groups) == 1:
            await self._settle(groups[0], attempt, results)
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in groups:
                    tasks.create_task(self._settle(group, attempt, results))
        except BaseExceptionGroup as group:
            ours, others = group.split(PostroomError)
            if ours is None or others is not None:
                raise
            raise _first_of(ours) from None

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
        return self.attempts + _PATIENCE if isinstance(error, Throttled) else self.attempts

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
            call, self.lane, lambda answer: Reading(self._message(answer, call.asked, message_id))
        )

    async def _get_batch(self, ids: list[str]) -> dict[str, _Result]:
        calls = [self.call_for(message_id) for message_id in ids]
        whole = Call(
            Asked(Method.MESSAGES_GET, f"{len(ids)} messages"),
            "POST",
            batch.PATH,
            sum(call.units for call in calls),
            body=batch.question([call.target for call in calls]),
            content_type=batch.CONTENT_TYPE,
            name="batch",
        )
        return await self.transport.send(whole, self.lane, lambda answer: self._read_batch(answer, ids, calls))

    def _read_batch(self, answer: Answer, ids: list[str], calls: list[Call]) -> Reading[dict[str, _Result]]:
        parts = batch.answers(answer, len(ids))
        results = {
            message_id: self._read_part(part, call.asked, message_id)
            for message_id, call, part in zip(ids, calls, parts, strict=True)
        }
        found = results.values()
        instruments.record_parts(Method.MESSAGES_GET, found)
        throttled = next((each for each in found if isinstance(each, Throttled)), None)
        return Reading(results, throttled, any(isinstance(each, LoginNeeded) for each in found))

    def _read_part(self, part: Answer | None, asked: Asked, message_id: str) -> _Result:
        if part is None:
            return Unavailable(f"Gmail's answer to a batch lacks {asked.what}")
        if not part.is_success:
            return error_of(part, asked, self.transport.clock.now())
        try:
            return self._message(part, asked, message_id)
        except PostroomError as error:
            return error

    def _message(self, answer: Answer, asked: Asked, message_id: str) -> Message:
        message = read_as(self.make, read_json(answer, asked), asked)
        if message.id != message_id:
            raise Unavailable(f"Gmail answered with another message than {asked.what}")
        return message

    async def _back_off(self, errors: Iterable[_Result], attempt: int) -> None:
        """What Gmail asked for, or growing and uneven pauses; the limiter holds all other calls as far as needed."""
        told = [error.retry_after for error in errors if isinstance(error, Retryable) and error.retry_after]
        pause = min(_FIRST_BACK_OFF_S * 2 ** (attempt - 1), _LONGEST_BACK_OFF_S) * self.dice.uniform(0.5, 1.0)
        asked_for = max((wait.total_seconds() for wait in told), default=0.0)
        await self.transport.clock.sleep(max(pause, min(asked_for, _LONGEST_BACK_OFF_S)))


def _regrouped(again: Mapping[str, _Result], asked: Sequence[str], attempt: int) -> list[list[str]]:
    """Who is asked for together next time. Where the rate or the network is to blame, no message is: those stay
    together, and the pace goes on to mean the same. The others go alone, unless only the whole has failed so far."""
    together = [each for each, error in again.items() if isinstance(error, Throttled | Unreachable)]
    suspects = [each for each in again if each not in set(together)]
    failed_as_one = len(suspects) == len(asked) and len({id(error) for error in again.values()}) == 1
    if failed_as_one and attempt < _WHOLE_TRIES:
        return [suspects]
    return ([together] if together else []) + [[each] for each in suspects]


def _final(message_id: str, result: _Result) -> Fetched:
    match result:
        case Message():
            return Got(result)
        case Gone():
            return Missing(message_id)
        case LoginNeeded() | NotGmail() | PermissionMissing():
            raise result
        case _:
            return Failed(message_id, result)


def _first_of(errors: BaseExceptionGroup[PostroomError]) -> PostroomError:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
