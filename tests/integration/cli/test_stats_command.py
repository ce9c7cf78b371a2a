"""`postroom stats` and `postroom archive coverage` as a person meets them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.shards.file_archive import FileArchive
from tests.support.archives import ACCOUNT, ME, fill_shards
from tests.support.attachments import index_all, with_attachments
from tests.support.commands import in_this_process as postroom
from tests.support.mail import letter

pytestmark = pytest.mark.req("UX-5")
DAY = timedelta(days=1)


def mail(year: int) -> PreparedMail:
    received = datetime(year, 5, 17, 9, 30, tzinfo=UTC)
    return prepare(IncomingMail(letter("Plan", "Hello\n"), Provenance.API, f"{year:016x}", None, frozenset(), received))


def test_the_first_call_counts_and_later_ones_remember(home: Path) -> None:
    fill_shards(home / "archive", [mail(2023), mail(2024)])
    done = postroom("stats", "--by", "year")
    assert done.code == 0, done.stderr
    head, newest, oldest, counted = done.stdout.splitlines()
    assert head.split() == ["year", "messages", "size", "with", "attachment", "search"]
    assert newest.split()[:2] == ["2024", "1"]
    assert newest.endswith("in:anywhere after:2024/01/01 before:2025/01/01")
    assert oldest.startswith("2023")
    assert re.fullmatch(r"Counted \d+s ago; --now counts again\.", counted)
    fill_shards(home / "archive", [mail(2025)])
    assert "\n2025" not in postroom("stats", "--by", "year").stdout
    found = json.loads(postroom("stats", "--by", "year", "--now", "--json", "--account", ACCOUNT).stdout)
    assert [row["value"] for row in found["rows"]] == ["2025", "2024", "2023"]


def test_few_rows_say_that_there_are_more_and_a_wrong_kind_is_refused(home: Path) -> None:
    fill_shards(home / "archive", [mail(2023), mail(2024)])
    assert "1 of 2; --limit shows more." in postroom("stats", "--by", "month", "--limit", "1").stdout
    assert postroom("stats", "--by", "colour").code == 2
    assert "holds no mail" in postroom("stats", "--account", "nobody@example.org").stdout


def test_response_times_are_a_table_of_both_sides(home: Path) -> None:
    asked = datetime(2024, 5, 17, 9, 30, tzinfo=UTC)
    head = "To: x@x.example\r\nMessage-ID: <{}@x.example>\r\n\r\nHello\r\n"
    turns = [("ann@one.example", asked), (ACCOUNT, asked + timedelta(hours=2)), ("ann@one.example", asked + DAY)]
    mails = [
        IncomingMail(
            f"From: {sender}\r\n{head.format(number)}".encode(),
            Provenance.API,
            f"{number:016x}",
            "t",
            frozenset(),
            when,
        )
        for number, (sender, when) in enumerate(turns, 1)
    ]
    fill_shards(home / "archive", [prepare(each) for each in mails])
    done = postroom("stats", "--responses")
    assert done.code == 0, done.stderr
    _, everyone, ann, _ = done.stdout.splitlines()
    assert everyone.split()[:9] == ["everyone", "1", "2", "h", "2", "h", "1", "22", "h"]
    assert ann.endswith("in:anywhere {from:ann@one.example to:ann@one.example}")
    found = json.loads(postroom("stats", "--responses", "--json").stdout)
    assert (found["people"], found["rows"][1]["others"]["median_s"]) == (1, 22 * 3_600)


@pytest.mark.req("FD-2")
def test_coverage_adds_up_and_lists_what_has_a_reason(home: Path) -> None:
    place = FileArchive(home / "archive")
    with place.writer("a test") as archive:
        archive.store(ME, [with_attachments(1, [("a.txt", b"text"), ("b.bin", bytes(range(256)))])])
        [waiting] = json.loads(postroom("archive", "coverage", "--json").stdout)
        assert (waiting["account"], waiting["parts"]) == (ME, 3)
        assert waiting["states"]["waits"] == {"messages": 0, "attachments": 2}
        index_all(place, archive, ME)
    done = postroom("archive", "coverage")
    assert done.code == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["part", "messages", "attachments", "together"],
        ["indexed", "1", "1", "2"],
        ["kind", "not", "supported", "0", "1", "1"],
        ["all", "1", "2", "3"],
    ]
    assert "b.bin" in postroom("archive", "coverage", "--reason", "kind not supported").stdout
    [listed] = json.loads(postroom("archive", "coverage", "--reason", "kind not supported", "--json").stdout)
    assert (listed["filename"], listed["number"], listed["part"]) == ("b.bin", 1, "attachment")
