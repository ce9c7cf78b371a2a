"""The small files of a connector, and its hold on their folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from postroom.connectors.state_files import FolderInUse, FolderShared, folder_of, held, read_json, write_json
from postroom.domain.errors import Fatal


def test_a_second_connector_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gmail", "../../me@example.com")
    assert folder.parent == tmp_path / "connectors"
    with held(folder), pytest.raises(Fatal, match="Another connector"), held(folder):
        raise AssertionError("two at once")
    with held(folder):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_worker_in_the_folder_is_told_apart_from_a_connector(tmp_path: Path) -> None:
    with held(tmp_path, shared=True):
        with held(tmp_path, shared=True), pytest.raises(FolderShared), held(tmp_path):
            raise AssertionError("a connector beside a worker's job")
        with pytest.raises(FolderShared), held(tmp_path):
            raise AssertionError("a look by a connector changes nothing")
    with held(tmp_path), pytest.raises(FolderInUse), held(tmp_path, shared=True):
        raise AssertionError("a worker beside a connector")


def test_a_file_is_replaced_as_a_whole_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]


def test_a_folder_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(Fatal, match="cannot be written"):
        write_json(tmp_path / "taken" / "state.json", {})
