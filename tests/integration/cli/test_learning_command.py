"""`postroom learning` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import postroom

pytestmark = pytest.mark.req("DQ-5", "DQ-6")


async def test_local_triage_is_shown_and_switched_by_one_command_each(home: Path) -> None:
    assert "has compared nothing with the model yet" in (await postroom("learning", "status")).stdout
    assert "would be off" in (await postroom("learning", "off", "--dry-run")).stdout
    assert (await postroom("learning", "status", "--json")).json["on"] is True
    await postroom("learning", "off")
    shown = (await postroom("learning", "status", "--json")).json
    assert shown["on"] is False
    assert "switched off by" in shown["why_off"]
    await postroom("learning", "on")
    assert (await postroom("learning", "status", "--json")).json["on"] is True


async def test_a_correction_of_unknown_mail_is_refused_with_the_next_step(home: Path) -> None:
    refused = await postroom("learning", "correct", "nothing")
    assert refused.code == 2
    assert "postroom search" in refused.stderr
