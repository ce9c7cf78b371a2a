"""A large mailbox through everything: archived, recovered, decided, acted on, in bounded time and flat memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.whole_product import Mail, Observations, Shape, WholeProduct, broken_invariants, whole_product

_BETWEEN_LOOKS_S = 5.0
_LIVE_EACH_LOOK = 5
_MOST_GROWTH = 1.25


@pytest.mark.req("PL-2", "SY-17", "BF-9")
@pytest.mark.parametrize(
    "mails",
    [
        pytest.param(5_000, marks=[pytest.mark.chaos, pytest.mark.timeout(600)]),
        pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
async def test_a_large_mailbox_goes_through_everything_in_flat_memory(tmp_path: Path, mails: int) -> None:
    async with whole_product(tmp_path, Shape.ONE_PROCESS, mails=mails, pages=20) as product:
        await product.begin(cap_cents=1_000_000)
        watch = Observations(product)
        sizes: list[int] = []
        began = asyncio.get_running_loop().time()
        while await product.unfinished():
            await watch.look()
            for _ in range(_LIVE_EACH_LOOK if len(sizes) < 20 else 0):
                await product.deliver(Mail.RECEIPT)
            sizes.append(resident_bytes(product))
            await asyncio.sleep(_BETWEEN_LOOKS_S)
        took_s = asyncio.get_running_loop().time() - began
        assert await broken_invariants(product) == []
        assert await product.end() == []
        assert (await product.types("verify", "--against-source"))["sound"]
    half = max(sizes[: len(sizes) // 2])
    print(f"{mails:,} messages: {took_s:.0f} s, {max(sizes) / 1e6:.0f} MB at most")
    assert max(sizes) <= half * _MOST_GROWTH, [f"{size / 1e6:.0f}" for size in sizes]


def resident_bytes(product: WholeProduct) -> int:
    process = product.processes["up"].process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
