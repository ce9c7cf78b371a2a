"""The whole product, with everything going wrong: nothing is lost, nothing is done twice, no cap is passed (design §9).

The short run belongs to every change; the long ones take minutes: `make chaos`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.support.databases import PostgresFactory, postgres_server
from tests.support.misfortunes import MISFORTUNES, much_mail_comes
from tests.support.promises import Watch, broken
from tests.support.whole_product import Shape, WholeProduct, whole_product

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
        pytest.param(Shape.ONE_PROCESS, 1, 6, 60, 10, id="one-short"),
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
        watch = Watch(product)
        await much_mail_comes(product, dice)
        for _ in range(troubles):
            await dice.choice(MISFORTUNES)(product, dice)
            await watch.look()
            await asyncio.sleep(dice.random() * 2)
        await product.settle()
        await watch.look()
        assert await broken(product) == []
        assert await product.end() == []
        await product.types("sync", "run", "--once")
        compared = await product.types("verify", "--against-source")
        assert compared["sound"]
