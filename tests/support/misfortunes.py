"""What befalls a running product, one at a time and by the dice: the faults that it promises to come through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tests.support.whole_product import Mail, WholeProduct

Misfortune = Callable[[WholeProduct, Random], Awaitable[None]]


async def a_process_dies(product: WholeProduct, dice: Random) -> None:
    """SIGKILL, and somebody starts it again."""
    process = dice.choice(list(product.processes.values()))
    await process.kill()
    await product.let_leases_run_out()
    await product.start()


async def the_database_dies(product: WholeProduct, dice: Random) -> None:
    """PostgreSQL goes down under load and comes back; a file on disk has no such moment."""
    if product.server is not None:
        await asyncio.to_thread(product.server.restart)


def at_gmail(method: str = "*", *, most: int = 20, **fault: Any) -> Misfortune:
    async def strike(product: WholeProduct, dice: Random) -> None:
        chance, times = dice.choice((0.3, 0.6, 1.0)), dice.randrange(1, most)
        rule = {"method": method, "probability": chance, "times": times, "seed": dice.randrange(1_000)}
        await product.gmail.control("faults", fault=fault, **rule)

    return strike


def at_the_model(kind: str, **fault: Any) -> Misfortune:
    async def strike(product: WholeProduct, dice: Random) -> None:
        await product.model.control(
            "faults", kind=kind, times=dice.randrange(1, 6), seed=dice.randrange(1_000), **fault
        )

    return strike


async def gmail_forgets_its_history(product: WholeProduct, dice: Random) -> None:
    await product.gmail.control("history/expire")


async def the_clocks_disagree(product: WholeProduct, dice: Random) -> None:
    await product.gmail.control("skew", seconds=dice.choice((-7_200, 0, 90, 7_200)))


async def the_site_is_down(product: WholeProduct, dice: Random) -> None:
    await product.site.control("faults", path="/documents", status=dice.choice((500, 503)), times=dice.randrange(1, 4))


async def much_mail_comes(product: WholeProduct, dice: Random) -> None:
    for _ in range(dice.randrange(5, 15)):
        await product.deliver(dice.choice(list(Mail)))


async def the_owner_sends_mail_on(product: WholeProduct, dice: Random) -> None:
    if product.delivered:
        await product.forward(dice.choice(list(product.delivered)))


MISFORTUNES: tuple[Misfortune, ...] = (
    a_process_dies,
    a_process_dies,
    the_database_dies,
    at_gmail(kind="error", code=429, reason="rateLimitExceeded", retry_after_s=1),
    at_gmail(kind="error", code=503),
    at_gmail(kind="drop"),
    at_gmail(kind="truncate"),
    at_gmail(kind="malformed"),
    at_gmail(kind="latency", seconds=0.5),
    at_gmail("messages.modify", kind="drop", after_effect=True),
    at_gmail("messages.send", kind="drop", after_effect=True, most=3),
    at_gmail("history.list", kind="duplicate_history"),
    at_gmail("history.list", kind="reorder_history"),
    gmail_forgets_its_history,
    the_clocks_disagree,
    at_the_model("error", code=503),
    at_the_model("drop"),
    at_the_model("truncate"),
    at_the_model("malformed_tool_call"),
    at_the_model("empty"),
    the_site_is_down,
    much_mail_comes,
    much_mail_comes,
    the_owner_sends_mail_on,
    the_owner_sends_mail_on,
)
