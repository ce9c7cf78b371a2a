"""Which backups were made of a home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from postroom.app.backup import list_backups, note_backup
from postroom.app.backup.creating import LIST_NAME, BackupFile, Manifest
from postroom.domain.errors import Fatal

MADE = Manifest("2026-11-16T00:00:00+00:00", "0.1.0", "postroom.db", False, (BackupFile("postroom.db", 30, "f"),))


@pytest.mark.req("UX-2")
def test_backups_are_listed_newest_first_and_damage_hides_none(tmp_path: Path) -> None:
    assert list_backups(tmp_path) == []
    note_backup(tmp_path, tmp_path / "monday", MADE)
    with (tmp_path / LIST_NAME).open("ab") as file:
        file.write(b'{"made_at": "2026-11-17T00:00:00"}\nnot JSON\n[1]\n')
    note_backup(tmp_path, tmp_path / "tuesday", replace(MADE, made_at="2026-11-17T00:00:00+00:00", has_key=True))
    found = list_backups(tmp_path)
    assert [(each.folder.rpartition("/")[2], each.bytes, each.has_key) for each in found] == [
        ("tuesday", 30, True),
        ("monday", 30, False),
    ]


def test_a_home_that_cannot_be_written_to_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / LIST_NAME).mkdir()
    with pytest.raises(Fatal, match="The backup itself is complete"):
        note_backup(tmp_path, tmp_path / "monday", MADE)
