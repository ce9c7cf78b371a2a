"""The whole product under random faults, one at a time: nothing is lost, nothing is done twice, no cap is exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.databases import PostgresFactory, postgres_server
from tests.support.whole_product import Mail, Observations, Shape, WholeProduct, broken_invariants, whole_product

InjectedFault = Callable[[WholeProduct, Random], Awaitable[None]]


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


def at_gmail(method: str = "*", *, most: int = 20, **fault: Any) -> InjectedFault:
    async def strike(product: WholeProduct, dice: Random) -> None:
        chance, times = dice.choice((0.3, 0.6, 1.0)), dice.randrange(1, most)
        rule = {"method": method, "probability": chance, "times": times, "seed": dice.randrange(1_000)}
        await product.gmail.control("faults", fault=fault, **rule)

    return strike


def at_the_model(kind: str, **fault: Any) -> InjectedFault:
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


INJECTED_FAULTS: tuple[InjectedFault, ...] = (
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


_LONG = [pytest.mark.chaos, pytest.mark.timeout(900)]


@asynccontextmanager
async def product_of(path: Path, shape: Shape, *, mails: int, pages: int) -> AsyncIterator[WholeProduct]:
    if shape is Shape.ONE_PROCESS:
        async with whole_product(path, shape, mails=mails, pages=pages) as product:
            yield product
        return
    with postgres_server() as server:
        url = await asyncio.to_thread(lambda: PostgresFactory(server.url).url())
        async with whole_product(path, shape, server, url=url, mails=mails, pages=pages) as product:
            yield product


@pytest.mark.req("PL-2", "PL-3", "SY-13", "JB-1", "BF-9")
@pytest.mark.parametrize(
    ("shape", "seed", "troubles", "mails", "pages"),
    [
        pytest.param(Shape.ONE_PROCESS, 1, 6, 24, 6, id="one-short", marks=pytest.mark.timeout(900)),
        *(
            pytest.param(shape, seed, 60, 600, 60, id=f"{shape.name}-{seed}", marks=_LONG)
            for shape in Shape
            for seed in (2, 3)
        ),
    ],
)
async def test_whatever_happens_nothing_is_lost_or_done_twice(
    tmp_path: Path, shape: Shape, seed: int, troubles: int, mails: int, pages: int
) -> None:
    dice = Random(seed)
    async with product_of(tmp_path, shape, mails=mails, pages=pages) as product:
        await product.begin(cap_cents=500)
        watch = Observations(product)
        await much_mail_comes(product, dice)
        for _ in range(troubles):
            await dice.choice(INJECTED_FAULTS)(product, dice)
            await watch.look()
            await asyncio.sleep(dice.random() * 2)
        await product.settle()
        await watch.look()
        assert await broken_invariants(product) == []
        assert await product.end() == []
        await product.types("sync", "run", "--once")
        compared = await product.types("verify", "--against-source")
        assert compared["sound"]
