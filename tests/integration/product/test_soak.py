"""A large mailbox through everything: archived, recovered, decided, acted on, in bounded time and flat memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.soaking import soak

_MOST_GROWTH = 1.25


@pytest.mark.req("PL-2", "SY-17", "BF-9")
@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_large_mailbox_goes_through_everything_in_flat_memory(tmp_path: Path) -> None:
    run = await soak(tmp_path, 5_000)
    assert run.growth <= _MOST_GROWTH, [f"{size:.0f}" for size in run.sizes_mb]
