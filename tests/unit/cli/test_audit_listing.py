"""How `postroom audit` prints entries on a terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from postroom.audit import Actor, AuditEntry
from postroom.cli.terminal import console
from postroom.cli.upkeep.audit import _print_entries

START = datetime(2026, 11, 17, 8, 38, 47, tzinfo=UTC)

ENTRY = AuditEntry(
    "01a1e8a8-9fb9-7000-859f-92883411edbe",
    START,
    Actor("dashboard", "a browser with a name that goes on for a while"),
    "backfill.pause",
    "backfill_job",
    "01a1e8a8-9fae-7000-a58f-0415d91b055c",
    {"status": "active"},
    {"status": "paused", "error": "a reason that is longer than what is left of the line"},
)


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(console, "width", width)
    _print_entries([ENTRY])
    return capsys.readouterr().out.splitlines()


def test_an_entry_fits_100_columns_with_both_ids_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = printed(100, monkeypatch, capsys)
    assert first.startswith(f"{ENTRY.id}  {START:%Y-%m-%d %H:%M:%S}  backfill.pause  dashboard a browser")
    assert second.startswith(f"    backfill_job {ENTRY.subject_id}: status active to paused")
    assert (len(first), len(second)) == (100, 100)
    assert (first[-1], second[-1]) == ("…", "…")


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = printed(300, monkeypatch, capsys)
    assert first.endswith(ENTRY.actor.name)
    assert second.endswith("error a reason that is longer than what is left of the line")


def test_values_are_written_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    after = {"enabled": True, "actions": [{"type": "archive"}]}
    monkeypatch.setattr(console, "width", 300)
    _print_entries([replace(ENTRY, before={"enabled": False}, after=after)])
    assert capsys.readouterr().out.rstrip().endswith('enabled no to yes, actions [{"type": "archive"}]')
