"""Counting the values of a body before it is parsed, and turns for those who send many."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.roles import Role
from postroom.switchboard.request_limits import (
    BodyTooLarge,
    RequestLimiter,
    RequestSlots,
    TooManyRequests,
    ValueCounter,
    limits_by_role,
)

pytestmark = pytest.mark.req("HW-3")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def values_in(value: Any) -> int:
    match value:
        case dict():
            return 1 + sum(values_in(each) for each in value.values())
        case list():
            return 1 + sum(values_in(each) for each in value)
        case _:
            return 1


def counted(body: bytes, size: int) -> int:
    counter = ValueCounter(10**9)
    for at in range(0, len(body), size):
        counter.feed(body[at : at + size])
    return counter.values


@settings(max_examples=60, deadline=None)
@given(JSON, st.integers(1, 7))
def test_values_are_never_counted_too_few_however_the_body_is_cut(value: Any, size: int) -> None:
    body = json.dumps(value).encode()
    whole = counted(body, len(body))
    assert whole == counted(body, size)
    assert values_in(value) - 1 <= whole <= 3 * len(body)


def test_the_bytes_that_were_counted_are_not_kept() -> None:
    counter, piece_bytes = ValueCounter(10**9), 1 << 16
    tracemalloc.start()
    try:
        for _ in range(128):
            counter.feed(bytes(piece_bytes))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 32 * piece_bytes


def test_commas_and_brackets_within_text_are_not_values() -> None:
    text = json.dumps({"text": 'a,[{"\\",' * 10_000}).encode()
    assert counted(text, 4_096) == counted(text, len(text)) == 3


@pytest.mark.parametrize("body", [b"[" + b"{}," * 50_000, b'["",' * 50_000, b"[" * 50_000, b"1," * 50_000])
def test_a_body_of_many_small_values_is_refused(body: bytes) -> None:
    with pytest.raises(BodyTooLarge, match="values"):
        ValueCounter(10_000).feed(body)


def test_a_body_in_pieces_is_counted_from_its_first_piece_on() -> None:
    counter = ValueCounter(10_000)
    counter.feed(b"[" + b"1," * 9_000)
    with pytest.raises(BodyTooLarge, match="values"):
        counter.feed(b"1," * 1_001)


def test_signs_within_text_are_no_reason_to_refuse_a_body() -> None:
    counter = ValueCounter(10_000)
    for piece in (b'["', b",[{" * 20_000, b'", "', b",[{" * 20_000, b'"]'):
        counter.feed(piece)
    assert counter.values == 4


def test_unfinished_strings_cost_no_more_than_others() -> None:
    ValueCounter(10_000).feed(b'"' + b'\\"' * 2_000_000)


async def receive_all(intake: RequestLimiter, role: Role, body: bytes) -> int:
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)] or [b""]
    last = len(pieces) - 1
    messages = iter({"type": "http.request", "body": piece, "more_body": n < last} for n, piece in enumerate(pieces))

    async def receive() -> Any:
        return next(messages)

    async with intake.body("token", role, receive) as guarded:
        return sum([len((await guarded())["body"]) for _ in pieces])


def call(tool: str, size: int, *, name_first: bool = True) -> bytes:
    arguments = {"raw": "A" * size}
    params = {"name": tool, "arguments": arguments} if name_first else {"arguments": arguments, "name": tool}
    return json.dumps({"method": "tools/call", "params": params}).encode()


@pytest.fixture
def intake() -> RequestLimiter:
    return RequestLimiter(limits_by_role(8_000_000, 262_144), lambda name: name == "archive.store")


@pytest.mark.parametrize(
    ("role", "tool", "size", "is_taken"),
    [
        (Role.AGENT, "archive_search", 200_000, True),
        (Role.AGENT, "archive_search", 300_000, False),
        (Role.AGENT, "archive.store", 300_000, False),
        (Role.DASHBOARD, "backfill.create", 1_000_000, True),
        (Role.DASHBOARD, "backfill.create", 2_000_000, False),
        (Role.CONNECTOR, "backfill.progress", 4_000_000, True),
        (Role.CONNECTOR, "backfill.progress", 5_000_000, False),
        (Role.CONNECTOR, "archive.store", 7_900_000, True),
        (Role.CONNECTOR, "archive.store", 8_100_000, False),
    ],
)
@pytest.mark.parametrize("name_first", [True, False])
async def test_how_much_is_taken_depends_on_role_and_tool(
    intake: RequestLimiter, role: Role, tool: str, size: int, *, is_taken: bool, name_first: bool
) -> None:
    body = call(tool, size, name_first=name_first)
    if is_taken:
        assert await receive_all(intake, role, body) == len(body)
        return
    with pytest.raises(BodyTooLarge, match="larger than"):
        await receive_all(intake, role, body)


async def test_a_sender_has_a_few_requests_at_once_and_too_many_are_refused() -> None:
    turns, running, most = RequestSlots(), 0, 0
    over = asyncio.Event()

    async def one() -> None:
        nonlocal running, most
        async with turns.taken("token", 4):
            running += 1
            most = max(most, running)
            await over.wait()
            running -= 1

    tasks = [asyncio.create_task(one()) for _ in range(36)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await one()
    async with turns.taken("another", 4):
        over.set()
    await asyncio.gather(*tasks)
    assert most == 4
