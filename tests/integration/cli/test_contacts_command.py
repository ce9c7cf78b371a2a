"""`postroom contacts` as a person uses it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from postroom.cli.main import run

CARD = "BEGIN:VCARD\nVERSION:3.0\nFN:Anna\nEMAIL:anna@example.org\nEND:VCARD\n"


class Postroom:
    """The command, run in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture, self._monkeypatch = capture, monkeypatch

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["postroom", "contacts", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = self._capture.readouterr()
        return int(ended.value.code or 0), out, err

    def json(self, *arguments: str | Path) -> Any:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def postroom(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> Postroom:
    return Postroom(capsys, monkeypatch)


@pytest.mark.req("PQ-4")
def test_contacts_are_imported_listed_and_exported(postroom: Postroom, tmp_path: Path) -> None:
    book = tmp_path / "book.vcf"
    book.write_text(CARD + "BEGIN:VCARD\nFN:\x1b[31mNobody\nEND:VCARD\n")
    assert postroom.json("import", book, "--dry-run")["result"] == {
        "added": 1,
        "changed": 0,
        "unchanged": 0,
        "removed": 0,
    }
    assert postroom.json("list") == []
    code, out, err = postroom("import", book)
    assert (code, out) == (0, "1 added, 0 changed, 0 already known.\n")
    assert "card 2: has no address" in err
    assert [one["address"] for one in postroom.json("list")] == ["anna@example.org"]
    assert "anna@example.org" in postroom("list")[1]
    assert postroom.json("export", "--dry-run")["addresses"] == ["anna@example.org"]
    exported = postroom.json("export")
    assert (exported["version"], exported["addresses"]) == (1, ["anna@example.org"])
    assert "1 addresses, version 1" in postroom("export")[1]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("book.txt", CARD, "--format"),
        ("book.csv", CARD, "no column of addresses"),
        ("book.vcf", "hello", "holds no vCard"),
        (None, "", "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(
    postroom: Postroom, tmp_path: Path, name: str | None, text: str, problem: str
) -> None:
    file = tmp_path / (name or "missing.vcf")
    if name:
        file.write_text(text)
    code, _, err = postroom("import", file)
    assert code == 2
    assert problem in " ".join(err.split())


@pytest.mark.req("PQ-4", "PQ-5")
def test_contacts_are_added_excluded_included_and_removed(postroom: Postroom) -> None:
    assert postroom("add", "Anna@Example.org", "--name", "Anna")[1] == "anna@example.org is a contact.\n"
    assert postroom("exclude", "anna@example.org")[1] == "Mail from anna@example.org is no longer served first.\n"
    [anna] = postroom.json("list")
    assert (anna["name"], anna["source"], anna["has_priority"]) == ("Anna", "manual", False)
    assert postroom("include", "anna@example.org")[1] == "Mail from anna@example.org is served first.\n"
    assert postroom.json("export")["without_priority"] == []
    assert postroom("remove", "anna@example.org")[1] == "anna@example.org is no longer a contact.\n"
    assert postroom.json("list") == []
    code, _, err = postroom("remove", "anna@example.org")
    assert (code, "is no contact; `postroom contacts list` shows those there are" in err) == (2, True)


def test_an_import_says_who_was_removed_before(postroom: Postroom, tmp_path: Path) -> None:
    book = tmp_path / "book.vcf"
    book.write_text(CARD)
    postroom("import", book)
    postroom("remove", "anna@example.org")
    assert "1 left out, because you removed them" in " ".join(postroom("import", book)[1].split())


def test_an_import_of_a_file_that_is_not_there_says_so(postroom: Postroom, tmp_path: Path) -> None:
    missing = tmp_path / "book"
    assert postroom("import", missing)[::2] == (2, f"error: file: {missing} does not exist\n")
