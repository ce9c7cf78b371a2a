"""What the demonstration says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroom.cli.demo import _take
from postroom.demo.decision_steps import Morning, _one
from postroom.demo.demo_session import DemoSession, SoFar
from postroom.demo.story import StepOutcome, StoryStep
from postroom.domain.errors import Fatal
from postroom.domain.terms import TIERS
from tests.support.virtual_time import run

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def test_clocks_of_two_processes_make_no_negative_wait() -> None:
    message = SimpleNamespace(ingestion_tier="full", policy_tier=TIERS[0], subject="Lunch?")
    served = _one(message, SimpleNamespace(started_at=NOW, queued_at=NOW + timedelta(microseconds=900)))
    assert served.waited == 0
    assert Morning((served,))._longest(TIERS[0]) == "the longest waited 0.00 s"


def test_patience_ends_only_while_nothing_moves() -> None:
    async def no_troubles(_: object) -> list[str]:
        return []

    app = cast(Any, SimpleNamespace(database=SimpleNamespace(read=no_troubles)))
    scene = DemoSession(app, cast(Any, None), "", cast(Any, None))

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def slowly() -> float | SoFar:
            minutes = loop.time() // 60
            return loop.time() if minutes >= 20 else SoFar(minutes)

        assert await scene.until(slowly, "the mail") >= 1_200
        begun = loop.time()

        async def stuck() -> SoFar:
            return SoFar(min(loop.time() - begun, 60.0))

        with pytest.raises(Fatal, match="waited for the mail, and nothing moved for 180 seconds"):
            await scene.until(stuck, "the mail")
        assert 240 <= loop.time() - begun < 242

    run(main())


async def test_a_step_that_fails_ends_the_story_in_a_terminal_and_leaves_the_dashboard_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail(_: DemoSession) -> StepOutcome:
        raise Fatal("It waited in vain.")

    step, scene = StoryStep("Old mail", "It costs.", "/backfill", fail), cast(DemoSession, None)
    await _take(6, step, scene, with_address=True)
    assert "It waited in vain. The dashboard stays open." in capsys.readouterr().out
    with pytest.raises(Fatal):
        await _take(6, step, scene, with_address=False)
