"""How commands print tables: whole where there is room, then shortened, then with each row on lines of its own."""

from __future__ import annotations

import pytest

from postroom.cli.terminal import console, print_table

JOB = "01a1f1da-e32c-7002-ba88-9b6b629c85d3"
COLUMNS = ["id", "type", "state", "queue", "tier", "tries", "age", "last error"]
ROW = [
    JOB,
    "archive.conversations",
    "completed",
    "work",
    "default",
    "1/3",
    "4m",
    "Gmail refused the connection. Try later.",
]


def printed(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], row: list[str] = ROW
) -> list[str]:
    monkeypatch.setattr(console, "width", width)
    print_table(COLUMNS, [row], empty="No jobs match.")
    return capsys.readouterr().out.splitlines()


def test_with_room_for_it_every_cell_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, line = printed(160, monkeypatch, capsys)
    assert head.split()[0] == "id"
    assert [cell.strip() for cell in line.split("  ") if cell] == ROW


def test_where_room_is_short_the_longest_cells_give_way_and_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, line = printed(120, monkeypatch, capsys)
    assert line.startswith(f"{JOB}  archive.conv")
    assert "completed  work   default  1/3    4m" in line
    assert line.endswith("…")
    assert len(line) <= 120


def test_where_a_table_would_not_be_readable_each_row_says_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(80, monkeypatch, capsys, [*ROW[:-1], ""]) == [
        JOB,
        "    type archive.conversations, state completed, queue work, tier default, tries",
        "    1/3, age 4m",
    ]
