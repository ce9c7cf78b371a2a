"""A large mailbox through everything in one process on SQLite, watched until all is done: `make soak` and its small
form among the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from postroom.db import Tx
from postroom.db.tables.triage import decisions
from tests.support.whole_product import Mail, Observations, Shape, WholeProduct, broken_invariants, whole_product

_BETWEEN_LOOKS_S = 5.0
_LIVE_EACH_LOOK = 5
_LOOKS_WITH_LIVE_MAIL = 20


@dataclass(frozen=True, slots=True)
class SoakRun:
    messages: int
    decided: int
    seconds: float
    sizes_mb: list[float]
    """Resident memory of the process, at every look."""

    @property
    def peak_mb(self) -> float:
        return max(self.sizes_mb)

    @property
    def growth(self) -> float:
        """The most memory of all over the most of the first half."""
        return self.peak_mb / max(self.sizes_mb[: max(len(self.sizes_mb) // 2, 1)])


async def soak(folder: Path, messages: int, on_look: Callable[[float, float], None] = lambda s, mb: None) -> SoakRun:
    """Until nothing is left to do. Fails if anything was lost or doubled, or a cap was passed. `on_look` gets the
    seconds and the memory in MB."""
    async with whole_product(folder, Shape.ONE_PROCESS, mails=messages, pages=20) as product:
        await product.begin(cap_cents=1_000_000)
        watch = Observations(product)
        sizes: list[float] = []
        loop = asyncio.get_running_loop()
        began = loop.time()
        while await product.unfinished():
            await watch.look()
            for _ in range(_LIVE_EACH_LOOK if len(sizes) < _LOOKS_WITH_LIVE_MAIL else 0):
                await product.deliver(Mail.RECEIPT)
            sizes.append(_resident_mb(product))
            on_look(loop.time() - began, sizes[-1])
            await asyncio.sleep(_BETWEEN_LOOKS_S)
        seconds = loop.time() - began
        decided = await product.database.read(_decided)
        broken = await broken_invariants(product)
        broken += await product.end()
        verified = await product.types("verify", "--against-source")
    assert broken == [], broken
    assert verified["sound"], verified
    return SoakRun(messages, decided, seconds, sizes)


def _decided(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(decisions)).scalar_one())


def _resident_mb(product: WholeProduct) -> float:
    process = product.processes["up"].process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1_024 / 1e6
