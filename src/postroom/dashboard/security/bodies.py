"""The body of a request, read once within bounds, and handed on to whoever asks for it next."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from postroom.domain.errors import BadInput, Retryable
from postroom.switchboard.intake import ValueCounter

MOST_BYTES = 1_048_576
STRANGERS_BYTES = 16_384
"""A passphrase and what a form has beside it."""
MOST_VALUES = 50_000
_PATIENCE_S = 30.0


class TooLarge(BadInput):
    """The request is too large."""

    def __init__(self, most: int) -> None:
        super().__init__("body", f"is larger than {most:,} bytes, the most that is taken here")


async def read_body(receive: Receive, most: int) -> bytes:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await _read(receive, most)
    except TimeoutError:
        raise Retryable("The request did not arrive within its time.") from None


def check_values(body: bytes) -> None:
    """JSON of many small values costs far more memory than its size tells."""
    if body.lstrip()[:1] in (b"{", b"["):
        ValueCounter(MOST_VALUES).feed(body)


async def _read(receive: Receive, most: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Retryable("The request broke off.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > most:
            raise TooLarge(most)
        if not message.get("more_body", False):
            return b"".join(chunks)


def again(body: bytes, receive: Receive) -> Receive:
    """The body as a first message, then whatever comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving
