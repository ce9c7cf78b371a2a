"""`postroom stats` as a person meets it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.preparing import PreparedMail, prepare
from tests.support.archives import ACCOUNT, fill_shards
from tests.support.commands import in_this_process as postroom
from tests.support.mail import letter

pytestmark = pytest.mark.req("UX-5")


def mail(year: int) -> PreparedMail:
    received = datetime(year, 5, 17, 9, 30, tzinfo=UTC)
    return prepare(IncomingMail(letter("Plan", "Hello\n"), Provenance.API, f"{year:016x}", None, frozenset(), received))


def test_the_first_call_counts_and_later_ones_remember(home: Path) -> None:
    fill_shards(home / "archive", [mail(2023), mail(2024)])
    done = postroom("stats", "--by", "year")
    assert done.code == 0, done.stderr
    head, newest, oldest = done.stdout.splitlines()
    assert head.split() == ["year", "messages", "size", "attachments", "search"]
    assert newest.split()[:2] == ["2024", "1"]
    assert newest.endswith("in:anywhere after:2024/01/01 before:2025/01/01")
    assert oldest.startswith("2023")
    fill_shards(home / "archive", [mail(2025)])
    assert "\n2025" not in postroom("stats", "--by", "year").stdout
    found = json.loads(postroom("stats", "--by", "year", "--now", "--json", "--account", ACCOUNT).stdout)
    assert [row["value"] for row in found["rows"]] == ["2025", "2024", "2023"]


def test_few_rows_say_that_there_are_more_and_a_wrong_kind_is_refused(home: Path) -> None:
    fill_shards(home / "archive", [mail(2023), mail(2024)])
    assert "1 of 2; --limit shows more." in postroom("stats", "--by", "month", "--limit", "1").stdout
    assert postroom("stats", "--by", "colour").code == 2
    assert "holds no mail" in postroom("stats", "--account", "nobody@example.org").stdout
