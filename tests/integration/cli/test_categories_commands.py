"""`postroom categories`: judging and scoring records, and correcting a sender."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postroom.cli.mail.categories import app
from postroom.domain.errors import BadInput

RECORDS = (
    {
        "id": "one",
        "category": "travel",
        "lang": "en",
        "headers": [["From", "Air <no-reply@air.example>"], ["Subject", "Your boarding pass LH 1790"]],
    },
    {
        "id": "two",
        "category": "none",
        "lang": "en",
        "headers": [["From", "PayPal <x@paypa1.com>"], ["Subject", "Receipt"]],
        "known": False,
        "gmail_labels": ["INBOX"],
    },
)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSTROOM_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in RECORDS) + "\n", "utf-8")
    return path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.req("DQ-1", "DQ-2", "DQ-3")
def test_records_are_judged_scored_and_corrected(records: Path) -> None:
    first, second = (json.loads(line) for line in run("match", str(records)).splitlines())
    assert (first["id"], first["categories"]) == ("one", ["travel"])
    assert first["scores"]["travel"] > 0.5
    assert first["why"]
    assert (second["categories"], second["why"]) == ([], ["the sender imitates paypal"])
    scores = json.loads(run("score", str(records), "--json"))
    assert scores["categories"]["travel"] == {"precision": 1.0, "recall": 1.0, "found": 1, "missed": 0, "mistaken": 0}
    assert "travel" in run("score", str(records))
    run("correct", "air.example", "finance")
    assert "air.example" in run("corrections")
    corrected = json.loads(run("match", str(records)).splitlines()[0])
    assert corrected["why"] == ["you put mail from air.example into finance"]
    assert corrected["categories"] == ["finance"]
    run("forget", "air.example")
    assert json.loads(run("match", str(records)).splitlines()[0])["categories"] == ["travel"]


def test_a_bad_line_is_named(records: Path) -> None:
    records.write_text('{"id": "a", "headers": []}\n{"id": "b", "headers": [["From"]]}\n', "utf-8")
    with pytest.raises(BadInput, match=r"line 2, headers\[0\]"):
        run("match", str(records))
