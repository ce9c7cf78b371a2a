"""Commands show times in the zone of the terminal, and in UTC when asked to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from postroom.cli.main import tree
from postroom.cli.terminal import minute, moment, shown

NOON = datetime(2026, 11, 17, 12, 0, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.req("UX-3")
def test_times_are_local() -> None:
    assert shown(NOON) == "2026-11-17 21:00:05"
    assert minute(NOON) == "2026-11-17 21:00"
    assert moment(int(NOON.timestamp())) == "2026-11-17 21:00:05"


@pytest.mark.req("UX-3")
def test_utc_is_an_option_of_every_command() -> None:
    done = CliRunner().invoke(tree(), ["--utc", "completion", "bash"])
    assert (done.exit_code, shown(NOON)) == (0, "2026-11-17 12:00:05")
