"""The pure parts of a backup: its manifest, and what is kept of two looks at the small files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.app.backup.creating import BackupFile, Manifest, joined_notes, read_manifest, write_manifest
from postroom.archive.shards.file_archive import unchanged_sync_marks
from postroom.domain.errors import BadInput

MANIFEST = Manifest(
    "2026-11-16T00:00:00+00:00", "0.1.0", "postroom.db", False, (BackupFile("archive/a@b/2020.db", 3, "f"),)
)


def with_path(path: object) -> bytes:
    return json.dumps(
        {**json.loads(write_manifest(MANIFEST)), "files": [{"path": path, "size": 1, "sha256": ""}]}
    ).encode()


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert read_manifest(write_manifest(MANIFEST)) == MANIFEST


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../../up", "", ".", "a//b", "./a", "a/", "a\x00b", "archive/.."]
)
def test_a_manifest_cannot_name_a_file_elsewhere(path: str) -> None:
    with pytest.raises(BadInput, match="no place within a backup"):
        read_manifest(with_path(path))


def test_a_manifest_of_a_newer_format_says_what_to_do() -> None:
    newer = write_manifest(MANIFEST).replace(b'"format": 1', b'"format": 2')
    with pytest.raises(BadInput, match="Upgrade Postroom"):
        read_manifest(newer)


@settings(max_examples=50)
@given(
    st.binary()
    | st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_anything_else_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(BadInput, match=r"manifest\.json"):
        read_manifest(content)


def test_positions_of_connectors_are_never_ahead_of_the_database_and_nothing_parked_is_forgotten() -> None:
    before = {"connectors/x/sent.json": b"1", "connectors/x/parked.json": b'{"a": 1, "b": 1}'}
    after = {
        "connectors/x/sent.json": b"2",
        "connectors/x/parked.json": b'{"b": 2, "c": 2}',
        "connectors/x/gap.json": b"new",
    }
    joined = joined_notes(before, after)
    assert joined["connectors/x/sent.json"] == b"1"
    assert json.loads(joined["connectors/x/parked.json"]) == {"a": 1, "b": 1, "c": 2}
    assert joined["connectors/x/gap.json"] == b"new"


def test_a_mark_that_changed_meanwhile_is_left_out_so_that_the_next_sync_lists_everything() -> None:
    before = {"a/sync.json": b"1", "b/sync.json": b"1", "c/sync.json": b"1"}
    after = {"a/sync.json": b"1", "b/sync.json": b"2", "d/sync.json": b"1"}
    assert unchanged_sync_marks(before, after) == {"a/sync.json": b"1"}
