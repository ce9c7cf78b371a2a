"""The archive's benchmark still runs: a little mail, imported and searched, without the peer unless it is installed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from benchmarks import archive
from benchmarks.archive import ALL_KINDS, Import, Latency
from benchmarks.archive_mail import Kind, write
from benchmarks.archive_search import queries, words_of
from benchmarks.peers import notmuch

from postroom.archive.importing.sources import open_mbox
from postroom.archive.importing.state import FoundMessage
from postroom.mail.query import parse

has_notmuch = shutil.which("notmuch") is not None and notmuch.is_installed()


@pytest.mark.parametrize("kind", Kind)
def test_the_same_mail_is_written_for_both(tmp_path: Path, kind: Kind) -> None:
    files = write(tmp_path, kind, 150, with_maildir=True)
    in_maildir = [path.read_bytes() for path in sorted((files.maildir / "cur").iterdir())]
    in_mbox = [
        found.raw for file in open_mbox(files.mbox).files() for found in file.read(0) if isinstance(found, FoundMessage)
    ]
    assert [raw.rstrip(b"\n") for raw in in_mbox] == [raw.rstrip(b"\n") for raw in in_maildir]
    assert files.sample() == in_maildir
    assert [path.read_bytes() for path in sorted(files.eml.iterdir())] == in_maildir
    assert len(files.labels()) == 150


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_query_is_asked_in_words_of_the_mail(tmp_path: Path, kind: Kind) -> None:
    sample = write(tmp_path, kind, 400, with_maildir=False).sample()
    asked = queries(words_of(sample))
    assert len({query.kind for query in asked}) == 16
    for query in asked:
        parse(query.ours, 0, strict=True)
    assert queries(words_of(sample)) == asked


def test_a_small_run_has_a_figure_for_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "archive.json"
    options = ["--messages", "300", "--mail", "mailbox", "--asked", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.archive", *options])
    archive.main()
    kept = json.loads(out.read_text())
    ours = ["postroom, mbox", "postroom, maildir", "postroom, eml", "postroom, takeout"]
    contenders = [*ours, "notmuch, maildir"]
    without_peer = ["postroom, mbox", "postroom, takeout"]
    assert [one["contender"] for one in kept["imports"]] == (contenders if has_notmuch else without_peer)
    assert kept["searches"][-1]["kind"] == ALL_KINDS
    for one in kept["searches"]:
        assert one["ours_p95_ms"] > 0
        assert (one["theirs_p95_ms"] is not None) == (has_notmuch and "larger" not in one["kind"])


def test_a_goal_is_judged_by_the_worst_kind_too() -> None:
    imports = [Import("postroom, mbox", 1_000, 1, 200, 1), Import("notmuch, maildir", 200, 1, 100, 1)]
    latencies = [
        Latency("rare word", 1.0, 2.0, 1.0, 0.1, 0.2, 0.1, 10, 10),
        Latency("phrase", 1.0, 12.0, 10.0, 1.0, 30.0, 20.0, 10, 10),
        Latency(ALL_KINDS, 1.0, 5.0, 4.0, 1.0, 25.0, 20.0, 20, 20),
    ]
    assert [(verdict.measured, verdict.met) for verdict in archive.judge(imports, latencies, messages=4_000)] == [
        (5.0, True),
        (250.0, True),
        (200, True),
        (5.0, True),
        (12.0, False),
        (5.0, True),
        (pytest.approx(1.8), False),
    ]
    assert archive.judge(imports, latencies, Kind.LETTERS)[0].met is False
