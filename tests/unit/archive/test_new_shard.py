"""A shard that is being made: nobody sees it before it is one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from postroom.archive.messages import ShardName
from postroom.archive.shards import shard_file
from postroom.archive.shards.reader import shards_on_disk
from postroom.domain.errors import Fatal
from tests.support.archives import ME


@pytest.mark.req("SY-7")
def test_a_shard_whose_making_was_cut_off_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, name = tmp_path / ME / "2026.db", ShardName(ME, 2026)

    def cut_off(connection: sqlite3.Connection, name: ShardName) -> None:
        connection.execute("CREATE TABLE half (id INTEGER)")
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(shard_file, "_create", cut_off)
        with pytest.raises(Fatal):
            shard_file.open_for_writing(path, name)
    assert shards_on_disk(tmp_path) == []
    shard_file.open_for_writing(path, name).close()
    assert shards_on_disk(tmp_path) == [name]
    assert [file.name for file in path.parent.iterdir()] == ["2026.db"]
